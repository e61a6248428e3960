//! Follows the CustomResourceDefinitions through a scope of their own.
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::types::Catalog;
use crate::scope::{REOPEN_AFTER, Scope, ScopeKey, Scopes};
use crate::store::{Interest, Snapshot, Subscription, SubscriptionStart, SubscriptionStep};
use watershed_protocol::{Encoding, GroupVersionResource, Representation};

/// The type whose objects define types.
pub(super) fn definitions() -> GroupVersionResource {
    GroupVersionResource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

/// The state of following them.
pub(super) enum DefinitionFeed {
    /// They are not followed before this moment: upstream has none, or the proxy may not see them.
    Waiting(Instant),
    /// The first list is under way.
    Opening(Arc<Scope>),
    /// Every change is seen.
    Following(Arc<Scope>, Subscription),
}

impl DefinitionFeed {
    pub(super) fn new() -> Self {
        Self::Waiting(Instant::now())
    }

    /// The definitions now; `None` when nothing is known of them.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        match self {
            Self::Following(scope, _) => Some(scope.reader.snapshot()),
            Self::Waiting(_) | Self::Opening(_) => None,
        }
    }

    /// Waits until [`DefinitionFeed::snapshot`] may have changed: it is another one, it came, or it
    /// went. Nothing is lost when the future is dropped.
    pub(super) async fn changed(&mut self, catalog: &Catalog, scopes: &Scopes) {
        loop {
            match self {
                Self::Waiting(until) => {
                    sleep_until(*until).await;
                    let gvr = definitions();
                    let Some(resource) = catalog.get(&gvr) else {
                        *self = Self::later();
                        return;
                    };
                    let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
                    *self = Self::Opening(scopes.open(&key, &resource.kind, &resource.fields));
                }
                Self::Opening(scope) => {
                    if scope.wait_until_settled().await.is_err() {
                        *self = Self::later();
                        return;
                    }
                    let (subscription, _) = scope
                        .reader
                        .subscribe(SubscriptionStart::Now, Interest::All);
                    *self = Self::Following(Arc::clone(scope), subscription);
                    return;
                }
                Self::Following(scope, subscription) => {
                    if has_more(subscription).await {
                        return;
                    }
                    // Listed anew, or stopped.
                    *self = Self::Opening(Arc::clone(scope));
                }
            }
        }
    }

    /// A stopped scope is not opened anew before [`REOPEN_AFTER`].
    fn later() -> Self {
        Self::Waiting(Instant::now() + REOPEN_AFTER + Duration::from_secs(1))
    }
}

/// Waits for a change. Returns false when the subscription ended.
async fn has_more(subscription: &mut Subscription) -> bool {
    poll_fn(|context| {
        loop {
            match subscription.step(context, 64, usize::MAX) {
                SubscriptionStep::Events(events) if events.is_empty() => {}
                SubscriptionStep::Events(_) => return Poll::Ready(true),
                SubscriptionStep::CaughtUp(_) | SubscriptionStep::Unfinished => {
                    return Poll::Pending;
                }
                SubscriptionStep::Expired { .. } | SubscriptionStep::Closed => {
                    return Poll::Ready(false);
                }
            }
        }
    })
    .await
}
