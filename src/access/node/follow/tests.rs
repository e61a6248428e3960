//! The follower among the other users of memory, and at an API server that refuses.
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use tokio_util::task::AbortOnDropHandle;
use watershed_protocol::{Encoding, GroupVersionResource, Representation};

use super::super::tests::watch;
use super::*;
use crate::access::node::NodeGrantMode;
use crate::body;
use crate::budget::{MemoryBudget, MemoryClass};
use crate::scope::ScopeConfig;
use crate::test_support::{Api, HTTP2, Pki, eventually, streamed, upstream_of};
use crate::upstream::UpstreamClient;

const LIST: &str = concat!(
    r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
    "\n"
);

/// Returns the creation of a pod on the node `east` that names the secret `key`.
fn added(size: usize) -> String {
    let padding = "x".repeat(size);
    format!(
        concat!(
            r#"{{"type":"ADDED","object":{{"kind":"Pod","apiVersion":"v1","#,
            r#""metadata":{{"name":"a","namespace":"here","resourceVersion":"9","#,
            r#""annotations":{{"a":"{}"}}}},"#,
            r#""spec":{{"nodeName":"east","imagePullSecrets":[{{"name":"key"}}]}}}}}}"#,
            "\n"
        ),
        padding
    )
}

/// A follower of pods that no client reads.
struct Follower {
    _api: Api,
    _task: AbortOnDropHandle<()>,
    scopes: Scopes,
    rights: Arc<NodeRights>,
}

impl Follower {
    async fn start(budget: &MemoryBudget, size_of_pod: usize) -> Self {
        Self::refused_at_first(budget, size_of_pod, 0).await
    }

    /// The same at an API server that refuses so many requests before it answers.
    async fn refused_at_first(budget: &MemoryBudget, size_of_pod: usize, refusals: usize) -> Self {
        let pki = Pki::new();
        let event = Bytes::from(added(size_of_pod));
        let asked = Arc::new(AtomicUsize::new(0));
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let query = request.uri().query().unwrap_or_default();
            let (code, body) = if asked.fetch_add(1, Ordering::SeqCst) < refusals {
                (403, body::full("{}"))
            } else if query.contains("sendInitialEvents") {
                (422, body::full("{}"))
            } else if query.starts_with("watch=1") {
                let events = stream::iter([Ok(event.clone())]);
                (200, streamed(events.chain(stream::pending())))
            } else {
                (200, body::full(LIST))
            };
            async move {
                let response = Response::builder().header("content-type", "application/json");
                response.status(code).body(body).unwrap()
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let scopes = Scopes::new(client, ScopeConfig::default()).within(budget);
        let pods = GroupVersionResource::new("", "v1", "pods");
        let key = ScopeKey::everything(pods, Representation::whole(Encoding::Json));
        let options = ScopeOptions::default().of_source(scopes.config().window);
        let rights = Arc::new(NodeRights::new(NodeGrantMode::FollowPods, Arc::default()));
        let follow = follow(scopes.clone(), key, options, Arc::clone(&rights));
        Self {
            _api: api,
            _task: AbortOnDropHandle::new(tokio::spawn(follow)),
            scopes,
            rights,
        }
    }
}

#[tokio::test]
async fn pods_are_not_loaded_before_memory_suffices() {
    let budget = MemoryBudget::new(Some(100 << 30));
    let others = budget.charge(MemoryClass::Objects, budget.free().unwrap());
    let follower = Follower::start(&budget, 1).await;
    // It runs until it has asked for the scope.
    tokio::task::yield_now().await;
    assert!(follower.scopes.all().is_empty());
    drop(others);
    tokio::time::pause();
    tokio::time::advance(PAUSE).await;
    tokio::time::resume();
    eventually(|| follower.rights.followed().is_some()).await;
}

#[tokio::test]
async fn pods_are_followed_as_soon_as_a_refusal_has_passed() {
    let budget = MemoryBudget::default();
    let follower = Follower::refused_at_first(&budget, 1, 1).await;
    eventually(|| follower.rights.followed().is_some()).await;
}

#[tokio::test]
async fn pods_are_closed_as_others_are_when_memory_is_short() {
    // The list is small for it, and the pods that follow are worth closing.
    let budget = MemoryBudget::new(Some(8 << 20));
    let Follower {
        scopes,
        rights,
        _api,
        _task,
    } = Follower::start(&budget, 100_000).await;
    let secret = watch("east", "secrets", "key");
    eventually(|| rights.grant_reason(&secret).is_some()).await;
    let reason = rights.grant_reason(&secret).unwrap();
    assert_eq!(rights.unknown_since(&reason), None);
    let now = std::time::Instant::now();
    eventually(|| scopes.close_largest(now).is_some()).await;
    // The clock decides from now on, and nothing of the pods is held.
    eventually(|| rights.unknown_since(&reason).is_some()).await;
    eventually(|| rights.pods.read().store.is_none()).await;
    assert!(rights.still_holds(&reason, &secret));
    eventually(|| budget.counted(MemoryClass::Objects) == 0).await;
}
