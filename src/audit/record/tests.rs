//! Requests and the events that they log.
use serde_json::Value;
use watershed_protocol::{GroupVersionResource, ResourceRequest};

use super::*;
use crate::audit::{Audit, AuditConfig, AuditLogConfig};
use crate::body::full;

const POD: &str = "/api/v1/namespaces/a/pods/p";
const EXEC: &str = "/api/v1/namespaces/a/pods/p/exec";

fn alice() -> Arc<Identity> {
    Arc::new(Identity {
        user: "alice".into(),
        uid: None,
        groups: Vec::new(),
        extra: Vec::new(),
    })
}

fn answer(code: u16) -> Response<Body> {
    Response::builder().status(code).body(full("x")).unwrap()
}

/// Returns the answer that opens a tunnel, and the tunnel's end.
fn session() -> (Response<Body>, TunnelEnd) {
    let (mut response, end) = (answer(101), TunnelEnd::default());
    response.extensions_mut().insert(end.clone());
    (response, end)
}

/// Returns the events that `serve` logs: their stage, verb, user and answer.
async fn logged(
    policy: &str,
    method: &str,
    url: &str,
    serve: impl FnOnce(AuditRecord, &Request<()>),
) -> Vec<(String, String, String, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let policy_file = (!policy.is_empty()).then(|| {
        let path = folder.path().join("policy.yaml");
        std::fs::write(
            &path,
            format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{{{policy}}}]\n"),
        )
        .unwrap();
        path
    });
    let path = folder.path().join("audit.log");
    let config = AuditConfig {
        policy_file,
        log: Some(AuditLogConfig::new(path.clone())),
        webhook: None,
    };
    let audit = Audit::start(config).await.unwrap();
    let mut request = Request::builder().method(method).uri(url).body(()).unwrap();
    let record = audit.begin(
        &mut request,
        [127, 0, 0, 1].into(),
        &HeaderValue::from_static("id"),
    );
    serve(record, &request);
    audit.shut_down().await;
    let text = std::fs::read_to_string(path).unwrap();
    let events = text.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let status = event["responseStatus"].take();
        (
            text(&event["stage"]),
            text(&event["verb"]),
            text(&event["user"]["username"]),
            status,
        )
    });
    events.collect()
}

fn short(events: &[(String, String, String, Value)]) -> String {
    let shown = events
        .iter()
        .map(|(stage, verb, user, status)| format!("{stage} {verb} {user} {}", status["code"]));
    shown.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn every_stage_is_logged_once() {
    let all = "level: Metadata";
    let events = logged(all, "GET", POD, |record, request| {
        record_caller(request, &alice());
        record_decision(request, &Decision::Allowed("".into()));
        drop(record.answered(answer(200)));
    })
    .await;
    assert_eq!(
        short(&events),
        "RequestReceived get alice null, ResponseComplete get alice 200"
    );
    let events = logged(all, "GET", "/api/v1/pods?watch=1", |record, request| {
        record_caller(request, &alice());
        drop(record.answered(answer(200)));
    })
    .await;
    assert_eq!(
        short(&events),
        "RequestReceived watch alice null, ResponseStarted watch alice 200, \
         ResponseComplete watch alice 200"
    );
    let refused = |record: AuditRecord, _: &Request<()>| {
        let mut response = answer(401);
        response.extensions_mut().insert(Status::unauthorized());
        drop(record.answered(response));
    };
    assert_eq!(
        short(&logged(all, "GET", POD, refused).await),
        "ResponseStarted get - 401"
    );
    let none = logged("level: None", "GET", POD, |record, _| {
        drop(record.answered(answer(200)));
    })
    .await;
    assert!(none.is_empty());
}

#[tokio::test]
async fn a_session_is_complete_when_its_tunnel_has_ended() {
    let mut open = None;
    let events = logged("level: Metadata", "POST", EXEC, |record, request| {
        record_caller(request, &alice());
        let (response, end) = session();
        drop(record.answered(response));
        open = Some(end.reached_on_drop());
    })
    .await;
    drop(open);
    let begun = "RequestReceived create alice null, ResponseStarted create alice 101";
    assert_eq!(short(&events), begun);
    let events = logged("level: Metadata", "POST", EXEC, |record, request| {
        record_caller(request, &alice());
        let (response, end) = session();
        drop(record.answered(response));
        drop(end.reached_on_drop());
    })
    .await;
    let completed = format!("{begun}, ResponseComplete create alice 101");
    assert_eq!(short(&events), completed);
}

#[tokio::test]
async fn a_user_whose_request_is_refused_is_logged_unless_the_request_names_one() {
    for (vouched, expected) in [(None, "alice"), (Some("bob"), "bob")] {
        let events = logged("", "GET", POD, |record, request| {
            if let Some(user) = vouched {
                let bob = Identity {
                    user: user.into(),
                    ..(*alice()).clone()
                };
                record_caller(request, &Arc::new(bob));
            }
            record.refused(&alice());
            drop(record.answered(answer(429)));
        })
        .await;
        assert_eq!(
            short(&events),
            format!("ResponseComplete get {expected} 429")
        );
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_is_logged_if_it_is_known() {
    let events = logged("", "GET", POD, |record, request| {
        record_caller(request, &alice());
        drop(record);
    })
    .await;
    let closed = serde_json::json!(
        {"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200}
    );
    assert_eq!(short(&events), "ResponseComplete get alice 200");
    assert_eq!(events[0].3, closed);
    assert!(
        logged("", "GET", POD, |record, _| drop(record))
            .await
            .is_empty()
    );
    let forwarded = logged("", "GET", POD, |mut record, request| {
        record_caller(request, &alice());
        record.forwarded();
    })
    .await;
    assert!(forwarded.is_empty(), "upstream logs it");
}

#[tokio::test]
async fn a_request_that_could_not_be_forwarded_is_logged_with_its_own_verb() {
    for (method, url, verb) in [
        ("POST", "/api/v1/namespaces/a/pods", "create"),
        ("DELETE", "/api/v1/namespaces/a/pods", "deletecollection"),
        ("HEAD", POD, "get"),
        ("HEAD", "/api/v1/pods", "list"),
        ("OPTIONS", "/api/v1/pods", "options"),
        ("GET", "/healthz", "get"),
        ("POST", "/healthz", "post"),
    ] {
        let events = logged("", method, url, |mut record, _| {
            record.forwarded();
            let mut response = answer(503);
            response
                .extensions_mut()
                .insert(Status::service_unavailable("gone", 1));
            drop(record.answered(response));
        })
        .await;
        assert_eq!(
            short(&events),
            format!("ResponseComplete {verb} - 503"),
            "{method} {url}"
        );
        assert_eq!(events[0].3["message"], "gone");
    }
    let exec = logged(
        "",
        "POST",
        "/api/v1/namespaces/a/pods/p/exec",
        |record, _| {
            drop(record.answered(answer(503)));
        },
    )
    .await;
    assert_eq!(
        short(&exec),
        "ResponseStarted create - 503, ResponseComplete create - 503"
    );
}

#[tokio::test]
async fn a_coalesced_answer_names_the_object_that_is_not_found() {
    let events = logged("", "GET", POD, |record, request| {
        record_caller(request, &alice());
        drop(record.answered(answer(404)));
    })
    .await;
    let asked = ResourceRequest {
        gvr: GroupVersionResource::new("", "v1", "pods"),
        namespace: None,
        name: None,
        subresource: None,
    };
    assert_eq!(
        events[0].3["message"],
        Status::not_found(&asked.gvr, "p").message
    );
    assert_eq!(events[0].3["reason"], "NotFound");
}

#[tokio::test]
async fn a_forwarded_request_is_logged_if_its_caller_acts_as_another_user() {
    let bob = Arc::new(Identity {
        user: "bob".into(),
        ..Identity::clone(&alice())
    });
    for code in [201, 404] {
        let events = logged("", "GET", POD, |mut record, request| {
            record_caller(request, &alice());
            record_impersonated(request, &bob, None);
            record.forwarded();
            assert!(record.is_only_here());
            drop(record.answered(answer(code)));
        })
        .await;
        assert_eq!(
            short(&events),
            format!("ResponseComplete get alice {code}"),
            "upstream's log has only bob"
        );
        assert_eq!(events[0].3["reason"], Value::Null, "the body is upstream's");
    }
    let closed = logged("", "GET", POD, |mut record, request| {
        record_caller(request, &alice());
        record_impersonated(request, &bob, None);
        record.forwarded();
    })
    .await;
    assert_eq!(short(&closed), "ResponseComplete get alice 200");
}
