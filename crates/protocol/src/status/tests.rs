use proptest::prelude::*;

use super::*;

fn json(status: &Status) -> String {
    String::from_utf8(status.to_json().to_vec()).unwrap()
}

fn pods(namespace: Option<&str>, name: Option<&str>, subresource: Option<&str>) -> ResourceRequest {
    ResourceRequest {
        gvr: GroupVersionResource::new("", "v1", "pods"),
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    }
}

#[test]
fn writes_401() {
    let expected = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"Unauthorized","reason":"Unauthorized","code":401}"#,
    );
    assert_eq!(json(&Status::unauthorized()), format!("{expected}\n"));
}

#[test]
fn writes_403() {
    let list = Status::forbidden("bob", Verb::List, &pods(None, None, None), "");
    assert_eq!(
        list.message,
        "pods is forbidden: User \"bob\" cannot list resource \"pods\" \
         in API group \"\" at the cluster scope",
    );
    assert!(
        json(&list)
            .ends_with(",\"reason\":\"Forbidden\",\"details\":{\"kind\":\"pods\"},\"code\":403}\n")
    );

    let log = Status::forbidden(
        "bob",
        Verb::Get,
        &pods(Some("default"), Some("p1"), Some("log")),
        "",
    );
    assert_eq!(
        log.message,
        "pods \"p1\" is forbidden: User \"bob\" cannot get resource \"pods/log\" \
         in API group \"\" in the namespace \"default\"",
    );
    assert!(json(&log).contains(r#""details":{"name":"p1","kind":"pods"}"#));

    let mut grouped = pods(Some("default"), None, None);
    grouped.gvr = GroupVersionResource::new("apps", "v1", "deployments");
    let grouped = Status::forbidden("<b&b>\n", Verb::Watch, &grouped, "no <reason>");
    assert_eq!(
        grouped.message,
        "deployments.apps is forbidden: User \"&lt;b&amp;b&gt;\\n\" cannot watch \
         resource \"deployments\" in API group \"apps\" \
         in the namespace \"default\": no <reason>",
    );
    assert!(json(&grouped).contains(r#""details":{"group":"apps","kind":"deployments"}"#));

    let path = Status::forbidden_path("bob", "get", "/metrics", "");
    assert_eq!(
        path.message,
        r#"forbidden: User "bob" cannot get path "/metrics""#
    );
    assert!(json(&path).contains(",\"details\":{},"));
}

#[test]
fn writes_404() {
    let gvr = GroupVersionResource::new("apps", "v1", "deployments");
    let expected = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"deployments.apps \"nope\" not found","reason":"NotFound","#,
        r#""details":{"name":"nope","group":"apps","kind":"deployments"},"code":404}"#,
    );
    assert_eq!(
        json(&Status::not_found(&gvr, "nope")),
        format!("{expected}\n")
    );
}

#[test]
fn writes_410() {
    let expected = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"too old resource version: 5 (287)","reason":"Expired","code":410}"#,
    );
    let status = Status::expired_watch(ResourceVersion(5), ResourceVersion(287));
    assert_eq!(json(&status), format!("{expected}\n"));
    let expected = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"The resourceVersion for the provided watch is too old.","#,
        r#""reason":"Expired","code":410}"#,
    );
    let status = Status::expired_watch_of_etcd();
    assert_eq!(json(&status), format!("{expected}\n"));
}

/// Returns a failure that has all details.
fn too_large_version() -> Status {
    let cause = StatusCause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        ..StatusCause::default()
    };
    let details = StatusDetails {
        causes: vec![cause],
        retry_after_seconds: 1,
        ..StatusDetails::default()
    };
    let message = "Timeout: Too large resource version: 99999, current: 233";
    Status {
        details: Some(details),
        ..Status::new(504, "Timeout", message)
    }
}

#[test]
fn writes_504() {
    let expected = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"Timeout: Too large resource version: 99999, current: 233","#,
        r#""reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","#,
        r#""message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#,
    );
    let status = too_large_version();
    assert_eq!(json(&status), format!("{expected}\n"));
    assert_eq!(status.retry_after(), Some(1));
}

#[test]
fn retry_delays_are_in_details_and_header() {
    let status = Status::too_many_requests("storage is (re)initializing", 3);
    assert!(
        json(&status).contains(r#""reason":"TooManyRequests","details":{"retryAfterSeconds":3},"#)
    );
    assert!(
        json(&Status::service_unavailable("x", 0))
            .contains(r#""reason":"ServiceUnavailable","code":503"#)
    );
    assert_eq!(Status::service_unavailable("x", 2).retry_after(), Some(2));
    assert!(
        json(&Status::internal("x"))
            .contains(r#""details":{"causes":[{"message":"x"}]},"code":500"#)
    );
}

/// The expected bytes come from apimachinery's own `Marshal`.
#[test]
fn writes_protobuf() {
    let hex = |status: &Status| {
        status
            .to_protobuf()
            .iter()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    };
    let expired = Status::expired_watch(ResourceVersion(5), ResourceVersion(287));
    assert_eq!(
        hex(&expired),
        "6b3873000a0c0a027631120653746174757312400a060a0012001a0012074661696c7572651a21746f6f20\
         6f6c64207265736f757263652076657273696f6e3a2035202832383729\
         220745787069726564309a031a002200",
    );
    let too_large = too_large_version();
    assert_eq!(
        hex(&too_large),
        "6b3873000a0c0a0276311206537461747573129c010a060a0012001a0012074661696c7572651a3854\
         696d656f75743a20546f6f206c61726765207265736f757263652076657273696f6e3a203939393939\
         2c2063757272656e743a20323333220754696d656f75742a430a0012001a0022370a17526573\
         6f7572636556657273696f6e546f6f4c61726765121a546f6f206c6172676520\
         7265736f757263652076657273696f6e1a002801320030f8031a002200",
    );
    assert_eq!(expired.encode(Encoding::Protobuf), expired.to_protobuf());
    assert_eq!(expired.encode(Encoding::Json), expired.to_json());
}

#[test]
fn escapes_as_go_does() {
    let text = "\"\\/<>&\n\r\t\u{8}\u{c}\u{1}\u{7f}\u{2028}\u{2029}ä";
    let expected = "\"message\":\"\\\"\\\\/\\u003c\\u003e\\u0026\
        \\n\\r\\t\\b\\f\\u0001\u{7f}\\u2028\\u2029ä\",";
    assert!(json(&Status::new(500, "", text)).contains(expected));
}

#[test]
fn writes_422() {
    let expected = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: "#,
        r#"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled","#,
        r#""reason":"Invalid","details":{"group":"meta.k8s.io","kind":"ListOptions","causes":["#,
        r#"{"reason":"FieldValueForbidden","message":"Forbidden: sendInitialEvents is forbidden "#,
        r#"for watch unless the WatchList feature gate is enabled","field":"sendInitialEvents"}]},"#,
        r#""code":422}"#,
    );
    assert_eq!(json(&Status::no_initial_events()), format!("{expected}\n"));
}

proptest! {
    #[test]
    fn json_is_json(
        message in any::<String>(),
        name in any::<String>(),
        cause in any::<String>(),
    ) {
        let details = StatusDetails {
            name: name.clone(),
            causes: vec![StatusCause { message: cause, ..StatusCause::default() }],
            ..StatusDetails::default()
        };
        let status = Status {
            details: Some(details),
            ..Status::new(418, "Teapot", message.clone())
        };
        let value: serde_json::Value = serde_json::from_slice(&status.to_json()).unwrap();
        prop_assert_eq!(value["message"].as_str().unwrap_or_default(), message);
        prop_assert_eq!(value["details"]["name"].as_str().unwrap_or_default(), name);
    }
}
