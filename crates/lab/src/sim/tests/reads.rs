use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use watershed_protocol::GroupVersionResource;

use super::*;
use crate::sim::{WatchListSupport, widgets};

#[tokio::test]
async fn lists_are_ordered_by_the_storage_key() {
    let api = Api::new();
    api.pods(&["nsa/x", "nsa-b/x", "nsa/a"]);
    let all = api.get("/api/v1/pods").await;
    assert_eq!(all.names(), ["nsa-b/x", "nsa/a", "nsa/x"]);
    assert_eq!(
        api.get("/api/v1/namespaces/nsa/pods").await.names(),
        ["nsa/a", "nsa/x"]
    );
    assert!(
        all.text.starts_with(concat!(
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"4"},"#,
            r#""items":[{"metadata":{"name":"x","namespace":"nsa-b""#
        )),
        "{}",
        all.text
    );
    assert!(all.text.ends_with("]}\n"));
}

#[tokio::test]
async fn pages_stay_at_their_version() {
    let api = Api::new();
    api.pods(&["n/a", "n/b", "n/c"]);
    let first = api.get("/api/v1/namespaces/n/pods?limit=2").await;
    assert_eq!(first.names(), ["n/a", "n/b"]);
    let (json, token) = (
        first.json(),
        first.json()["metadata"]["continue"]
            .as_str()
            .unwrap()
            .to_owned(),
    );
    assert_eq!(json["metadata"]["remainingItemCount"], 1);
    api.pods(&["n/d"]);
    let second = api
        .get(&format!(
            "/api/v1/namespaces/n/pods?limit=2&continue={token}"
        ))
        .await;
    assert_eq!(second.names(), ["n/c"]);
    assert_eq!(
        second.json()["metadata"]["resourceVersion"],
        json["metadata"]["resourceVersion"]
    );
    assert!(second.json()["metadata"].get("continue").is_none());
    assert_eq!(
        api.get("/api/v1/pods?limit=1&resourceVersion=0")
            .await
            .names()
            .len(),
        4,
        "limit is ignored"
    );

    api.simulation.state.compact(&pods());
    let expired = api
        .get(&format!(
            "/api/v1/namespaces/n/pods?limit=2&continue={token}"
        ))
        .await;
    assert_eq!(expired.code, 410);
    let replacement = expired.json()["metadata"]["continue"]
        .as_str()
        .unwrap()
        .to_owned();
    let rest = api
        .get(&format!("/api/v1/namespaces/n/pods?continue={replacement}"))
        .await;
    assert_eq!(
        rest.names(),
        ["n/c", "n/d"],
        "the replacement goes on, inconsistently"
    );
}

#[tokio::test(start_paused = true)]
async fn versions_decide_which_state_answers() {
    let api = Api::new();
    let versions = api.pods(&["n/a", "n/b"]);
    let exact = format!("resourceVersion={}&resourceVersionMatch=Exact", versions[0]);
    assert_eq!(pods_at(&api, &exact).await.names(), ["n/a"]);
    let legacy = format!("resourceVersion={}&limit=9", versions[0]);
    assert_eq!(
        pods_at(&api, &legacy).await.names(),
        ["n/a"],
        "a limit without a match means exact"
    );
    assert_eq!(
        pods_at(&api, &format!("resourceVersion={}", versions[0]))
            .await
            .names()
            .len(),
        2
    );

    let future = pods_at(&api, "resourceVersion=99").await;
    assert_eq!(future.code, 504);
    assert_eq!(
        future.json()["message"],
        "Timeout: Too large resource version: 99, current: 3"
    );
    assert_eq!(
        api.get("/api/v1/namespaces/n/pods/a?resourceVersion=99")
            .await
            .code,
        504
    );
    api.simulation.state.forget_history();
    let expired = pods_at(&api, &exact).await;
    assert_eq!(
        (expired.code, text(&expired.json()["reason"])),
        (410, "Expired")
    );

    // An idle type's cache stays behind until somebody reads consistently.
    let created = api
        .ask(
            Method::POST,
            "/api/v1/namespaces/n/configmaps",
            "admin-token",
            r#"{"metadata":{"name":"c"}}"#,
        )
        .await;
    assert_eq!(created.code, 201);
    assert_eq!(list_version(&api, "resourceVersion=0").await, "3");
    assert_eq!(list_version(&api, "").await, "4");
    assert_eq!(list_version(&api, "resourceVersion=0").await, "4");
}

async fn pods_at(api: &Api, query: &str) -> Answer {
    api.get(&format!("/api/v1/pods?{query}")).await
}

async fn list_version(api: &Api, query: &str) -> String {
    let list = pods_at(api, query).await.json();
    text(&list["metadata"]["resourceVersion"]).to_owned()
}

#[tokio::test]
async fn bad_options_are_refused_in_upstreams_words() {
    let api = Api::new();
    for (query, code, message) in [
        (
            "limit=abc",
            400,
            r#"strconv.ParseInt: parsing "abc": invalid syntax"#,
        ),
        (
            "fieldSelector=spec.nope%3Dx",
            400,
            "field label not supported: spec.nope",
        ),
        (
            "resourceVersionMatch=Exact",
            422,
            concat!(
                r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: "#,
                "resourceVersionMatch is forbidden unless resourceVersion is provided"
            ),
        ),
        (
            "sendInitialEvents=false",
            422,
            concat!(
                r#"ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: "#,
                "sendInitialEvents is forbidden for list"
            ),
        ),
    ] {
        let answer = api.get(&format!("/api/v1/pods?{query}")).await;
        assert_eq!(
            (answer.code, text(&answer.json()["message"])),
            (code, message),
            "{query}"
        );
    }
    api.simulation.faults.watch_list(WatchListSupport::Refused);
    let refused = api
        .get("/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
        .await;
    assert_eq!(refused.code, 422);
    assert!(refused.text.contains(
        "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
    ));
}

#[tokio::test]
async fn a_write_without_a_change_keeps_the_version_and_makes_no_event() {
    let api = Api::new();
    let admin = "admin-token";
    let created = api.pods(&["n/a"])[0];
    let path = "/api/v1/namespaces/n/pods/a";
    let body = pod("n/a", "node-1", "blue");
    let labels = r#"{"metadata":{"labels":{"color":"COLOR"}}}"#;
    let version = async |method: Method, body: &str| {
        let answer = api.ask(method, path, admin, body).await.json();
        text(&answer["metadata"]["resourceVersion"]).parse()
    };
    for (method, text) in [
        (Method::PUT, &*body),
        (Method::PATCH, &labels.replace("COLOR", "blue")),
    ] {
        assert_eq!(version(method, text).await, Ok(created));
    }
    let changed = version(Method::PATCH, &labels.replace("COLOR", "red")).await;
    assert_eq!(changed, Ok(created + 1));
}

#[tokio::test]
async fn writes_are_answered_and_refused_as_upstream_does() {
    let api = Api::new();
    let admin = "admin-token";
    let collection = "/api/v1/namespaces/n/configmaps";
    let body = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"data":{"a":"1"}}"#;
    assert_eq!(
        api.ask(Method::POST, collection, admin, body).await.code,
        201
    );
    let taken = api.ask(Method::POST, collection, admin, body).await;
    assert_eq!(
        (taken.code, text(&taken.json()["message"])),
        (409, r#"configmaps "c" already exists"#)
    );
    let stale = body.replace(r#""name""#, r#""resourceVersion":"1","name""#);
    assert_eq!(
        api.ask(Method::PUT, &format!("{collection}/c"), admin, &stale)
            .await
            .code,
        409
    );
    assert_eq!(
        api.ask(Method::PUT, &format!("{collection}/c"), admin, body)
            .await
            .code,
        200
    );
    let deleted = api
        .ask(Method::DELETE, &format!("{collection}/c"), admin, "")
        .await;
    assert_eq!(
        (deleted.code, text(&deleted.json()["status"])),
        (200, "Success")
    );
    let gone = api.get(&format!("{collection}/c")).await;
    assert_eq!(
        gone.text,
        concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
            r#""message":"configmaps \"c\" not found","#,
            r#""reason":"NotFound","details":{"name":"c","kind":"configmaps"},"code":404}"#,
            "\n"
        )
    );
}

#[tokio::test]
async fn callers_are_known_and_limited() {
    let api = Api::new();
    assert_eq!(
        api.ask(Method::GET, "/api/v1/pods", "nobody", "")
            .await
            .code,
        401
    );
    assert_eq!(
        api.ask(Method::GET, "/api/v1/pods", "viewer-token", "")
            .await
            .code,
        200
    );
    let refused = api
        .ask(Method::GET, "/api/v1/secrets", "viewer-token", "")
        .await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.json()["message"],
        concat!(
            r#"secrets is forbidden: User "viewer" cannot list resource "secrets" "#,
            r#"in API group "" at the cluster scope"#
        )
    );
    let review = |spec: &str| format!(r#"{{"spec":{spec}}}"#);
    let tokens = "/apis/authentication.k8s.io/v1/tokenreviews";
    let known = api
        .ask(
            Method::POST,
            tokens,
            "admin-token",
            &review(r#"{"token":"viewer-token"}"#),
        )
        .await;
    assert_eq!(known.code, 201);
    assert_eq!(known.json()["status"]["user"]["username"], "viewer");
    let unknown = api
        .ask(
            Method::POST,
            tokens,
            "admin-token",
            &review(r#"{"token":"x"}"#),
        )
        .await;
    assert!(unknown.json()["status"].get("authenticated").is_none());
    let access = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    for (resource, allowed) in [("pods", true), ("secrets", false)] {
        let spec = format!(
            r#"{{"user":"viewer","resourceAttributes":{{"verb":"list","resource":"{resource}"}}}}"#
        );
        let answer = api
            .ask(Method::POST, access, "admin-token", &review(&spec))
            .await;
        assert_eq!(answer.json()["status"]["allowed"], allowed, "{resource}");
    }
}

#[tokio::test]
async fn discovery_follows_the_custom_type() {
    let api = Api::new();
    let aggregated = || async {
        let request = Request::builder()
            .uri("/apis")
            .header("authorization", "Bearer admin-token")
            .header(
                "accept",
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                 application/json",
            )
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = api.service.answer(request).await;
        assert!(response.headers().contains_key("etag"));
        String::from_utf8(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .to_vec(),
        )
        .unwrap()
    };
    assert!(
        aggregated()
            .await
            .contains(r#""responseKind":{"group":"example.com","kind":"Widget","version":"v1"}"#)
    );
    assert_eq!(
        api.get("/apis/example.com/v1").await.json()["resources"][0]["name"],
        "widgets"
    );
    assert_eq!(api.get("/apis/example.com/v1/widgets").await.code, 200);
    api.simulation.state.serve_custom(&widgets(), false);
    assert!(!aggregated().await.contains("Widget"));
    assert_eq!(
        api.get("/apis/example.com/v1/widgets").await.text,
        "404 page not found\n"
    );
    assert_eq!(
        api.get("/api/v1/nonsense").await.json()["reason"],
        "NotFound"
    );
}

#[tokio::test]
async fn custom_lists_are_sorted_and_keep_their_continue() {
    let api = Api::new();
    api.simulation
        .state
        .create(
            &widgets(),
            r#"{"metadata":{"name":"w","namespace":"n"},"spec":{"color":"red"}}"#,
        )
        .unwrap();
    let list = api
        .get("/apis/example.com/v1/widgets?fieldSelector=spec.color%3Dred")
        .await
        .text;
    assert!(
        list.starts_with(concat!(
            r#"{"apiVersion":"example.com/v1","items":["#,
            r#"{"apiVersion":"example.com/v1","kind":"Widget""#
        )),
        "{list}"
    );
    assert!(
        list.ends_with(concat!(
            r#"],"kind":"WidgetList","metadata":{"continue":"","resourceVersion":"2"}}"#,
            "\n"
        )),
        "{list}"
    );
}

#[tokio::test]
async fn a_fault_refuses_the_given_number_of_requests() {
    let api = Api::new();
    api.simulation.faults.refuse(2, 429, Some(1));
    assert_eq!(api.get("/api/v1/pods").await.code, 429);
    assert_eq!(
        api.get("/api/v1/pods").await.json()["details"]["retryAfterSeconds"],
        1
    );
    assert_eq!(api.get("/api/v1/pods").await.code, 200);
    let metrics = api.get("/metrics").await.text;
    assert!(
        metrics.contains(
            r#"apiserver_request_total{code="429",group="",resource="pods",verb="LIST"} 2"#
        ),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_server_that_is_behind_shows_the_past_but_to_consistent_reads() {
    let api = Api::new();
    api.pods(&["n/a"]);
    api.simulation.faults.fall_behind(Duration::from_hours(1));
    api.pods(&["n/b"]);
    let any = api.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!(any.names(), [""; 0], "as it was before the first pod");
    let path = "/api/v1/namespaces/n/pods/a";
    assert_eq!(
        api.get(&format!("{path}?resourceVersion=0")).await.code,
        404
    );
    assert_eq!(api.get(path).await.code, 200);
    assert_eq!(
        api.get(&format!("{path}?resourceVersion=2")).await.code,
        200
    );
    assert_eq!(api.get("/api/v1/pods").await.names(), ["n/a", "n/b"]);
    api.simulation.faults.fall_behind(Duration::ZERO);
    let any = api.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!(any.names(), ["n/a", "n/b"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_behind_has_heard_no_later_version_of_an_idle_type() {
    let api = Api::new();
    let versions = api.pods(&["n/a"]);
    tokio::time::advance(Duration::from_secs(10)).await;
    let node = r#"{"metadata":{"name":"node-1"}}"#;
    let nodes = GroupVersionResource::new("", "v1", "nodes");
    api.simulation.state.create(&nodes, node).unwrap();
    api.simulation.state.notify_progress();
    api.simulation.faults.fall_behind(Duration::from_secs(5));
    let any = list_version(&api, "resourceVersion=0").await;
    assert_eq!(any, versions[0].to_string());
    tokio::time::advance(Duration::from_secs(6)).await;
    let any = list_version(&api, "resourceVersion=0").await;
    assert_eq!(any, (versions[0] + 1).to_string());
}

#[tokio::test]
async fn a_list_of_a_single_key_is_no_page() {
    let api = Api::new();
    api.pods(&["n/a", "n/b"]);
    let query = "limit=1&fieldSelector=metadata.name%3Da";
    let one = api.get(&format!("/api/v1/namespaces/n/pods?{query}")).await;
    assert_eq!(one.names(), ["n/a"]);
    assert!(one.json()["metadata"].get("continue").is_none());
    let all = api.get(&format!("/api/v1/pods?{query}")).await;
    assert!(all.json()["metadata"].get("continue").is_some());
}

#[tokio::test(start_paused = true)]
async fn reads_of_events_are_etcds() {
    let api = Api::new();
    let events = GroupVersionResource::new("", "v1", "events");
    for name in ["a", "b", "c"] {
        let event = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}}}}"#);
        api.simulation.state.create(&events, &event).unwrap();
    }
    let path = "/api/v1/namespaces/n/events";
    let page = api.get(&format!("{path}?limit=2&resourceVersion=0")).await;
    assert_eq!(page.names(), ["n/a", "n/b"]);
    let token = page.json()["metadata"]["continue"]
        .as_str()
        .unwrap()
        .to_owned();
    let start = URL_SAFE_NO_PAD.decode(&token).unwrap();
    let start: Value = serde_json::from_slice(&start).unwrap();
    assert_eq!(start["start"], "b\0", "without a slash");
    let rest = api
        .get(&format!("{path}?resourceVersion=0&continue={token}"))
        .await;
    assert_eq!(rest.names(), ["n/c"]);

    // A version that is not there yet is not waited for.
    let began = tokio::time::Instant::now();
    for path in [path.to_owned(), format!("{path}/a")] {
        let refused = api.get(&format!("{path}?resourceVersion=99")).await;
        assert_eq!(refused.code, 504, "{}", refused.text);
        let details = &refused.json()["details"];
        assert!(
            details.get("retryAfterSeconds").is_none(),
            "{}",
            refused.text
        );
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    let bad = api.get(&format!("{path}/a?resourceVersion=x")).await;
    let message = bad.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(bad.code, 400);
    assert!(
        message.starts_with("invalid resource version: "),
        "{message}"
    );
    let bad = api
        .get("/api/v1/namespaces/n/pods/a?resourceVersion=x")
        .await;
    assert_eq!(bad.code, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patches_at_the_same_time_are_all_applied() {
    let api = Arc::new(Api::new());
    api.pods(&["n/a"]);
    let path = "/api/v1/namespaces/n/pods/a";
    let writers = ["one", "other"].map(|writer| {
        let api = Arc::clone(&api);
        tokio::spawn(async move {
            for number in 0..200 {
                let body = format!(r#"{{"metadata":{{"annotations":{{"{writer}":"{number}"}}}}}}"#);
                let answer = api.ask(Method::PATCH, path, "admin-token", &body).await;
                assert_eq!(answer.code, 200, "{}", answer.text);
            }
        })
    });
    for writer in writers {
        writer.await.unwrap();
    }
    let annotations = &api.get(path).await.json()["metadata"]["annotations"];
    for writer in ["one", "other"] {
        assert_eq!(annotations[writer], "199");
    }
    let old = r#"{"metadata":{"resourceVersion":"1","labels":{"a":"b"}}}"#;
    let refused = api.ask(Method::PATCH, path, "admin-token", old).await;
    assert_eq!(refused.code, 409);
}
