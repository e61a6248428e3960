//! The steps of the keeper, each shown to free what it is about.
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, Representation};

use super::*;
use crate::body;
use crate::scope::{ObjectShape, Scope, ScopeConfig, ScopeHandle, ScopeOptions};
use crate::store::{Interest, SubscriptionEnd, SubscriptionStart, SubscriptionStep};
use crate::test_support::{Api, HTTP2, Pki, eventually, streamed, upstream_of};
use crate::upstream::UpstreamClient;

/// A scope of 40 KiB is small for it: it is loaded whatever the process takes. One that is larger
/// later is worth closing.
const LIMIT: usize = 8 << 20;
const OBJECTS: u64 = 16;
const CHANGES: u64 = 16;
/// Passes after all that is used and changed now.
const LATER: Duration = Duration::from_secs(100);

fn event(kind: &str, number: u64, version: u64, size: usize) -> String {
    let padding = "x".repeat(size);
    format!(
        concat!(
            r#"{{"type":"{}","object":{{"kind":"ConfigMap","apiVersion":"v1","#,
            r#""metadata":{{"name":"c-{:02}","namespace":"n","resourceVersion":"{}"}},"#,
            r#""data":{{"padding":"{}"}}}}}}"#,
            "\n"
        ),
        kind, number, version, padding
    )
}

/// Returns the objects, the mark behind them, and their changes.
fn events() -> String {
    let objects = (0..OBJECTS).map(|number| event("ADDED", number, number + 1, 1_000));
    let mark = concat!(
        r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","#,
        r#""metadata":{"resourceVersion":"20","#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n"
    );
    let changes =
        (0..CHANGES).map(|number| event("MODIFIED", number % OBJECTS, 21 + number, 5_000));
    objects.chain([mark.to_owned()]).chain(changes).collect()
}

async fn api(pki: &Pki) -> Api {
    const LIST: &str = concat!(
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"#,
        r#""items":[]}"#,
        "\n"
    );
    Api::start(pki, HTTP2, |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let body = if query.starts_with("watch=1") {
            let events = stream::iter([Ok(Bytes::from(events()))]);
            streamed(events.chain(stream::pending()))
        } else {
            body::full(LIST)
        };
        async move {
            let response = Response::builder().header("content-type", "application/json");
            response.body(body).unwrap()
        }
    })
    .await
}

/// Opens the scopes of types, and waits until all of their events have arrived.
async fn open<const N: usize>(scopes: &Scopes, resources: [&str; N]) -> [ScopeHandle; N] {
    let representation = Representation::whole(Encoding::Json);
    let shape = ObjectShape::new("ConfigMap", FieldTable::metadata_only(true));
    // All at once: a load measures the memory of the process, which is more than the limit here.
    let opened = resources.map(|resource| {
        let gvr = GroupVersionResource::new("", "v1", resource);
        let choice = (Arc::default(), ScopeOptions::default());
        scopes
            .acquire(&gvr, representation, &shape, |_| Some(choice))
            .unwrap()
    });
    for scope in &opened {
        eventually(|| scope.reader.stats().events as u64 == CHANGES).await;
    }
    opened
}

fn compress(scope: &Scope) {
    for run in scope.reader.snapshot().runs_after(None, None) {
        run.deflated();
    }
    assert!(is_compressed(scope));
}

fn is_compressed(scope: &Scope) -> bool {
    let snapshot = scope.reader.snapshot();
    snapshot.runs_after(None, None).all(|run| run.is_deflated())
}

#[tokio::test]
async fn each_step_frees_what_is_missed_least() {
    let pki = Pki::new();
    let api = api(&pki).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let budget = MemoryBudget::new(Some(LIMIT));
    let scopes = Scopes::new(client, ScopeConfig::default()).within(&budget);
    let mut keeper = PressureKeeper::new(scopes.clone());
    let [idle, watched] = open(&scopes, ["idle", "watched"]).await;
    let (mut watch, _) = watched
        .reader
        .subscribe(SubscriptionStart::Now, Interest::All);
    compress(&idle);
    let now = Instant::now() + LATER;
    let percent = |percent| LIMIT / 100 * percent;
    let names = || {
        let mut names: Vec<_> = scopes
            .all()
            .iter()
            .map(|it| it.key.gvr.resource.clone())
            .collect();
        names.sort();
        names.join(" ")
    };

    keeper.keep(now, LIMIT, percent(74)).await;
    assert!(is_compressed(&idle), "just used");
    for _ in 0..10 {
        keeper.age_forms().await;
    }
    let derived = budget.counted(MemoryClass::Derived);
    keeper.keep(now, LIMIT, percent(60)).await;
    assert!(is_compressed(&idle), "memory suffices");
    keeper.keep(now, LIMIT, percent(74)).await;
    assert!(!is_compressed(&idle));
    assert!(budget.counted(MemoryClass::Derived) < derived);
    assert_eq!(idle.reader.stats().events as u64, CHANGES);

    let history = budget.counted(MemoryClass::History);
    keeper.keep(now, LIMIT, percent(79)).await;
    assert_eq!(idle.reader.stats().events, 0, "all of a quiet type");
    assert!(budget.counted(MemoryClass::History) < history / 2);
    let closed = Arc::downgrade(&*idle);
    drop(idle);

    keeper.keep(now, LIMIT, percent(84)).await;
    assert_eq!(names(), "watched", "nobody used the other");
    eventually(|| closed.upgrade().is_none()).await;
    keeper.keep(now, LIMIT, percent(84)).await;
    keeper.keep(now, LIMIT, percent(89)).await;
    assert_eq!(names(), "watched");

    keeper.keep(now, LIMIT, percent(94)).await;
    assert_eq!(names(), "");
    drop(watched);
    eventually(|| budget.counted(MemoryClass::Objects) == 0).await;
    let end = watch.step(&Context::from_waker(Waker::noop()), 10, 1_000);
    assert!(
        matches!(end, SubscriptionStep::Ended(SubscriptionEnd::Closed)),
        "{end:?}"
    );
}
