//! JSON that is derived from the type's scope in protobuf: it is upstream's, upstream has one watch
//! of both, and what upstream prints differently is watched in JSON.
mod again;
mod history;
mod releases;

use http::{Request, header};
use watershed::app::AppConfig;
use watershed_lab::sim::{Options, Population, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, Endpoint, Lines, Protocol, nothing};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, small};

const CONFIGMAPS: &str = "/api/v1/configmaps?resourceVersion=0";
/// A watch that begins with the state and marks its end.
const STREAMED: &str = "/api/v1/configmaps?watch=1&allowWatchBookmarks=true\
                        &sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                        &resourceVersion=0";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn configmaps() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "configmaps")
}

const DERIVED: [&str; 2] = ["--derive-json", "true"];

fn derived(config: &mut AppConfig) {
    config.policy.scope_policy.derive_json = Some(true);
}

fn with_protobuf(configmaps: usize) -> Options {
    Options {
        population: Population {
            configmaps,
            ..small().population
        },
        protobuf: true,
        ..small()
    }
}

async fn list(of: &Endpoint) -> Answer {
    of.get(Protocol::Http2, CONFIGMAPS).await
}

async fn list_in_protobuf(of: &Endpoint) -> Answer {
    let request = Request::get(CONFIGMAPS)
        .header(header::ACCEPT, PROTOBUF)
        .body(nothing())
        .unwrap();
    of.send(Protocol::Http2, request).await.unwrap()
}

/// Waits until the list in JSON comes from memory, and is upstream's.
async fn looks_like_upstream(proxied: &Endpoint, direct: &Endpoint) {
    eventually("the list from memory", async || {
        let (got, wanted) = (list(proxied).await, list(direct).await);
        let source = got.header("x-watershed-source").to_owned();
        let items = |answer: &Answer| {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            text.split_once(r#""items":"#).unwrap().1.to_owned()
        };
        if source == "snapshot" && items(&got) == items(&wanted) {
            Ok(())
        } else {
            Err(format!("it differs, or comes from {source}"))
        }
    })
    .await;
}

fn open_watches(upstream: &SimulatedServer) -> u64 {
    let stats = upstream.stats();
    stats.open_watches.get("configmaps").copied().unwrap_or(0)
}

/// Waits until upstream has so many watches of the type.
async fn has_watches(upstream: &SimulatedServer, wanted: u64) {
    becomes("the watches at upstream", wanted, async || {
        open_watches(upstream)
    })
    .await;
}

/// Returns a ConfigMap, with data whose keys are in this order in JSON.
fn config_map(name: &str, data: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","labels":{{"a":"<b>"}}}},"data":{data}}}"#
    )
}

const END_MARK: &str = "k8s.io/initial-events-end";
const SORTED: &str = r#"{"a":"1","b":"2 & \u2028"}"#;

/// Returns the upstream, as its clients reach it.
fn direct(upstream: &SimulatedServer) -> Endpoint {
    Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    )
}

/// Has upstream print an object differently. Nothing else changes.
fn print_as(upstream: &SimulatedServer, key: &str, print: impl FnOnce(&str) -> String) {
    let printed = upstream.state().reprint(&configmaps(), key, print);
    assert_eq!(printed, Ok(()));
}

/// Has upstream print the data of an object in another order. Nothing else changes.
fn print_out_of_order(upstream: &SimulatedServer, key: &str) {
    let print = |text: &str| {
        let (before, data) = text.split_once(r#""data":{"#).unwrap();
        let (data, after) = data.split_once('}').unwrap();
        let mut entries: Vec<_> = data.split(r#"",""#).collect();
        entries.reverse();
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| format!(r#""{}""#, entry.trim_matches('"')))
            .collect();
        format!(r#"{before}"data":{{{}}}{after}"#, entries.join(","))
    };
    print_as(upstream, key, print);
}

/// Returns the value of a counter.
async fn count(program: &Program, series: &str) -> u64 {
    let metrics = program.admin("GET", "/metrics").await;
    let mut lines = metrics.lines();
    lines
        .find_map(|line| line.strip_prefix(series)?.parse().ok())
        .unwrap_or(0)
}

/// Returns the number of fallbacks of config maps for a reason.
async fn fallbacks(program: &Program, reason: &str) -> u64 {
    let series = format!(
        r#"watershed_scope_json_fallbacks_total{{group="",resource="configmaps",reason="{reason}"}} "#
    );
    count(program, &series).await
}

/// Returns the next event, or the mark of the end of the state. Passes over other bookmarks.
async fn next_event(watch: &mut Lines) -> String {
    loop {
        let line = watch.line().await;
        if line.contains(END_MARK) || !line.starts_with(r#"{"type":"BOOKMARK""#) {
            return line;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_both_encodings_share_a_watch() {
    let fixture = Fixture::configured(with_protobuf(30), derived).await;
    let upstream = &fixture.upstream;
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    let protobuf = list_in_protobuf(&fixture.proxied).await;
    assert_eq!(protobuf.header("x-watershed-source"), "snapshot");
    let wanted = list_in_protobuf(&fixture.direct).await;
    assert_eq!(protobuf.body, wanted.body);
    has_watches(upstream, 1).await;

    let mut ours = fixture.proxied.watch(Protocol::Http2, STREAMED).await;
    let mut theirs = fixture.direct.watch(Protocol::Http2, STREAMED).await;
    let state = upstream.state();
    let first = config_map("first", SORTED);
    state.create(&configmaps(), &first).unwrap();
    let changed = first.replace(r#""1""#, r#""3""#);
    state.update(&configmaps(), &changed).unwrap();
    state.delete(&configmaps(), "default", "first").unwrap();
    // 30 objects, the end mark, and three events; bookmarks are where each server has them.
    for _ in 0..34 {
        let (ours, theirs) = (next_event(&mut ours).await, next_event(&mut theirs).await);
        if !theirs.contains(END_MARK) {
            assert_eq!(ours, theirs);
        }
    }
    assert_eq!(open_watches(upstream), 2, "the proxy's, and the test's own");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_upstream_prints_differently_is_watched_in_json() {
    let upstream = SimulatedServer::start(with_protobuf(0)).await.unwrap();
    let state = upstream.state();
    state
        .create(&configmaps(), &config_map("first", SORTED))
        .unwrap();
    print_out_of_order(&upstream, "default/first");
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let text = list(&program.proxied).await.body;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(r#""data":{"b""#), "{text}");
    assert_eq!(fallbacks(&program, "difference").await, 1);
    let reason = "upstream prints default/first differently";
    program.until_logged(&[reason]).await;
    has_watches(&upstream, 2).await;
    // Nobody uses the scope in protobuf.
    has_watches(&upstream, 1).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_object_of_a_type_is_compared_before_it_is_shown() {
    let upstream = SimulatedServer::start(with_protobuf(0)).await.unwrap();
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    has_watches(&upstream, 1).await;
    assert_eq!(fallbacks(&program, "difference").await, 0);
    // The watch shows it once it is printed out of order.
    upstream
        .faults()
        .delay_events(std::time::Duration::from_millis(300));
    let state = upstream.state();
    state
        .create(&configmaps(), &config_map("first", SORTED))
        .unwrap();
    print_out_of_order(&upstream, "default/first");
    looks_like_upstream(&program.proxied, &direct).await;
    becomes("the fallbacks", 1, async || {
        fallbacks(&program, "difference").await
    })
    .await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_the_first_object_is_gone_before_it_is_compared() {
    let upstream = SimulatedServer::start(with_protobuf(0)).await.unwrap();
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    has_watches(&upstream, 1).await;
    let mut ours = program.proxied.watch(Protocol::Http2, STREAMED).await;
    let mut theirs = direct.watch(Protocol::Http2, STREAMED).await;
    for watch in [&mut ours, &mut theirs] {
        assert!(next_event(watch).await.contains(END_MARK));
    }
    // Its event arrives when upstream has nothing left to compare.
    upstream
        .faults()
        .delay_events(std::time::Duration::from_millis(300));
    let state = upstream.state();
    let first = config_map("first", SORTED);
    state.create(&configmaps(), &first).unwrap();
    state.delete(&configmaps(), "default", "first").unwrap();
    for _ in 0..2 {
        assert_eq!(next_event(&mut ours).await, next_event(&mut theirs).await);
    }
    assert_eq!(fallbacks(&program, "unchecked").await, 1);
    state.create(&configmaps(), &first).unwrap();
    assert_eq!(next_event(&mut ours).await, next_event(&mut theirs).await);
    looks_like_upstream(&program.proxied, &direct).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_difference_that_the_self_check_finds_ends_the_derivation() {
    let upstream = SimulatedServer::start(with_protobuf(5)).await.unwrap();
    let flags = [&DERIVED[..], &["--self-check-interval", "100ms"]].concat();
    let program = Program::with(&upstream, &flags).await;
    let direct = direct(&upstream);
    let state = upstream.state();
    state
        .create(&configmaps(), &config_map("first", SORTED))
        .unwrap();
    looks_like_upstream(&program.proxied, &direct).await;
    assert_eq!(fallbacks(&program, "difference").await, 0);
    print_out_of_order(&upstream, "default/first");
    becomes("the fallbacks", 1, async || {
        fallbacks(&program, "difference").await
    })
    .await;
    looks_like_upstream(&program.proxied, &direct).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_has_a_watch_of_its_own_where_the_operator_says_so() {
    let fixture = Fixture::start(with_protobuf(3)).await;
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    has_watches(&fixture.upstream, 1).await;
    list_in_protobuf(&fixture.proxied).await;
    has_watches(&fixture.upstream, 2).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn derived_watches_go_on_while_upstream_breaks_and_comes_back() {
    let fixture = Fixture::configured(with_protobuf(5), derived).await;
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    let version = list(&fixture.proxied).await.json()["metadata"]["resourceVersion"].clone();
    let path = format!(
        "/api/v1/configmaps?watch=1&resourceVersion={}",
        version.as_str().unwrap()
    );
    let mut watch = fixture.proxied.watch(Protocol::Http2, &path).await;
    let state = fixture.upstream.state();
    for n in 0..5 {
        fixture.upstream.faults().cut_connections();
        let text = config_map(&format!("n-{n}"), SORTED);
        state.create(&configmaps(), &text).unwrap();
        let line = watch.line().await;
        let key = format!("default/n-{n}");
        let (_, object) = state.object(&configmaps(), &key).unwrap();
        let object = String::from_utf8_lossy(&object);
        assert_eq!(
            line.trim_end(),
            format!(r#"{{"type":"ADDED","object":{object}}}"#)
        );
    }
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    has_watches(&fixture.upstream, 1).await;
    // Another history: what was held is dropped, and listed again.
    let before = state.branch();
    for n in 0..3 {
        let text = config_map(&format!("lost-{n}"), SORTED);
        state.create(&configmaps(), &text).unwrap();
    }
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    fixture.upstream.restore(&before);
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    fixture.stop().await;
}
