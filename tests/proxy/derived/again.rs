//! JSON that could not be derived is derived again once it can be, and its readers notice nothing.
use std::cell::Cell;
use std::time::Duration;

use watershed::app::AppConfig;
use watershed_lab::sim::SimulatedServer;

use super::{
    SORTED, config_map, configmaps, derived, list, list_in_protobuf, looks_like_upstream,
    open_watches, print_as, print_out_of_order, with_protobuf,
};
use crate::support::client::{Endpoint, Lines, Protocol};
use crate::support::{Fixture, becomes, eventually, has_counted};

/// A member that all objects have, and one that newer releases might print before it.
const CREATION: &str = r#""creationTimestamp":"#;
const WITH_ZERO: &str = r#""generation":0,"creationTimestamp":"#;

fn derived_again_soon(config: &mut AppConfig) {
    derived(config);
    config.scopes.derive_again = Duration::from_millis(200);
}

/// Waits until clients of both encodings are served from memory, and upstream has so many watches.
async fn both_encodings_take(fixture: &Fixture, wanted: u64) {
    eventually("the watches at upstream", async || {
        let json = list(&fixture.proxied).await;
        let protobuf = list_in_protobuf(&fixture.proxied).await;
        for answer in [json, protobuf] {
            let source = answer.header("x-watershed-source").to_owned();
            if source != "snapshot" {
                return Err(format!("a list comes from {source}"));
            }
        }
        let watches = open_watches(&fixture.upstream);
        (watches == wanted)
            .then_some(())
            .ok_or(format!("{watches} watches"))
    })
    .await;
}

/// Returns a fixture whose config maps cannot be derived, as one of them is not explained.
async fn with_unexplained(prepare: impl FnOnce(&SimulatedServer)) -> Fixture {
    let prepare = |upstream: &SimulatedServer| {
        prepare(upstream);
        let text = config_map("unexplained", SORTED);
        upstream.state().create(&configmaps(), &text).unwrap();
        print_as(upstream, "default/unexplained", |text| {
            text.replacen(r#""data":"#, r#""unknownMember":"x","data":"#, 1)
        });
    };
    let fixture = Fixture::build(with_protobuf(30), prepare, derived_again_soon).await;
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    both_encodings_take(&fixture, 2).await;
    fixture
}

fn delete_unexplained(fixture: &Fixture) {
    let state = fixture.upstream.state();
    let deleted = state.delete(&configmaps(), "default", "unexplained");
    deleted.unwrap();
}

/// Returns a watch of everything after the version of a list from memory, and the path.
async fn watch_from_now(fixture: &Fixture, of: &Endpoint) -> Lines {
    let listed = list(&fixture.proxied).await.json();
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/configmaps?watch=1&resourceVersion={version}");
    of.watch(Protocol::Http2, &path).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_is_derived_again_once_an_object_is_gone_that_was_not_explained() {
    let fixture = with_unexplained(|_| ()).await;
    let state = fixture.upstream.state();
    let text = config_map("changing", SORTED);
    state.create(&configmaps(), &text).unwrap();
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    let mut ours = watch_from_now(&fixture, &fixture.proxied).await;
    let mut theirs = watch_from_now(&fixture, &fixture.direct).await;
    let written = Cell::new(0);
    // Events arrive by either watch at upstream, in the moment in which one takes the other's place.
    let keep_changing = async {
        loop {
            let text = text.replace(r#""1""#, &format!(r#""{}""#, written.get()));
            state.update(&configmaps(), &text).unwrap();
            written.set(written.get() + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    delete_unexplained(&fixture);
    // One of them is the test's own.
    tokio::select! {
        () = both_encodings_take(&fixture, 2) => {}
        () = keep_changing => {}
    }
    for _ in 0..=written.get() {
        assert_eq!(ours.line().await, theirs.line().await);
    }
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_is_derived_again_once_upstreams_release_is_known() {
    let fixture = Fixture::configured(with_protobuf(30), derived_again_soon).await;
    let upstream = &fixture.upstream;
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    both_encodings_take(&fixture, 1).await;
    // It prints a zero that others omit, which shows whose JSON a list has.
    let keys: Vec<_> = upstream
        .state()
        .snapshot(&configmaps())
        .into_keys()
        .collect();
    let (first, last) = (&keys[0], &keys[keys.len() - 1]);
    let (namespace, _) = first.split_once('/').unwrap();
    assert!(!last.starts_with(namespace));
    print_as(upstream, last, |text| text.replacen(CREATION, WITH_ZERO, 1));
    let replace_server = |release: Option<&str>| {
        let faults = upstream.faults();
        faults.set(|active| active.release = release.map(str::to_owned));
        faults.cut_connections();
    };
    replace_server(Some("v1.38.0"));
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    let listed = list(&fixture.proxied).await.json();
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let path =
        format!("/api/v1/namespaces/{namespace}/configmaps?watch=1&resourceVersion={version}");
    let mut watch = fixture.proxied.watch(Protocol::Http2, &path).await;

    print_as(upstream, last, |text| text.replacen(WITH_ZERO, CREATION, 1));
    replace_server(None);
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    both_encodings_take(&fixture, 1).await;
    let created = config_map("later", SORTED).replace(r#""default""#, &format!("{namespace:?}"));
    upstream.state().create(&configmaps(), &created).unwrap();
    let line = watch.line().await;
    assert!(line.contains(r#""name":"later""#), "{line}");
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_objects_are_compared_before_json_is_derived_again() {
    // No sample shows the last object.
    let last = Cell::new(String::new());
    let update_last = |upstream: &SimulatedServer| {
        let state = upstream.state();
        let key = state.snapshot(&configmaps()).into_keys().last().unwrap();
        let (namespace, name) = key.split_once('/').unwrap();
        let text = config_map(name, SORTED).replace(r#""default""#, &format!("{namespace:?}"));
        state.update(&configmaps(), &text).unwrap();
        last.set(key);
    };
    let fixture = with_unexplained(|upstream| {
        update_last(upstream);
        print_out_of_order(upstream, &last.take());
    });
    let fixture = fixture.await;
    delete_unexplained(&fixture);
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    // No other test of this process counts these.
    let series = r#"watershed_scope_json_rederivations_total{group="",resource="configmaps",result="difference"}"#;
    becomes("two attempts", true, async || {
        has_counted(fixture.admin, series, 2).await
    })
    .await;
    both_encodings_take(&fixture, 2).await;
    update_last(&fixture.upstream);
    both_encodings_take(&fixture, 1).await;
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_lose_nothing_while_upstream_breaks_and_json_is_derived_again() {
    let fixture = with_unexplained(|_| ()).await;
    let upstream = &fixture.upstream;
    let state = upstream.state();
    let mut watch = watch_from_now(&fixture, &fixture.proxied).await;
    let mut wanted = Vec::new();
    let (_, object) = state.object(&configmaps(), "default/unexplained").unwrap();
    delete_unexplained(&fixture);
    let line = watch.line().await;
    assert!(line.starts_with(r#"{"type":"DELETED""#), "{line}");
    assert!(object.len() < line.len());
    // Each is in another phase of the attempts, which begin every few hundred milliseconds.
    for n in 0..20 {
        let text = config_map(&format!("n-{n}"), SORTED);
        state.create(&configmaps(), &text).unwrap();
        let (_, object) = state
            .object(&configmaps(), &format!("default/n-{n}"))
            .unwrap();
        let object = String::from_utf8_lossy(&object);
        wanted.push(format!(r#"{{"type":"ADDED","object":{object}}}"#));
        match n % 4 {
            0 => upstream.faults().cut_watches(),
            1 => upstream.faults().cut_connections(),
            2 => upstream.faults().end_watches(),
            _ => looks_like_upstream(&fixture.proxied, &fixture.direct).await,
        }
    }
    both_encodings_take(&fixture, 1).await;
    for wanted in wanted {
        assert_eq!(watch.line().await.trim_end(), wanted);
    }
    looks_like_upstream(&fixture.proxied, &fixture.direct).await;
    fixture.stop().await;
}
