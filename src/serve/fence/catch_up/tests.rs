//! Catch-up watches beside a scope whose own watch is late.
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use tokio::sync::Semaphore;
use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, Representation, Selection};

use super::*;
use crate::body;
use crate::scope::{ScopeConfig, ScopeKey, Scopes};
use crate::serve::fence::costs::REQUEST;
use crate::serve::fence::{Fences, ProofCosts, ProofDemand};
use crate::store::Snapshot;
use crate::test_support::{Api, HTTP2, Pki, eventually, streamed, upstream_of};
use crate::upstream::UpstreamClient;

const LIST: &str = concat!(
    r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
    "\n"
);
/// The end of no initial events.
const MARK: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","#,
    r#""metadata":{"resourceVersion":"20","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    "\n"
);
const EVENT: &str = concat!(
    r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","#,
    r#""metadata":{"name":"c","namespace":"n","resourceVersion":"30"}}}"#,
    "\n"
);
/// The body of a catch-up watch: the event, and that nothing follows up to 40.
const SHOWN: &str = concat!(
    r#"{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#,
    r#""metadata":{"name":"c","namespace":"n","resourceVersion":"30"}}}"#,
    "\n",
    r#"{"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata","#,
    r#""apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"40"}}}"#,
    "\n"
);

const LATER_LIST: &str = concat!(
    r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"40"},"items":[]}"#,
    "\n"
);

/// Starts an API server that sends the event to the scope's own watch with the permit.
async fn api(pki: &Pki, list: &'static str, permit: &Arc<Semaphore>) -> Api {
    let permit = Arc::clone(permit);
    Api::start(pki, HTTP2, move |request, _| {
        let permit = Arc::clone(&permit);
        let query = request.uri().query().unwrap_or_default();
        let body = if !query.starts_with("watch=1") {
            body::full(list)
        } else if query.contains("sendInitialEvents") {
            let mark = stream::iter([Ok(Bytes::from_static(MARK.as_bytes()))]);
            let event = stream::once(async move {
                permit.acquire().await.unwrap().forget();
                Ok(Bytes::from_static(EVENT.as_bytes()))
            });
            streamed(mark.chain(event).chain(stream::pending()))
        } else {
            streamed(stream::iter([Ok(Bytes::from_static(SHOWN.as_bytes()))]))
        };
        async move {
            let response = Response::builder().header("content-type", "application/json");
            response.body(body).unwrap()
        }
    })
    .await
}

#[tokio::test]
async fn a_catch_up_watch_proves_nothing_before_the_cache_has_its_events() {
    let (pki, permit) = (Pki::new(), Arc::new(Semaphore::new(0)));
    let api = api(&pki, LIST, &permit).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let scopes = Scopes::new(client.clone(), ScopeConfig::default());
    let gvr = GroupVersionResource::new("", "v1", "configmaps");
    let key = ScopeKey::everything(gvr.clone(), Representation::whole(Encoding::Json));
    let fields = Arc::new(FieldTable::metadata_only(true));
    let scope = scopes.open(&key, &"ConfigMap".into(), &fields);
    eventually(|| scope.reader.version() == ResourceVersion(20)).await;
    let probe = Probe::new(client, &gvr, &Selection::default(), true);
    let watches = CatchUpWatches::new(probe);

    // The scope's own watch does not bring the event while this one waits for it.
    assert!(watches.watch(&scope).await.unwrap());
    assert_eq!(scope.reader.version(), ResourceVersion(20));
    assert!(scope.reader.snapshot().is_empty());

    permit.add_permits(1);
    eventually(|| scope.reader.version() == ResourceVersion(30)).await;
    assert!(watches.watch(&scope).await.unwrap());
    assert_eq!(scope.reader.version(), ResourceVersion(40));
    assert_eq!(scope.reader.snapshot().len(), 1);
}

#[tokio::test]
async fn a_long_list_is_proven_by_a_catch_up_watch_while_comparisons_are_late() {
    let (pki, permit) = (Pki::new(), Arc::new(Semaphore::new(1)));
    let api = api(&pki, LATER_LIST, &permit).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let scopes = Scopes::new(client.clone(), ScopeConfig::default());
    let gvr = GroupVersionResource::new("", "v1", "configmaps");
    let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
    let fields = Arc::new(FieldTable::metadata_only(true));
    let scope = scopes.open(&key, &"ConfigMap".into(), &fields);
    eventually(|| scope.reader.version() == ResourceVersion(30)).await;
    let fences = Fences::new(client);
    let fence = fences.of(&scope);
    fence.costs.measured(1, 300, Duration::from_secs(10));
    fence.costs.late();
    let proof_of = async |share: f64| {
        let cost = move |_: &ProofCosts, _: &Snapshot| REQUEST * share;
        let demand = ProofDemand {
            cost: &cost,
            identity: None,
        };
        fences.prove(&scope, demand, Instant::now()).await
    };
    let short = proof_of(0.01).await;
    assert!(short.is_err(), "upstream has it sooner: {short:?}");
    assert_eq!(scope.reader.version(), ResourceVersion(30));
    assert_eq!(proof_of(0.5).await.unwrap(), ResourceVersion(40));
}
