//! The registry of scopes, and the task of one.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use parking_lot::Mutex;

use super::cached::DifferingPart;
use super::*;
use crate::body;
use crate::budget::{MemoryBudget, MemoryClass};
use crate::store::{Interest, SubscriptionStart};
use crate::test_support::{Api, HTTP2, Pki, eventually, streamed, text, upstream_of};
use crate::upstream::UpstreamClient;
use watershed_protocol::{
    Encoding, FieldTable, GroupVersionResource, Representation, ResourceVersion, Selection,
};

mod named_histories;
mod schema_changes;
mod silent_watches;
mod slow_answers;

#[tokio::test]
async fn only_scopes_that_nobody_uses_are_closed() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
    let scopes = Scopes::new(
        UpstreamClient::new(&upstream_of(&pki, &api).await),
        ScopeConfig::default(),
    );
    let shape = ObjectShape::new("Kind", FieldTable::metadata_only(true));
    let representation = Representation::whole(Encoding::Json);
    let gvr = |resource: &str| GroupVersionResource::new("", "v1", resource);
    let lend = |resource: &str, idle: Option<u64>| {
        let keep = ScopeOptions {
            idle: idle.map(Duration::from_secs),
            ..ScopeOptions::default()
        };
        scopes
            .acquire(&gvr(resource), representation, &shape, |_| {
                Some((Arc::default(), keep))
            })
            .unwrap()
    };
    let lent = lend("lent", Some(5));
    let watched = lend("watched", Some(5));
    let (subscription, _) = watched
        .reader
        .subscribe(SubscriptionStart::Now, Interest::All);
    drop(watched);
    drop(lend("pinned", Some(5)));
    scopes.open(&ScopeKey::everything(gvr("pinned"), representation), &shape);
    drop(lend("whole", None));
    drop(lend("idle", Some(5)));
    let open = || {
        let mut names: Vec<_> = scopes
            .all()
            .iter()
            .map(|scope| scope.key.gvr.resource.to_string())
            .collect();
        names.sort();
        names.join(" ")
    };
    let now = Instant::now();
    scopes.close_idle_at(now + Duration::from_secs(4));
    assert_eq!(open(), "idle lent pinned watched whole");
    scopes.close_idle_at(now + Duration::from_secs(6));
    assert_eq!(open(), "lent pinned watched whole");
    drop((lent, subscription));
    // The time begins when the last one leaves.
    scopes.close_idle_at(now + Duration::from_secs(8));
    assert_eq!(open(), "pinned watched whole");
    scopes.close_idle_at(now + Duration::from_secs(12));
    assert_eq!(open(), "pinned whole");
}

/// A mark of the end of no initial events.
const MARK: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","#,
    r#""metadata":{"resourceVersion":"8","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    "\n",
);

/// Returns an answer in JSON.
fn json(code: u16, body: body::Body) -> Response<body::Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(body)
        .unwrap()
}

/// Opens the scope of all pods, in JSON.
async fn open_pods(pki: &Pki, api: &Api) -> (Scopes, Arc<Scope>) {
    open_pods_overdue_after(ScopeConfig::default().overdue, pki, api).await
}

/// The same, where due events are waited for as long as this.
async fn open_pods_overdue_after(overdue: Duration, pki: &Pki, api: &Api) -> (Scopes, Arc<Scope>) {
    let config = ScopeConfig {
        overdue,
        ..ScopeConfig::default()
    };
    open_pods_with(config, pki, api).await
}

async fn open_pods_with(config: ScopeConfig, pki: &Pki, api: &Api) -> (Scopes, Arc<Scope>) {
    let scopes = Scopes::new(UpstreamClient::new(&upstream_of(pki, api).await), config);
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let shape = ObjectShape::new("Pod", FieldTable::builtin(&gvr, true).unwrap());
    let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
    let scope = scopes.open(&key, &shape);
    (scopes, scope)
}

/// Opens the scope of one namespace beside that of all.
fn open_namespace(scopes: &Scopes, all: &Scope) -> Arc<Scope> {
    let mut key = all.key.clone();
    key.selection = Arc::new(Selection {
        namespace: Some("n".to_owned()),
        ..Selection::default()
    });
    scopes.open(&key, &ObjectShape::new("Pod", Arc::clone(&all.fields)))
}

/// A mark of the end of no initial events, and then an event that does not fit: nothing is known
/// that could be modified.
const UNFIT: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","#,
    r#""metadata":{"resourceVersion":"8","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    "\n",
    r#"{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","#,
    r#""metadata":{"name":"a","namespace":"n","resourceVersion":"9"}}}"#,
    "\n"
);

/// Returns the mark of [`UNFIT`] alone.
fn mark() -> &'static str {
    UNFIT.split_inclusive('\n').next().unwrap()
}

/// Returns a bookmark that ends no initial events.
fn bookmark() -> String {
    mark().replace("initial-events-end", "something-else")
}

/// Returns a list without objects, at this version.
fn empty_list(version: u64) -> body::Body {
    let metadata = format!(r#"{{"resourceVersion":"{version}"}}"#);
    let list =
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":[]}}"#);
    body::full(list + "\n")
}

#[tokio::test]
async fn lists_after_events_that_do_not_fit_become_rarer() {
    let pki = Pki::new();
    let lists = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lists);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap();
        let is_state = query.contains("sendInitialEvents");
        count.fetch_add(usize::from(is_state), Ordering::SeqCst);
        let body = if query.starts_with("watch=1") {
            let events = stream::iter([Ok(Bytes::from_static(UNFIT.as_bytes()))]);
            streamed(events.chain(stream::pending()))
        } else {
            empty_list(7)
        };
        async move { json(200, body) }
    })
    .await;
    let _open = open_pods(&pki, &api).await;
    eventually(|| lists.load(Ordering::SeqCst) >= 2).await;
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Without pauses there are hundreds of them.
    let (lists, seconds) = (lists.load(Ordering::SeqCst), begun.elapsed().as_secs());
    assert!(lists < 10, "{lists} lists in {seconds} seconds");
}

#[tokio::test]
async fn a_list_of_any_state_proves_nothing_and_is_asked_for_only_where_no_version_is_known() {
    let pki = Pki::new();
    let asked = Arc::<Mutex<Vec<bool>>>::default();
    let seen = Arc::clone(&asked);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        seen.lock().push(query.contains("&resourceVersion=0"));
        let events = stream::iter([Ok(Bytes::from_static(MARK.as_bytes()))]);
        async move {
            Response::builder()
                .header("content-type", "application/json")
                .body(streamed(events.chain(stream::pending())))
                .unwrap()
        }
    })
    .await;
    let scopes = Scopes::new(
        UpstreamClient::new(&upstream_of(&pki, &api).await),
        ScopeConfig::default(),
    );
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let shape = ObjectShape::new("Pod", FieldTable::builtin(&gvr, true).unwrap());
    for (namespace, begins_with_any) in [("a", true), ("b", false)] {
        let mut key = ScopeKey::everything(gvr.clone(), Representation::whole(Encoding::Json));
        key.selection = Arc::new(Selection {
            namespace: Some(namespace.to_owned()),
            ..Selection::default()
        });
        let came = Instant::now();
        let scope = scopes.open_for_changes(&key, &shape);
        scope
            .wait_until_ready(Duration::from_secs(10))
            .await
            .unwrap();
        assert_eq!(asked.lock().pop(), Some(begins_with_any));
        let proven = scope.listed_since(came);
        assert_eq!(proven, (!begins_with_any).then_some(ResourceVersion(8)));
    }
}

#[tokio::test]
async fn a_watch_whose_server_can_no_longer_be_asked_for_its_release_is_opened_elsewhere() {
    let pki = Pki::new();
    let (asked, watches) = (
        Arc::<AtomicBool>::default(),
        Arc::<Mutex<Vec<usize>>>::default(),
    );
    let (was_asked, opened) = (Arc::clone(&asked), Arc::clone(&watches));
    let api = Api::start(&pki, HTTP2, move |request, connection| {
        let number = connection.number;
        let answer = match request.uri().path() {
            "/version" if number == 0 => {
                was_asked.store(true, Ordering::SeqCst);
                (503, body::full("not yet"))
            }
            "/version" => (200, body::full(r#"{"gitVersion":"v1.37.1"}"#)),
            _ if request.uri().query().unwrap_or_default().contains("watch=") => {
                opened.lock().push(number);
                let events = stream::iter([Ok(Bytes::from_static(MARK.as_bytes()))]);
                (200, streamed(events.chain(stream::pending())))
            }
            _ => {
                let accept = request.headers()[http::header::ACCEPT].to_str().unwrap();
                let of = if accept.contains("PartialObjectMetadata") {
                    r#""kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1""#
                } else {
                    r#""kind":"PodList","apiVersion":"v1""#
                };
                let list = format!(r#"{{{of},"metadata":{{"resourceVersion":"8"}},"items":[]}}"#);
                (200, body::full(format!("{list}\n")))
            }
        };
        async move { json(answer.0, answer.1) }
    })
    .await;
    let (_scopes, scope) = open_pods(&pki, &api).await;
    eventually(|| asked.load(Ordering::SeqCst)).await;
    api.go_away();
    eventually(|| scope.print.release().is_some()).await;
    let opened = watches.lock().clone();
    assert_ne!(opened.last(), Some(&0), "{opened:?}");
}

#[tokio::test]
async fn a_list_that_is_due_does_not_wait_until_upstreams_history_is_known() {
    let pki = Pki::new();
    let (states, asked) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (count, was_asked) = (Arc::clone(&states), Arc::clone(&asked));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let (is_state, is_watch) = (
            query.contains("sendInitialEvents"),
            query.contains("watch="),
        );
        let body = if is_state {
            count.fetch_add(1, Ordering::SeqCst);
            // The watch breaks later.
            let cut = stream::once(tokio::time::sleep(Duration::from_millis(1_200)));
            let mark = stream::iter([Ok(Bytes::from_static(MARK.as_bytes()))]);
            streamed(mark.chain(cut.map(|()| Err("cut".into()))))
        } else {
            streamed(stream::pending())
        };
        // The objects, which would tell if upstream has the history.
        let hangs = !is_watch && request.uri().path() != "/version";
        was_asked.fetch_or(hangs, Ordering::SeqCst);
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            json(200, body)
        }
    })
    .await;
    let (_scopes, scope) = open_pods(&pki, &api).await;
    eventually(|| asked.load(Ordering::SeqCst)).await;
    assert_eq!(states.load(Ordering::SeqCst), 1);
    scope.signals.schema_changed();
    eventually(|| states.load(Ordering::SeqCst) == 2).await;
}

/// Opens a scope of objects that can be folded, and returns its items as well.
async fn open_foldable(budget: &MemoryBudget) -> (Api, Scopes, Arc<Scope>, String) {
    let object = |n: usize| {
        let data = "some words ".repeat(400);
        format!(
            r#"{{"metadata":{{"name":"p-{n:03}","namespace":"n","resourceVersion":"5"}},"data":"{data}"}}"#
        )
    };
    let items = (0..100).map(object).collect::<Vec<_>>().join(",");
    let list = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#
    );
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let (code, body) = if query.contains("sendInitialEvents") {
            (422, body::full("{}"))
        } else if query.starts_with("watch=1") {
            (200, streamed(stream::pending()))
        } else {
            (200, body::full(format!("{list}\n")))
        };
        async move {
            let response = Response::builder().header("content-type", "application/json");
            response.status(code).body(body).unwrap()
        }
    })
    .await;
    let scopes = Scopes::new(
        UpstreamClient::new(&upstream_of(&pki, &api).await),
        ScopeConfig::default(),
    )
    .within(budget);
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let shape = ObjectShape::new("Pod", FieldTable::builtin(&gvr, true).unwrap());
    let representation = Representation::whole(Encoding::Json);
    let choice = (Arc::default(), ScopeOptions::default());
    let handle = scopes
        .acquire(&gvr, representation, &shape, |_| Some(choice))
        .unwrap();
    let scope = Arc::clone(&handle);
    scope.wait_until_settled().await.unwrap();
    (api, scopes, scope, items)
}

#[tokio::test]
async fn objects_that_nobody_reads_are_folded_if_they_are_derived_or_memory_is_short() {
    let (_api, scopes, scope, items) = open_foldable(&MemoryBudget::default()).await;
    let before = scope.held();
    let read = || {
        let snapshot = scope.reader.snapshot();
        let items = snapshot.runs_after(None, None).map(|run| run.items());
        items.collect::<Vec<_>>().concat()
    };
    assert_eq!(read(), format!("{items},").as_bytes());
    let wait = || {
        for _ in 0..20 {
            scopes.age_compressed();
        }
    };
    wait();
    assert_eq!(scopes.fold_cold(false), 0, "it is not derived");
    for derives in [true, false] {
        scope.source.set_derived(derives);
        let compressed = || scope.reader.snapshot().compressed_size();
        let compressed_before = compressed();
        let freed = scopes.fold_cold(!derives);
        assert!(freed > items.len() * 9 / 10, "{freed} of {}", items.len());
        let more = compressed() - compressed_before;
        assert_eq!(scope.held(), before - freed - more);
        assert_eq!(read(), format!("{items},").as_bytes());
        scope.count_held();
        assert_eq!(scope.held(), before);
        assert_eq!(scopes.fold_cold(true), 0, "just read");
        wait();
    }
}

#[tokio::test]
async fn derived_objects_that_were_never_read_are_folded_at_once() {
    let (_api, scopes, scope, items) = open_foldable(&MemoryBudget::default()).await;
    assert_eq!(scopes.fold_cold(false), 0, "it is not derived");
    scope.source.set_derived(true);
    let freed = scopes.fold_cold(false);
    assert!(freed > items.len() * 9 / 10, "{freed} of {}", items.len());
    // The first reader unfolds them.
    let run = scope.reader.snapshot().runs_after(None, None).next();
    assert!(!run.unwrap().items().is_empty());
    assert!(scope.reader.held().folded < items.len());
}

#[tokio::test]
async fn a_derived_scope_is_quarantined_with_its_source_before_it_learns_of_that() {
    let (_source_api, _sources, source, _) = open_foldable(&MemoryBudget::default()).await;
    let (_api, _scopes, derived, _) = open_foldable(&MemoryBudget::default()).await;
    // Its task never does anything, which is the latest that it can come.
    derived.source.attach(Arc::clone(&source));
    let is_read = async || derived.wait_until_ready(Duration::ZERO).await.is_ok();
    assert!(is_read().await);
    let mut phases = source.phase.clone();
    phases.mark_unchanged();
    source.differences.report(DifferingPart::Objects);
    phases.changed().await.unwrap();
    assert!(matches!(derived.phase(), ScopePhase::Quarantined));
    assert!(!is_read().await);
    // The source's next list does not make the derived objects right.
    source.wait_until_settled().await.unwrap();
    assert!(matches!(source.phase(), ScopePhase::Ready(_)));
    assert!(matches!(derived.phase(), ScopePhase::Quarantined));
    assert!(!is_read().await);
    // Only objects that were derived since do.
    derived.source.record_quarantines(1);
    assert!(matches!(derived.phase(), ScopePhase::Ready(_)));
    assert!(is_read().await);
}

/// Folds all objects of the scopes.
fn fold_all(scopes: &Scopes) {
    for _ in 0..20 {
        scopes.age_compressed();
    }
    assert!(scopes.fold_cold(true) > 0);
}

#[tokio::test]
async fn objects_are_unfolded_only_if_their_bytes_are_free() {
    let budget = MemoryBudget::new(Some(100 << 30));
    let (_api, scopes, scope, items) = open_foldable(&budget).await;
    let whole = scope.held();
    assert!(
        scope.begin_unfolding(&budget).unwrap().is_none(),
        "all held"
    );
    fold_all(&scopes);
    let folded = scope.held();
    // Other scopes take what folding has freed.
    let other = budget.charge(
        MemoryClass::Objects,
        budget.free().unwrap() - items.len() / 2,
    );
    let refused = scope.begin_unfolding(&budget).unwrap_err();
    assert!(refused.needed > items.len() / 2, "{refused:?}");
    assert_eq!(scope.held(), folded);
    drop(other);
    let one = scope.begin_unfolding(&budget).unwrap();
    assert_eq!(scope.held(), whole, "set aside before anything is unfolded");
    let other = budget.charge(MemoryClass::Objects, budget.free().unwrap());
    let next = scope.begin_unfolding(&budget).unwrap();
    assert_eq!(scope.held(), whole, "for all readers together");
    drop(one);
    scope.count_held();
    assert_eq!(scope.held(), whole);
    // This reader goes away before it has read much.
    let snapshot = scope.reader.snapshot();
    let read = snapshot.runs_after(None, None).next().unwrap().items();
    drop((next, other));
    assert_eq!(scope.held(), folded + read.len());
}

#[tokio::test]
async fn a_folded_scope_that_is_closed_for_memory_needs_all_of_its_bytes() {
    let (_api, scopes, scope, _) = open_foldable(&MemoryBudget::default()).await;
    let whole = scope.held();
    fold_all(&scopes);
    assert!(scope.held() < whole / 2);
    let now = Instant::now() + Duration::from_mins(1);
    scopes.close_idlest(now).unwrap();
    let later = now + Duration::from_mins(1);
    assert!(!scopes.unfit().may_fit(&scope.key, whole - 1, later));
    assert!(scopes.unfit().may_fit(&scope.key, whole, later));
}

#[tokio::test]
async fn an_aggregated_group_has_a_timeline_of_its_own() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
    let groups = ["example.org".to_owned()];
    let scopes = Scopes::new(
        UpstreamClient::new(&upstream_of(&pki, &api).await),
        ScopeConfig::default(),
    )
    .with_aggregated(&groups);
    let shape = ObjectShape::new("Thing", FieldTable::metadata_only(true));
    let open = |group: &str| {
        let gvr = GroupVersionResource::new(group, "v1", "things");
        let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
        scopes.open(&key, &shape)
    };
    let (aggregated, other) = (open("example.org"), open("apps"));
    aggregated.ask().contradicted(ResourceVersion(7));
    assert!(!aggregated.is_current());
    assert!(other.is_current(), "its server's versions are its own");
    assert_eq!(scopes.timeline().number(), 0);
    other.ask().contradicted(ResourceVersion(7));
    assert!(!other.is_current());
    assert_eq!(scopes.timeline().number(), 1);
}

#[tokio::test]
async fn a_scope_that_is_listed_again_does_not_follow_upstream_meanwhile() {
    let pki = Pki::new();
    let hangs = Arc::new(AtomicBool::new(false));
    let hanging = Arc::new(AtomicUsize::new(0));
    let (is_hanging, count) = (Arc::clone(&hangs), Arc::clone(&hanging));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let hangs = is_hanging.load(Ordering::SeqCst);
        let query = request.uri().query().unwrap_or_default();
        let is_list = query.contains("sendInitialEvents");
        count.fetch_add(usize::from(hangs && is_list), Ordering::SeqCst);
        let body = if query.starts_with("watch=1") {
            let mark = stream::iter([Ok(Bytes::from_static(mark().as_bytes()))]);
            streamed(mark.chain(stream::pending()))
        } else {
            empty_list(7)
        };
        async move {
            if hangs {
                return std::future::pending().await;
            }
            let response = Response::builder().header("content-type", "application/json");
            response.body(body).unwrap()
        }
    })
    .await;
    let (scopes, scope) = open_pods_overdue_after(Duration::from_millis(1), &pki, &api).await;
    eventually(|| scope.upstream.is_following()).await;
    assert_eq!(scope.upstream.age(), None);
    hangs.store(true, Ordering::SeqCst);
    scopes.schema_changed(&scope.key.gvr);
    eventually(|| hanging.load(Ordering::SeqCst) > 0).await;
    assert!(!scope.upstream.is_following());
    assert!(scope.upstream.age().is_some(), "nothing arrives");
    // What is due then comes with the list, which must not begin again for that.
    let asked = hanging.load(Ordering::SeqCst);
    for _ in 0..50 {
        scope.lacks_events_after(scope.reader.event_version());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(hanging.load(Ordering::SeqCst), asked);
}
