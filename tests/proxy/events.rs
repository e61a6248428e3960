//! Events, of which upstream has no watch cache: it reads their history from etcd.
use std::time::Duration;

use http::Request;
use serde_json::json;
use watershed::app::AppConfig;
use watershed::store::WindowLimits;
use watershed_lab::sim::{ClusterState, Options, pods};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Endpoint, Lines, Next, Protocol, nothing, within};
use crate::support::{Fixture, becomes, small};

const EVENTS: &str = "/api/v1/events";
const PODS: &str = "/api/v1/pods";
/// The message of etcd, and the beginning of a watch cache's.
const COMPACTED: &str = r#""message":"The resourceVersion for the provided watch is too old.""#;
const TOO_OLD: &str = r#""message":"too old resource version: "#;

fn events() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "events")
}

/// Creates an object, and returns its version.
fn create(state: &ClusterState, gvr: &GroupVersionResource, name: &str) -> u64 {
    let object = json!({"metadata": {"name": name, "namespace": "default"}});
    state.create(gvr, &object.to_string()).unwrap()
}

/// Keeps no event in memory.
fn without_history(config: &mut AppConfig) {
    config.scopes.window = WindowLimits {
        age: Duration::from_mins(5),
        least: 0,
        bytes: 0,
    };
}

/// Waits until the cached list of a type has reached a version.
async fn catches_up(fixture: &Fixture, path: &str, version: u64) {
    let path = format!("{path}?resourceVersion={version}");
    becomes("the list's source", "snapshot".to_owned(), async || {
        let answer = fixture.proxied.get(Protocol::Http2, &path).await;
        answer.header("x-watershed-source").to_owned()
    })
    .await;
}

/// Opens a watch of what followed on a version. Also returns where it comes from.
async fn watch_after(endpoint: &Endpoint, path: &str, version: u64) -> (String, Lines) {
    let path = format!("{path}?watch=1&resourceVersion={version}");
    let connection = endpoint.connect(Protocol::Http2).await.unwrap();
    let request = Request::get(&path).body(nothing()).unwrap();
    within(&path, connection.follow_with_source(request))
        .await
        .unwrap()
}

async fn direct_watch_after(fixture: &Fixture, path: &str, version: u64) -> Lines {
    let path = format!("{path}?watch=1&resourceVersion={version}");
    fixture.direct.watch(Protocol::Http2, &path).await
}

/// Reads a watch to its end, after one ERROR event. Returns the event.
async fn refusal(watch: Lines) -> String {
    let (lines, end) = watch.rest().await;
    assert_eq!(end, Next::End);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = String::from_utf8_lossy(&lines[0]).into_owned();
    assert!(
        line.starts_with(r#"{"type":"ERROR","object":{"kind":"Status""#),
        "{line}"
    );
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_events_from_before_the_history_is_upstreams_until_memory_can_go_on() {
    let options = Options {
        history: 4,
        ..small()
    };
    let fixture = Fixture::configured(options, without_history).await;
    let state = fixture.upstream.state();
    for path in [EVENTS, PODS] {
        let path = format!("{path}?resourceVersion=0");
        let answer = fixture.proxied.get(Protocol::Http2, &path).await;
        assert_eq!(answer.header("x-watershed-source"), "snapshot");
    }
    let first = create(state, &events(), "first");
    let last = create(state, &events(), "last");
    catches_up(&fixture, EVENTS, last).await;

    let (source, mut watch) = watch_after(&fixture.proxied, EVENTS, first).await;
    assert_eq!(source, "forward; reason=before-history");
    let line = direct_watch_after(&fixture, EVENTS, first)
        .await
        .line()
        .await;
    assert!(line.contains(r#""name":"last""#), "{line}");
    assert_eq!(watch.line().await, line, "etcd has it");
    assert_eq!(watch.rest().await, (vec![], Next::End), "for memory");
    let (source, _) = watch_after(&fixture.proxied, EVENTS, last).await;
    assert_eq!(source, "window");

    for n in 0..6 {
        create(state, &events(), &format!("more-{n}"));
    }
    catches_up(&fixture, EVENTS, state.version()).await;
    let (source, watch) = watch_after(&fixture.proxied, EVENTS, first).await;
    assert_eq!(source, "forward; reason=before-history");
    let compacted = refusal(direct_watch_after(&fixture, EVENTS, first).await).await;
    assert!(compacted.contains(COMPACTED), "{compacted}");
    assert_eq!(refusal(watch).await, compacted);

    // Upstream's watch cache of another type is no older than memory.
    let first = create(state, &pods(), "first");
    catches_up(&fixture, PODS, create(state, &pods(), "last")).await;
    let (source, watch) = watch_after(&fixture.proxied, PODS, first).await;
    assert_eq!(source, "window");
    assert!(refusal(watch).await.contains(TOO_OLD));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_events_ends_in_etcds_words() {
    let fixture = Fixture::configured(small(), |config| {
        config.scopes.rollback_check = Duration::from_millis(200);
    })
    .await;
    let state = fixture.upstream.state();
    let backup = state.branch();
    let mut open = Vec::new();
    for (gvr, path, text) in [(events(), EVENTS, COMPACTED), (pods(), PODS, TOO_OLD)] {
        let known = create(state, &gvr, "known");
        let lost = create(state, &gvr, "lost");
        let list = format!("{path}?resourceVersion=0");
        fixture.proxied.get(Protocol::Http2, &list).await;
        catches_up(&fixture, path, lost).await;
        let (source, watch) = watch_after(&fixture.proxied, path, lost).await;
        assert_eq!(source, "window");
        open.push((gvr, path, text, known, watch));
    }
    // Upstream has passed the lost versions, which mean another state now.
    for n in 0..8 {
        create(&backup, &events(), &format!("new-{n}"));
        create(&backup, &pods(), &format!("new-{n}"));
    }
    fixture.upstream.restore(&backup);
    for (gvr, path, text, known, watch) in open {
        let line = refusal(watch).await;
        // A version that memory has not passed yet is not too old for it.
        let is_told = line.contains(text) || line.contains(COMPACTED);
        assert!(is_told, "{line}");
        catches_up(&fixture, path, create(state, &gvr, "newest")).await;
        // What upstream says happened after a version of the lost history is not what followed.
        let (source, watch) = watch_after(&fixture.proxied, path, known).await;
        assert_eq!(source, "window");
        assert!(refusal(watch).await.contains(text));
    }
    fixture.stop().await;
}
