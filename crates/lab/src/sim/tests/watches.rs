use watershed_protocol::GroupVersionResource;

use super::*;
use crate::sim::BrokenFrame;

const LIST: &str =
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

#[tokio::test(start_paused = true)]
async fn a_watch_list_brings_the_state_the_mark_and_then_events() {
    let api = Api::new();
    api.pods(&["n/b", "n/a"]);
    let mut stream = api.watch(LIST).await;
    assert_eq!(stream.event().await, "ADDED a@3");
    assert_eq!(stream.event().await, "ADDED b@2");
    assert_eq!(
        stream.line().await.unwrap(),
        concat!(
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","#,
            r#""metadata":{"resourceVersion":"3","#,
            r#""annotations":{"k8s.io/initial-events-end":"true"}},"#,
            r#""spec":{"containers":null},"status":{}}}"#,
            "\n"
        )
    );
    api.simulation
        .state
        .update(&pods(), &pod("n/a", "node-1", "red"))
        .unwrap();
    api.simulation.state.delete(&pods(), "n", "b").unwrap();
    assert_eq!(stream.event().await, "MODIFIED a@4");
    assert_eq!(
        stream.event().await,
        "DELETED b@5",
        "with the version of the deletion"
    );
    assert_eq!(api.simulation.stats.counts().total_open_watches(), 1);
    drop(stream);
    assert_eq!(api.simulation.stats.counts().total_open_watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn options_decide_where_a_watch_starts() {
    let api = Api::new();
    api.pods(&["n/a"]);
    let mut zero = api.watch("resourceVersion=0").await;
    assert_eq!(zero.event().await, "ADDED a@2");
    let mut marked = api.watch("allowWatchBookmarks=true").await;
    assert_eq!(marked.event().await, "ADDED a@2");
    assert_eq!(
        marked.event().await,
        "BOOKMARK* @2",
        "the old form gets the mark too"
    );
    let mut future = api.watch("resourceVersion=3").await;
    let mut from_now = api
        .watch("sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
        .await;
    api.pods(&["n/b", "n/c"]);
    assert_eq!(zero.event().await, "ADDED b@3");
    assert_eq!(from_now.event().await, "ADDED b@3");
    assert_eq!(
        future.event().await,
        "ADDED c@4",
        "silent up to the version it asked for"
    );
    let mut too_far = api.watch(&format!("{LIST}&resourceVersion=99")).await;
    assert_eq!(
        too_far.event().await,
        "ERROR Timeout: Too large resource version: 99, current: 4"
    );
    assert_eq!(too_far.event().await, "end");
}

#[tokio::test(start_paused = true)]
async fn selectors_make_objects_come_and_go() {
    let api = Api::new();
    api.pods(&["n/a"]);
    let mut blue = api
        .watch("resourceVersion=2&labelSelector=color%3Dblue")
        .await;
    let mut node = api
        .watch("resourceVersion=2&fieldSelector=spec.nodeName%3Dnode-2")
        .await;
    let state = &api.simulation.state;
    state.update(&pods(), &pod("n/a", "node-2", "red")).unwrap();
    let gone = blue.line().await.unwrap();
    assert!(
        gone.starts_with(r#"{"type":"DELETED""#) && gone.contains(r#""resourceVersion":"3""#),
        "{gone}"
    );
    assert!(
        gone.contains(r#""color":"blue""#),
        "the state before, with the version of the update"
    );
    assert_eq!(node.event().await, "ADDED a@3");
    state
        .update(&pods(), &pod("n/a", "node-2", "blue"))
        .unwrap();
    assert_eq!(blue.event().await, "ADDED a@4");
    assert_eq!(node.event().await, "MODIFIED a@4");
    state
        .update(&pods(), &pod("n/a", "node-1", "blue"))
        .unwrap();
    assert_eq!(blue.event().await, "MODIFIED a@5");
    assert_eq!(node.event().await, "DELETED a@5");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_in_time_and_before_the_end() {
    let api = Api::new();
    api.pods(&["n/a"]);
    let mut stream = api
        .watch("resourceVersion=2&allowWatchBookmarks=true&timeoutSeconds=100")
        .await;
    let started = tokio::time::Instant::now();
    api.simulation
        .state
        .create(
            &watershed_protocol::GroupVersionResource::new("", "v1", "configmaps"),
            r#"{"metadata":{"name":"c"}}"#,
        )
        .unwrap();
    api.simulation.state.notify_progress();
    assert_eq!(
        stream.event().await,
        "BOOKMARK @3",
        "another type's write moves it"
    );
    assert_eq!(started.elapsed().as_secs(), 60);
    assert_eq!(stream.event().await, "BOOKMARK @3");
    assert_eq!(started.elapsed().as_secs(), 98);
    assert_eq!(stream.event().await, "BOOKMARK @3");
    assert_eq!(stream.event().await, "end");
    assert_eq!(started.elapsed().as_secs(), 100);

    let mut idle = api
        .watch("resourceVersion=3&allowWatchBookmarks=true&timeoutSeconds=10")
        .await;
    assert_eq!(
        idle.event().await,
        "end",
        "a bookmark that says nothing new is not sent"
    );
    let mut short = api
        .watch("resourceVersion=2&allowWatchBookmarks=true&timeoutSeconds=2")
        .await;
    assert_eq!(
        short.event().await,
        "end",
        "no bookmark fits into two seconds"
    );
}

#[tokio::test(start_paused = true)]
async fn too_old_versions_are_an_error_event() {
    let api = Api::with(Options {
        history: 2,
        ..Options::default()
    });
    api.pods(&["n/a", "n/b", "n/c", "n/d"]);
    let mut old = api.watch("resourceVersion=2").await;
    assert_eq!(
        old.line().await.unwrap(),
        concat!(
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"#,
            r#""status":"Failure","#,
            r#""message":"too old resource version: 2 (3)","reason":"Expired","code":410}}"#,
            "\n"
        )
    );
    assert_eq!(old.event().await, "end");
    assert_eq!(
        api.watch("resourceVersion=3").await.event().await,
        "ADDED c@4"
    );

    // The watch of a reader that falls behind the history ends silently.
    let mut slow = api.watch("resourceVersion=5").await;
    api.pods(&["n/e", "n/f", "n/g"]);
    assert_eq!(slow.event().await, "end");
}

#[tokio::test(start_paused = true)]
async fn events_have_no_watch_cache() {
    let api = Api::with(Options {
        history: 2,
        ..Options::default()
    });
    let state = &api.simulation.state;
    let events = GroupVersionResource::new("", "v1", "events");
    for name in ["a", "b", "c", "d"] {
        let event = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}}}}"#);
        state.create(&events, &event).unwrap();
    }
    let path = "/api/v1/events?watch=1&timeoutSeconds=30&allowWatchBookmarks=true";
    let old = api.get(&format!("{path}&resourceVersion=2")).await;
    assert_eq!(
        old.text,
        concat!(
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"#,
            r#""status":"Failure","#,
            r#""message":"The resourceVersion for the provided watch is too old.","#,
            r#""reason":"Expired","code":410}}"#,
            "\n"
        )
    );
    let held = api.get(&format!("{path}&resourceVersion=4")).await;
    assert!(held.text.contains(r#""name":"d""#), "{}", held.text);
    assert!(!held.text.contains("BOOKMARK"), "{}", held.text);
    let marked = api.get(path).await;
    assert_eq!(marked.text.matches("BOOKMARK").count(), 1, "the end mark");
}

#[tokio::test(start_paused = true)]
async fn faults_break_delay_silence_and_end_streams() {
    let api = Api::new();
    api.pods(&["n/a"]);
    let faults = &api.simulation.faults;
    let mut stream = api.watch("resourceVersion=2").await;
    faults.break_frame(2, BrokenFrame::Garbage);
    api.pods(&["n/b", "n/c"]);
    assert_eq!(stream.event().await, "ADDED b@3");
    assert_eq!(stream.event().await, "garbage");
    faults.break_frame(1, BrokenFrame::Half);
    api.pods(&["n/d"]);
    assert_eq!(stream.event().await, "reset");
    assert!(stream.rest.starts_with(br#"{"type":"ADDED""#) && !stream.rest.ends_with(b"\n"));

    let mut stream = api.watch("resourceVersion=5").await;
    faults.delay_events(Duration::from_secs(7));
    let before = tokio::time::Instant::now();
    api.pods(&["n/e"]);
    assert_eq!(stream.event().await, "ADDED e@6");
    assert_eq!(before.elapsed().as_secs(), 7);
    faults.set(|a| a.silent = true);
    api.pods(&["n/f"]);
    assert_eq!(stream.event().await, "quiet");
    faults.set(|a| *a = super::super::ActiveFaults::default());
    assert_eq!(stream.event().await, "ADDED f@7");
    faults.end_watches();
    assert_eq!(stream.event().await, "end");
    let mut stalled = api.watch("resourceVersion=7").await;
    faults.stall_watches();
    let mut stream = api.watch("resourceVersion=7").await;
    api.pods(&["n/g"]);
    assert_eq!(stalled.event().await, "quiet");
    assert_eq!(stream.event().await, "ADDED g@8");
    faults.cut_watches();
    assert_eq!(stream.event().await, "reset");
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_events_with_the_state_does_not_wait_for_a_version() {
    let api = Api::new();
    let query = "timeoutSeconds=9&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &allowWatchBookmarks=true&resourceVersion=99";
    let marked = api.get(&format!("/api/v1/events?watch=1&{query}")).await;
    assert!(
        marked.text.contains("initial-events-end"),
        "{}",
        marked.text
    );
    let late = api.get(&format!("/api/v1/pods?watch=1&{query}")).await;
    assert!(
        late.text.contains("Too large resource version"),
        "{}",
        late.text
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_in_the_path_of_a_watch_selects_one_object() {
    let api = Api::new();
    api.pods(&["n/a", "n/b"]);
    let path = "/api/v1/watch/namespaces/n/pods/b?timeoutSeconds=1";
    let one = api.get(path).await.text;
    assert!(
        one.contains(r#""name":"b""#) && !one.contains(r#""name":"a""#),
        "{one}"
    );
    let refused = api
        .get(&format!("{path}&fieldSelector=metadata.name%3Da"))
        .await;
    assert_eq!(refused.code, 400);
    assert!(
        refused.text.contains("doesn't match requested name"),
        "{}",
        refused.text
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_of_compressed_watches_are_counted_as_they_are_sent() {
    let api = Api::with(Options {
        compressed_watches: true,
        ..Options::default()
    });
    api.pods(&["n/a", "n/b", "n/c"]);
    let query = "watch=1&timeoutSeconds=1&allowWatchBookmarks=true";
    let request = Request::builder()
        .uri(format!("/api/v1/pods?{query}"))
        .header("authorization", "Bearer admin-token")
        .header("accept-encoding", "gzip")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = api.service.answer(request).await;
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let counted = api.simulation.stats.counts().bytes;
    assert_eq!(
        counted[&("WATCH".to_owned(), "pods".to_owned())],
        body.len() as u64
    );
}
