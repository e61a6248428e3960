//! An upstream whose API servers are upgraded and downgraded: what was learned of a release is
//! learned again, and watches go on.
use http::{Request, header};
use serde_json::Value;
use watershed_lab::sim::{Options, Population, WatchListSupport};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Endpoint, Lines, Protocol, nothing};
use crate::support::follower::Follower;
use crate::support::history::WriteHistory;
use crate::support::{Fixture, becomes, eventually, small, unless_stalled};

const CONFIGMAPS: &str = "/api/v1/configmaps?resourceVersion=0";
/// The query of a watch that begins with the state and marks its end.
const STREAMED: &str = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                        &resourceVersionMatch=NotOlderThan&resourceVersion=0";

fn configmaps() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "configmaps")
}

fn with_configmaps() -> Options {
    let population = Population {
        configmaps: 6,
        ..small().population
    };
    Options {
        population,
        ..small()
    }
}

fn lists(fixture: &Fixture, resource: &str) -> u64 {
    fixture.upstream.stats().states_of(resource)
}

async fn list(of: &Endpoint) -> Value {
    of.get(Protocol::Http2, CONFIGMAPS).await.json()["items"].clone()
}

/// Returns source, warning and compression of a watch that begins with the state.
async fn streamed(fixture: &Fixture) -> [String; 3] {
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let request = Request::get(format!("/api/v1/configmaps?{STREAMED}"))
        .header(header::ACCEPT_ENCODING, "gzip")
        .body(nothing())
        .unwrap();
    let answer = connection.open(request).await.unwrap();
    ["x-watershed-source", "warning", "content-encoding"].map(|name| {
        let value = answer.headers().get(name);
        value.map_or_else(String::new, |it| it.to_str().unwrap().to_owned())
    })
}

/// Opens a watch of objects from the present version on.
async fn follow(fixture: &Fixture, path: &str) -> Lines {
    let version = fixture.proxied.get(Protocol::Http2, CONFIGMAPS).await;
    let version = version.json()["metadata"]["resourceVersion"].clone();
    let path = format!(
        "{path}?watch=1&resourceVersion={}",
        version.as_str().unwrap()
    );
    fixture.proxied.watch(Protocol::Http2, &path).await
}

/// Acts as an API server of another release in place of the present one: it prints one object
/// differently.
fn replace_server(fixture: &Fixture, release: &str, key: &str, field: [&str; 2]) {
    let upstream = &fixture.upstream;
    let [old, new] = field;
    let print = |text: &str| text.replacen(old, new, 1);
    let printed = upstream.state().reprint(&configmaps(), key, print);
    assert_eq!(printed, Ok(()));
    let faults = upstream.faults();
    faults.set(|active| active.release = Some(release.to_owned()));
    faults.cut_connections();
}

/// Waits until the list from memory is upstream's.
async fn looks_like_upstream(fixture: &Fixture) {
    eventually("the list from memory", async || {
        let got = fixture.proxied.get(Protocol::Http2, CONFIGMAPS).await;
        let source = got.header("x-watershed-source").to_owned();
        if source == "snapshot" && got.json()["items"] == list(&fixture.direct).await {
            Ok(())
        } else {
            Err(format!("it differs, or comes from {source}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_objects_look_as_the_followed_release_prints_them() {
    let fixture = Fixture::start(with_configmaps()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 7);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    let before = list(&fixture.proxied).await;
    let keys = fixture.upstream.state().snapshot(&configmaps()).into_keys();
    let keys: Vec<_> = keys.collect();
    let (namespace, name) = keys[0].split_once('/').unwrap();
    let other = keys.iter().find(|key| !key.starts_with(namespace)).unwrap();
    let (other_namespace, other_name) = other.split_once('/').unwrap();
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut concerned = follow(&fixture, &path(namespace)).await;
    let mut others = follow(&fixture, &path(other_namespace)).await;

    let upgrade = [r#""data":{"#, r#""data":{"a-default":"b","#];
    replace_server(&fixture, "v1.38.0", &keys[0], upgrade);
    looks_like_upstream(&fixture).await;
    assert_ne!(list(&fixture.proxied).await, before);
    // The client of the one watch has an object that looks otherwise now.
    let end: Value = serde_json::from_str(&concerned.line().await).unwrap();
    assert_eq!(
        (&end["type"], &end["object"]["code"]),
        (&"ERROR".into(), &410.into()),
        "{name}"
    );

    let downgrade = [upgrade[1], upgrade[0]];
    replace_server(&fixture, "v1.37.1", &keys[0], downgrade);
    looks_like_upstream(&fixture).await;
    assert_eq!(list(&fixture.proxied).await, before);
    // Nobody else's watch notices.
    let state = fixture.upstream.state();
    state
        .delete(&configmaps(), other_namespace, other_name)
        .unwrap();
    let event: Value = serde_json::from_str(&others.line().await).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"DELETED".into(), &other_name.into())
    );
    history.writes(30).await;
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capabilities_and_warnings_are_those_of_the_followed_release() {
    let fixture = Fixture::start(with_configmaps()).await;
    list(&fixture.proxied).await;
    let mut watch = follow(&fixture, "/api/v1/configmaps").await;
    let is = |what: [&str; 3]| {
        let wanted = what.map(str::to_owned);
        becomes("source, warning and compression", wanted, async || {
            streamed(&fixture).await
        })
    };
    is(["snapshot", "", "gzip"]).await;
    let faults = fixture.upstream.faults();
    // One without compression, one that does not stream, and one that warns.
    faults.set(|active| {
        active.release = Some("v1.36.3".to_owned());
        active.plain_watches = true;
    });
    faults.cut_connections();
    is(["snapshot", "", ""]).await;
    faults.set(|active| {
        active.release = Some("v1.33.6".to_owned());
        active.watch_list = WatchListSupport::Refused;
    });
    faults.cut_connections();
    is(["forward; reason=initial-events", "", ""]).await;
    for start in ["", "&resourceVersion=0", "&resourceVersion=1"] {
        let refused = format!(
            "/api/v1/configmaps?watch=1&sendInitialEvents=false\
             &resourceVersionMatch=NotOlderThan{start}"
        );
        let answer = fixture.proxied.get(Protocol::Http2, &refused).await;
        assert_eq!(answer.status, 422, "{start}");
    }
    faults.set(|active| {
        active.release = Some("v1.38.0".to_owned());
        active.plain_watches = false;
        active.watch_list = WatchListSupport::Served;
        active.warning = Some("v1 ConfigMap is deprecated".to_owned());
    });
    faults.cut_connections();
    is(["snapshot", r#"299 - "v1 ConfigMap is deprecated""#, "gzip"]).await;
    // The watch was open all the time.
    let key = fixture
        .upstream
        .state()
        .snapshot(&configmaps())
        .into_keys()
        .next()
        .unwrap();
    let (namespace, name) = key.split_once('/').unwrap();
    fixture
        .upstream
        .state()
        .delete(&configmaps(), namespace, name)
        .unwrap();
    assert!(watch.line().await.starts_with(r#"{"type":"DELETED""#));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnections_to_the_same_release_cost_no_list() {
    let fixture = Fixture::start(with_configmaps()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 8);
    let crowd = Follower::crowd(&fixture.proxied, 3).await;
    list(&fixture.proxied).await;
    let all = |fixture: &Fixture| [lists(fixture, "pods"), lists(fixture, "configmaps")];
    // A connection that breaks before it has told the release costs a reading.
    unless_stalled("a reconnection without a list", async || {
        let before = all(&fixture);
        for _ in 0..3 {
            let opened = fixture.upstream.stats().requests_on("WATCH", "pods");
            fixture.upstream.faults().cut_connections();
            eventually("a new watch", async || {
                if fixture.upstream.stats().requests_on("WATCH", "pods") > opened {
                    Ok(())
                } else {
                    Err("not yet".to_owned())
                }
            })
            .await;
            history.writes(10).await;
            for follower in &crowd {
                follower.judge_undisturbed(&history).await;
            }
        }
        let after = all(&fixture);
        if after == before {
            Ok(())
        } else {
            Err(format!("{after:?}, and before {before:?}"))
        }
    })
    .await;
    fixture.stop().await;
}
