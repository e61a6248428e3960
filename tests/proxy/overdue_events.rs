//! Watches at upstream that stay open and do not bring what upstream has.
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use watershed::app::AppConfig;
use watershed_lab::sim::pods;

use crate::consistent_reads::{PODS, names, quiet, some_pod, version};
use crate::node_start::until_all_rbac_is_watched;
use crate::reviews_of_names::{CONFIG_MAPS, furnish};
use crate::status::status;
use crate::support::client::{Lines, Next, Protocol, within};
use crate::support::rbac::{rbac, remember};
use crate::support::{Fixture, becomes, eventually, has_counted, small};

/// Starts a proxy that waits for due events for a moment only, and a client's watch of pods.
async fn watched(configure: impl FnOnce(&mut AppConfig)) -> (Fixture, Lines) {
    let fixture = Fixture::configured(quiet(20), |config| {
        config.scopes.overdue = Duration::from_millis(300);
        configure(config);
    })
    .await;
    let from = version(&fixture.proxied.get(Protocol::Http2, PODS).await);
    let path = format!("{PODS}?watch=1&resourceVersion={from}");
    let watch = fixture.proxied.watch(Protocol::Http2, &path).await;
    (fixture, watch)
}

/// Returns the next event of a client's watch, while another client reads. All that it reads is
/// checked with `is_fresh`.
async fn event_while_read(
    fixture: &Fixture,
    watch: &mut Lines,
    is_fresh: impl Fn(&[String]) -> bool,
) -> Value {
    let reads = Box::pin(async {
        loop {
            let list = names(&fixture.proxied.get(Protocol::Http2, PODS).await);
            assert!(is_fresh(&list), "{list:?}");
        }
    });
    let line = async {
        tokio::select! {
            line = watch.line() => line,
            () = reads => unreachable!("it reads until there is an event"),
        }
    };
    serde_json::from_str(&within("an event", Box::pin(line)).await).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_does_not_bring_what_upstream_has_is_opened_again() {
    // Upstream sends no bookmarks, so that silence alone says nothing.
    let (fixture, mut watch) = watched(|_| {}).await;
    let (state, faults) = (fixture.upstream.state(), fixture.upstream.faults());

    faults.stall_watches();
    let (namespace, name) = some_pod(&fixture);
    state.delete(&pods(), &namespace, &name).unwrap();
    let is_gone = |names: &[String]| !names.contains(&name);
    let event = event_while_read(&fixture, &mut watch, is_gone).await;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"DELETED".into(), &name.as_str().into())
    );

    faults.stall_watches();
    let text = format!(r#"{{"metadata":{{"name":"new","namespace":"{namespace}"}}}}"#);
    state.create(&pods(), &text).unwrap();
    let is_there = |names: &[String]| names.iter().any(|name| name == "new");
    let event = event_while_read(&fixture, &mut watch, is_there).await;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&"ADDED".into(), &"new".into())
    );

    let of_pods = r#"{group="",resource="pods"}"#;
    let overdue = format!("watershed_upstream_watches_overdue_total{of_pods}");
    assert!(has_counted(fixture.admin, &overdue, 2).await);
    fixture.stop().await;
}

/// Upstream's list is too long to be read for a proof.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_brings_few_of_many_objects_is_opened_again_after_one_read() {
    let (fixture, mut watch) = watched(|_| {}).await;
    fixture.upstream.faults().stall_watches();
    let (namespace, _) = some_pod(&fixture);
    for number in 0..600 {
        let text = format!(r#"{{"metadata":{{"name":"new-{number}","namespace":"{namespace}"}}}}"#);
        fixture.upstream.state().create(&pods(), &text).unwrap();
    }
    let list = names(&fixture.proxied.get(Protocol::Http2, PODS).await);
    assert_eq!(list.len(), 620);
    let line = within("an event", Box::pin(watch.line())).await;
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "new-0");
    let overdue = r#"watershed_upstream_watches_overdue_total{group="",resource="pods"}"#;
    assert!(has_counted(fixture.admin, overdue, 1).await);
    fixture.stop().await;
}

/// Nobody reads here, so that no reader's proof finds it. The watch is at a version that upstream has
/// dropped: the comparison at that version is not possible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_self_check_finds_a_watch_that_brings_nothing() {
    let (fixture, mut watch) =
        watched(|config| config.scopes.self_check = Duration::from_millis(300)).await;
    let (state, faults) = (fixture.upstream.state(), fixture.upstream.faults());
    faults.stall_watches();
    let (namespace, name) = some_pod(&fixture);
    state.delete(&pods(), &namespace, &name).unwrap();
    state.forget_history();
    // Upstream cannot continue the watch, and its client has to list.
    let event: Value =
        serde_json::from_str(&within("an event", Box::pin(watch.line())).await).unwrap();
    assert_eq!(event["object"]["code"], 410, "{event}");
    // Not by its silence.
    let overdue = r#"watershed_upstream_watches_overdue_total{group="",resource="pods"}"#;
    assert!(has_counted(fixture.admin, overdue, 1).await);
    fixture.stop().await;
}

/// Something on the way takes watches and passes nothing on, from the first one on: no bookmark ever shows
/// that one is due. Upstream still has the version that memory has, and agrees with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_without_bookmarks_whose_watches_bring_nothing_becomes_stale_and_is_listed_again() {
    const ANY: &str = "/api/v1/pods?resourceVersion=0";
    let (fixture, watch) = watched(|config| {
        config.scopes.self_check = Duration::from_millis(300);
        config.scopes.max_staleness = Duration::from_secs(2);
    })
    .await;
    let (state, faults) = (fixture.upstream.state(), fixture.upstream.faults());
    let source = async || {
        let answer = fixture.proxied.get(Protocol::Http2, ANY).await;
        answer.header("x-watershed-source").to_owned()
    };
    faults.set(|active| active.silent = true);
    let (namespace, name) = some_pod(&fixture);
    state.delete(&pods(), &namespace, &name).unwrap();
    let too_old = "forward; reason=max-staleness".to_owned();
    becomes("the source", too_old, source).await;
    // The clients' watches go on elsewhere.
    assert_eq!(watch.rest().await, (vec![], Next::End));
    eventually("the list from memory", async || {
        let answer = fixture.proxied.get(Protocol::Http2, ANY).await;
        let is_gone = !names(&answer).contains(&name);
        (is_gone && answer.header("x-watershed-source") == "snapshot")
            .then_some(())
            .ok_or(format!("{answer:?}"))
    })
    .await;
    fixture.stop().await;
}

/// Changes of RBAC are not known while its watches bring nothing, although they are opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_reviewed_again_while_the_watches_of_rbac_bring_nothing() {
    let fixture = Fixture::build(
        small(),
        |upstream| furnish(upstream, &[]),
        |config| {
            remember(config);
            config.access.authorization.unwatched_allowed_ttl = Duration::from_millis(1);
            config.scopes.overdue = Duration::from_millis(300);
            config.scopes.self_check = Duration::from_millis(300);
        },
    )
    .await;
    until_all_rbac_is_watched(&fixture).await;
    let path = format!("{CONFIG_MAPS}?resourceVersion=0");
    let ann = fixture.proxied.as_user("ann-token");
    let visit = async || ann.get(Protocol::Http2, &path).await.status;
    // A grant from before that would be reviewed again, as upstream may have lagged.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(visit().await, StatusCode::OK);
    fixture.upstream.faults().set(|active| active.silent = true);
    let bindings = rbac("rolebindings");
    let state = fixture.upstream.state();
    state.delete(&bindings, "team-00", "ann").unwrap();
    becomes("the age of the bindings is known", true, async || {
        let status = status(&fixture).await;
        let mut scopes = status["scopes"].as_array().unwrap().iter();
        let bindings = scopes.find(|scope| scope["resource"] == "rolebindings");
        bindings.is_some_and(|scope| scope["stalenessSeconds"].as_f64() > Some(0.0))
    })
    .await;
    // The watch is open again by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(visit().await, StatusCode::FORBIDDEN);
    fixture.stop().await;
}
