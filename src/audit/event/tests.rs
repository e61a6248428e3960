//! Against lines that a kube-apiserver 1.37 wrote, byte for byte but for ids and times.
use super::*;
use watershed_protocol::{GroupVersionResource, Verb};

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
        name_from_selector: false,
    }
}

fn subject<'a>(uri: &'a str, verb: &'a str, user: Option<&'a Identity>) -> Subject<'a> {
    Subject {
        id: b"cf5ba276-fa32-4830-85d1-44fab50c661e",
        uri,
        verb,
        user,
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
    let mut form = Form::new(
        at(RECEIVED),
        &Subject {
            resource: Some(&resource),
            ..subject(uri, "list", Some(&alice))
        },
    );
    form.answered(&Answered::Status(&Status::forbidden(
        "alice",
        Verb::List,
        &resource,
        "",
    )));
    form.decided(false, "");
    let begin = concat!(
        r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"cf5ba276-fa32-4830-85d1-44fab50c661e","#,
        r#""stage":"RequestReceived","requestURI":"/api/v1/namespaces/default/configmaps?resourceVersion=0\u0026labelSelector=a%3Db","#,
        r#""verb":"list","user":{"username":"alice","uid":"alice-uid","groups":["system:authenticated"]},"#,
        r#""sourceIPs":["127.0.0.1"],"userAgent":"probe/1 \u003c\u0026\u003eé","#,
        r#""objectRef":{"resource":"configmaps","namespace":"default","apiVersion":"v1"}"#,
    );
    let received = format!(
        "{begin},\"requestReceivedTimestamp\":\"{RECEIVED}\",\"stageTimestamp\":\"{RECEIVED}\"}}\n"
    );
    assert_eq!(
        form.line(Stage::RequestReceived, at("2026-11-21T12:59:47.5Z")),
        received
    );
    let complete = concat!(
        r#","responseStatus":{"metadata":{},"status":"Failure","message":"configmaps is forbidden: User \"alice\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\"","#,
        r#""reason":"Forbidden","details":{"kind":"configmaps"},"code":403},"#,
        r#""requestReceivedTimestamp":"2026-11-21T12:59:47.424292Z","stageTimestamp":"2026-11-21T12:59:47.500000Z","#,
        r#""annotations":{"authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":""}}"#,
        "\n",
    );
    let complete = begin.replace("RequestReceived", "ResponseComplete") + complete;
    assert_eq!(
        form.line(
            Stage::ResponseComplete,
            at("2026-11-21T12:59:47.500000999Z")
        ),
        complete
    );
}

#[test]
fn a_document_has_no_object_and_a_grant_has_its_reason() {
    let alice = alice();
    let mut form = Form::new(at(RECEIVED), &subject("/version", "get", Some(&alice)));
    form.answered(&Answered::Code(200));
    form.decided(
        true,
        r#"RBAC: allowed by ClusterRoleBinding "system:discovery""#,
    );
    let line = form.line(Stage::ResponseComplete, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    let end = concat!(
        r#""userAgent":"probe/1 \u003c\u0026\u003eé","responseStatus":{"metadata":{},"code":200},"#,
        r#""requestReceivedTimestamp":"2026-11-21T12:59:47.424292Z","stageTimestamp":"2026-11-21T12:59:47.424292Z","#,
        r#""annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"system:discovery\""}}"#,
        "\n",
    );
    assert!(line.ends_with(end), "{line}");
}

#[test]
fn the_end_says_that_a_type_is_deprecated() {
    let alice = alice();
    for (warning, wanted) in [
        (
            r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#,
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
        let mut form = Form::new(at(RECEIVED), &subject("/a", "watch", Some(&alice)));
        form.decided(true, "");
        form.deprecated(warning);
        let [started, complete] = [Stage::ResponseStarted, Stage::ResponseComplete]
            .map(|stage| form.line(stage, at(RECEIVED)));
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
fn nobody_in_particular_has_an_empty_user() {
    let resource = configmaps(Some("x"));
    let mut form = Form::new(
        at(RECEIVED),
        &Subject {
            resource: Some(&resource),
            ..subject("/a", "get", None)
        },
    );
    form.answered(&Answered::Status(&Status::unauthorized()));
    let line = form.line(Stage::ResponseStarted, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    assert!(line.contains(r#","user":{},"sourceIPs""#), "{line}");
    assert!(line.contains(
        r#""objectRef":{"resource":"configmaps","namespace":"default","name":"x","apiVersion":"v1"},"#
    ));
    assert!(line.contains(
        r#""responseStatus":{"metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#
    ));
    assert!(!line.contains("annotations"));
}

#[test]
fn all_of_a_user_is_written() {
    let mut user = alice();
    user.groups = vec!["a".into(), "b\"".into()];
    user.extra = vec![
        ("k1".into(), vec!["x".into(), "y".into()]),
        ("k2".into(), vec!["z".into()]),
    ];
    let form = Form::new(at(RECEIVED), &subject("/a", "get", Some(&user)));
    let line = form.line(Stage::RequestReceived, at(RECEIVED));
    let line = std::str::from_utf8(&line).unwrap();
    let wanted = r#""user":{"username":"alice","uid":"alice-uid","groups":["a","b\""],"extra":{"k1":["x","y"],"k2":["z"]}},"#;
    assert!(line.contains(wanted), "{line}");
}

#[test]
fn bytes_that_are_no_text_and_long_agents_are_written_as_go_does() {
    let agent = [b"\xff\xc3".as_slice(), &[b'a'; 1021], "é".as_bytes()].concat();
    let form = Form::new(
        at(RECEIVED),
        &Subject {
            user_agent: &agent,
            id: b"\xe2\x82",
            ..subject("/a\u{2028}", "get", None)
        },
    );
    let line = form.line(Stage::RequestReceived, at(RECEIVED));
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
    let form = Form::new(at(RECEIVED), &subject("/a", "get", None));
    let lines = [Stage::RequestReceived, Stage::ResponseComplete]
        .map(|stage| form.line(stage, at(RECEIVED)));
    let text = list(&lines);
    let whole: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        (&whole["kind"], &whole["apiVersion"]),
        (&"EventList".into(), &"audit.k8s.io/v1".into())
    );
    assert!(text.starts_with(
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"level":"Metadata","auditID""#
    ));
    assert_eq!(whole["items"].as_array().unwrap().len(), 2);
    assert_eq!(whole["items"][1]["stage"], "ResponseComplete");
    assert_eq!(
        list(&[]),
        "{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"metadata\":{},\"items\":[]}\n"
    );
}
