//! Against lines that a kube-apiserver 1.37 wrote, byte for byte but for ids and times.
use watershed_protocol::{GroupVersionResource, Verb};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn alice() -> Identity {
    Identity {
        user: "alice".into(),
        uid: Some("alice-uid".into()),
        groups: vec!["system:authenticated".into()],
        extra: Vec::new(),
    }
}

fn configmaps(name: Option<&str>) -> ResourceRequest {
    ResourceRequest {
        gvr: GroupVersionResource::new("", "v1", "configmaps"),
        namespace: Some("default".into()),
        name: name.map(str::to_owned),
        subresource: None,
    }
}

fn attributes<'a>(uri: &'a str, verb: &'a str, user: Option<&'a Identity>) -> EventAttributes<'a> {
    EventAttributes {
        id: b"cf5ba276-fa32-4830-85d1-44fab50c661e",
        uri,
        verb,
        user,
        impersonated: None,
        constraint: None,
        source_ips: &[IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)],
        user_agent: "probe/1 <&>é".as_bytes(),
        resource: None,
    }
}

const RECEIVED: &str = "2026-11-21T12:59:47.424292Z";

#[test]
fn a_refused_list_is_written_as_upstream_writes_it() {
    let (alice, resource) = (alice(), configmaps(None));
    let uri = "/api/v1/namespaces/default/configmaps?resourceVersion=0&labelSelector=a%3Db";
    let mut template = EventTemplate::new(
        at(RECEIVED),
        &EventAttributes {
            resource: Some(&resource),
            ..attributes(uri, "list", Some(&alice))
        },
    );
    template.set_outcome(&EventOutcome::Status(Status::forbidden(
        "alice",
        Verb::List,
        &resource,
        "",
    )));
    template.set_decision(&Decision::Denied("".into()));
    let begin = concat!(
        r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","#,
        r#""auditID":"cf5ba276-fa32-4830-85d1-44fab50c661e","#,
        r#""stage":"RequestReceived","#,
        r#""requestURI":"/api/v1/namespaces/default/configmaps?resourceVersion=0\u0026labelSelect"#,
        r#"or=a%3Db","#,
        r#""verb":"list","user":{"username":"alice","uid":"alice-uid","#,
        r#""groups":["system:authenticated"]},"#,
        r#""sourceIPs":["127.0.0.1"],"userAgent":"probe/1 \u003c\u0026\u003eé","#,
        r#""objectRef":{"resource":"configmaps","namespace":"default","apiVersion":"v1"}"#,
    );
    let received = format!(
        "{begin},\"requestReceivedTimestamp\":\"{RECEIVED}\",\"stageTimestamp\":\"{RECEIVED}\"}}\n"
    );
    assert_eq!(
        template.line(AuditStage::RequestReceived, at("2026-11-21T12:59:47.5Z")),
        received
    );
    let complete = concat!(
        r#","responseStatus":{"metadata":{},"status":"Failure","message":"configmaps is "#,
        r#"forbidden: User \"alice\" cannot list resource \"configmaps\" in API group \"\" in "#,
        r#"the namespace \"default\"","#,
        r#""reason":"Forbidden","details":{"kind":"configmaps"},"code":403},"#,
        r#""requestReceivedTimestamp":"2026-11-21T12:59:47.424292Z","#,
        r#""stageTimestamp":"2026-11-21T12:59:47.500000Z","#,
        r#""annotations":{"authorization.k8s.io/decision":"forbid","#,
        r#""authorization.k8s.io/reason":""}}"#,
        "\n",
    );
    let complete = begin.replace("RequestReceived", "ResponseComplete") + complete;
    assert_eq!(
        template.line(
            AuditStage::ResponseComplete,
            at("2026-11-21T12:59:47.500000999Z")
        ),
        complete
    );
}

#[test]
fn a_document_has_no_object_reference_and_a_grant_has_its_reason() {
    let alice = alice();
    let mut template =
        EventTemplate::new(at(RECEIVED), &attributes("/version", "get", Some(&alice)));
    template.set_outcome(&EventOutcome::Code(200));
    template.set_decision(&Decision::Allowed(
        r#"RBAC: allowed by ClusterRoleBinding "system:discovery""#.into(),
    ));
    let line = template.line(AuditStage::ResponseComplete, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    let end = concat!(
        r#""userAgent":"probe/1 \u003c\u0026\u003eé","responseStatus":{"metadata":{},"code":200},"#,
        r#""requestReceivedTimestamp":"2026-11-21T12:59:47.424292Z","#,
        r#""stageTimestamp":"2026-11-21T12:59:47.424292Z","#,
        r#""annotations":{"authorization.k8s.io/decision":"allow","#,
        r#""authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding "#,
        r#"\"system:discovery\""}}"#,
        "\n",
    );
    assert!(line.ends_with(end), "{line}");
}

#[test]
fn the_last_event_names_a_deprecated_type() {
    let alice = alice();
    for (warning, wanted) in [
        (
            concat!(
                r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 "#,
                r#"EndpointSlice""#,
            ),
            r#","k8s.io/deprecated":"true"}}"#,
        ),
        (
            r#"299 - "x/v1beta1 X is deprecated in v1.36+, unavailable in v1.39+; use x/v1 X""#,
            r#","k8s.io/deprecated":"true","k8s.io/removed-release":"1.39"}}"#,
        ),
        (
            r#"299 - "a is deprecated in v1+, unavailable in v\"x+""#,
            r#","k8s.io/deprecated":"true"}}"#,
        ),
    ] {
        let mut template =
            EventTemplate::new(at(RECEIVED), &attributes("/a", "watch", Some(&alice)));
        template.set_decision(&Decision::Allowed("".into()));
        template.set_deprecation(warning);
        let [started, complete] = [AuditStage::ResponseStarted, AuditStage::ResponseComplete]
            .map(|stage| template.line(stage, at(RECEIVED)));
        assert!(
            started.ends_with(b"\"authorization.k8s.io/reason\":\"\"}}\n"),
            "{started:?}"
        );
        assert!(
            complete.ends_with(format!("{wanted}\n").as_bytes()),
            "{complete:?}"
        );
    }
}

#[test]
fn an_unknown_caller_has_an_empty_user() {
    let resource = configmaps(Some("x"));
    let mut template = EventTemplate::new(
        at(RECEIVED),
        &EventAttributes {
            resource: Some(&resource),
            ..attributes("/a", "get", None)
        },
    );
    template.set_outcome(&EventOutcome::Status(Status::unauthorized()));
    let line = template.line(AuditStage::ResponseStarted, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    assert!(line.contains(r#","user":{},"sourceIPs""#), "{line}");
    assert!(line.contains(concat!(
        r#""objectRef":{"resource":"configmaps","namespace":"default","name":"x","#,
        r#""apiVersion":"v1"},"#
    )));
    assert!(line.contains(concat!(
        r#""responseStatus":{"metadata":{},"status":"Failure","message":"Unauthorized","#,
        r#""reason":"Unauthorized","code":401}"#
    )));
    assert!(!line.contains("annotations"));
}

#[test]
fn every_attribute_of_a_user_is_written() {
    let mut user = alice();
    user.groups = vec!["a".into(), "b\"".into()];
    user.extra = vec![
        ("k1".into(), vec!["x".into(), "y".into()]),
        ("k2".into(), vec!["z".into()]),
    ];
    let template = EventTemplate::new(at(RECEIVED), &attributes("/a", "get", Some(&user)));
    let line = template.line(AuditStage::RequestReceived, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    let wanted = concat!(
        r#""user":{"username":"alice","uid":"alice-uid","groups":["a","b\""],"#,
        r#""extra":{"k1":["x","y"],"k2":["z"]}},"#
    );
    assert!(line.contains(wanted), "{line}");
}

#[test]
fn invalid_utf8_and_long_user_agents_are_written_as_in_go() {
    let agent = [b"\xff\xc3".as_slice(), &[b'a'; 1021], "é".as_bytes()].concat();
    let template = EventTemplate::new(
        at(RECEIVED),
        &EventAttributes {
            user_agent: &agent,
            id: b"\xe2\x82",
            ..attributes("/a\u{2028}", "get", None)
        },
    );
    let line = template.line(AuditStage::RequestReceived, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    // The last character is cut in its middle.
    let wanted = format!(
        r#""userAgent":"\ufffd\ufffd{}\ufffd...TRUNCATED""#,
        "a".repeat(1021)
    );
    assert!(line.contains(&wanted), "{line}");
    assert!(line.contains(r#""auditID":"\ufffd\ufffd""#), "{line}");
    assert!(line.contains(r#""requestURI":"/a\u2028""#), "{line}");
    serde_json::from_str::<serde_json::Value>(line).unwrap();
}

#[test]
fn a_batch_is_a_list_of_events_without_their_kind() {
    let template = EventTemplate::new(at(RECEIVED), &attributes("/a", "get", None));
    let lines = [AuditStage::RequestReceived, AuditStage::ResponseComplete]
        .map(|stage| template.line(stage, at(RECEIVED)));
    let text = list(&lines);
    let whole: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        (&whole["kind"], &whole["apiVersion"]),
        (&"EventList".into(), &"audit.k8s.io/v1".into())
    );
    let start = concat!(
        r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"#,
        r#""items":[{"level":"Metadata","auditID""#
    );
    assert!(text.starts_with(start.as_bytes()));
    assert_eq!(whole["items"].as_array().unwrap().len(), 2);
    assert_eq!(whole["items"][1]["stage"], "ResponseComplete");
    assert_eq!(
        list(&[]),
        "{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"metadata\":{},\"items\":[]}\n"
    );
}

#[test]
fn an_impersonated_user_is_written_once_the_impersonation_is_allowed() {
    let alice = alice();
    let bob = Identity {
        user: "bob".into(),
        uid: None,
        groups: vec!["builders".into(), "system:authenticated".into()],
        extra: Vec::new(),
    };
    let template = EventTemplate::new(
        at(RECEIVED),
        &EventAttributes {
            impersonated: Some(&bob),
            constraint: Some("impersonate:user-info"),
            ..attributes("/version", "get", Some(&alice))
        },
    );
    let line = |stage| {
        let line = template.line(stage, at(RECEIVED));
        String::from_utf8(line.to_vec()).unwrap()
    };
    let both = concat!(
        r#""user":{"username":"alice","uid":"alice-uid","groups":["system:authenticated"]},"#,
        r#""impersonatedUser":{"username":"bob","groups":["builders","system:authenticated"]},"#,
        r#""authenticationMetadata":{"impersonationConstraint":"impersonate:user-info"},"#,
        r#""sourceIPs":["127.0.0.1"]"#,
    );
    let complete = line(AuditStage::ResponseComplete);
    assert!(complete.contains(both), "{complete}");
    let received = line(AuditStage::RequestReceived);
    assert!(!received.contains("impersonatedUser"), "{received}");
}
