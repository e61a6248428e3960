//! Follows the objects of one type, on which the catalog depends, through a scope of their own.
//!
//! A scope can stop: the proxy's right is taken away, or a load balancer answers in place of the
//! API server. What was known of the objects counts for [`FollowedObjects::keep`] then, and the
//! scope is opened anew soon. What changed meanwhile shows in the objects that it brings.
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::types::Catalog;
use crate::backoff::PauseRange;
use crate::scope::{REOPEN_AFTER, Scope, ScopeKey, Scopes};
use crate::store::{Interest, Snapshot, Subscription, SubscriptionStart, SubscriptionStep};
use crate::upstream::Stopped;
use watershed_protocol::{Encoding, GroupVersionResource, Representation};

/// Pauses before objects that were followed are followed again. Up to a quarter of each is jitter.
const FOLLOW_AGAIN: PauseRange = PauseRange::new(Duration::from_secs(1), REOPEN_AFTER);

/// The objects that a feed follows.
#[derive(Clone, Debug)]
pub(super) struct FollowedObjects {
    /// Their type.
    pub(super) gvr: GroupVersionResource,
    /// Time that they count for after they could be followed last.
    pub(super) keep: Duration,
    /// The consequence of their loss, for the log.
    pub(super) loss: &'static str,
    /// Operators must know of the loss.
    pub(super) is_serious: bool,
}

/// Follows objects, as long as that is possible.
pub(super) struct ObjectFeed {
    objects: FollowedObjects,
    state: FeedState,
    reported: Reported,
}

/// News of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectNews {
    /// They changed, or may have: [`ObjectFeed::snapshot`] has them.
    Changed,
    /// Nothing is known of them (any more).
    Unknown,
}

/// The state of following them.
enum FeedState {
    /// They are not followed: upstream has none, or the proxy may not see them.
    Waiting {
        /// The next attempt.
        until: Instant,
        /// The scope that stopped.
        stopped: Option<Arc<Scope>>,
    },
    /// The first list is under way.
    Opening(Arc<Scope>),
    /// Every change is seen.
    Following(Arc<Scope>, Subscription),
}

/// The newest report to those who wait for news.
#[derive(Clone, Copy)]
enum Reported {
    /// Nothing yet.
    Nothing,
    /// The objects, and every change of them.
    All,
    /// The objects as they were when they could be followed last.
    Last {
        /// They count until this moment.
        until: Instant,
        /// Attempts to follow them again.
        attempts: u32,
    },
    /// The loss of all objects.
    Unknown,
}

impl ObjectFeed {
    pub(super) fn new(objects: FollowedObjects) -> Self {
        Self {
            objects,
            state: FeedState::Waiting {
                until: Instant::now(),
                stopped: None,
            },
            reported: Reported::Nothing,
        }
    }

    /// Returns the objects now; `None` while they are not followed, or are of a state that upstream has
    /// left for an older one.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        match &self.state {
            FeedState::Following(scope, _) => scope.is_current().then(|| scope.reader.snapshot()),
            FeedState::Waiting { .. } | FeedState::Opening(_) => None,
        }
    }

    /// Waits for news. Nothing is lost when the future is dropped.
    pub(super) async fn news(&mut self, catalog: &Catalog, scopes: &Scopes) -> ObjectNews {
        loop {
            let news = match self.reported {
                Reported::Last { until, .. } => timeout_at(until, self.step(catalog, scopes)).await,
                _ => Ok(self.step(catalog, scopes).await),
            };
            match news {
                Ok(Some(news)) => return news,
                Ok(None) => {}
                Err(_) => {
                    let FollowedObjects {
                        gvr, keep, loss, ..
                    } = &self.objects;
                    tracing::warn!("{gvr} could not be followed for {keep:?}; {loss}");
                    return self.forget();
                }
            }
        }
    }

    /// Takes one step. Nothing is lost when the future is dropped.
    async fn step(&mut self, catalog: &Catalog, scopes: &Scopes) -> Option<ObjectNews> {
        match &mut self.state {
            FeedState::Waiting { until, stopped } => {
                let is_due = tokio::select! {
                    biased;
                    () = recovered(stopped.as_deref()) => false,
                    () = sleep_until(*until) => true,
                };
                if let Some(stopped) = stopped.take() {
                    if !is_due {
                        self.state = FeedState::Opening(stopped);
                        return None;
                    }
                    scopes.forget(&stopped);
                }
                let gvr = &self.objects.gvr;
                let Some(resource) = catalog.get(gvr) else {
                    return self.stopped(&Stopped::Vanished, None);
                };
                let key = ScopeKey::everything(gvr.clone(), Representation::whole(Encoding::Json));
                let scope = scopes.open(&key, &resource.shape);
                self.state = FeedState::Opening(scope);
                None
            }
            FeedState::Opening(scope) => {
                let scope = Arc::clone(scope);
                let counts = matches!(self.reported, Reported::All);
                let followed = tokio::select! {
                    followed = scope.wait_until_followed() => followed,
                    age = lost_for_long(&scope, self.objects.keep), if counts => {
                        return Some(self.lost(age));
                    }
                };
                if let Err(why) = followed {
                    return self.stopped(&why, Some(scope));
                }
                let (subscription, _) = scope
                    .reader
                    .subscribe(SubscriptionStart::Now, Interest::All);
                self.state = FeedState::Following(scope, subscription);
                self.reported = Reported::All;
                Some(ObjectNews::Changed)
            }
            FeedState::Following(scope, subscription) => {
                let has_more = tokio::select! {
                    has_more = has_more(subscription) => has_more,
                    age = lost_for_long(scope, self.objects.keep) => {
                        self.state = FeedState::Opening(Arc::clone(scope));
                        return Some(self.lost(age));
                    }
                };
                if has_more {
                    return Some(ObjectNews::Changed);
                }
                // Listed anew, or stopped.
                self.state = FeedState::Opening(Arc::clone(scope));
                None
            }
        }
    }

    /// Forgets the objects, of which nothing has come for `age`. Upstream may have failed, or the watch of a
    /// quiet type was silent.
    fn lost(&mut self, age: Duration) -> ObjectNews {
        let FollowedObjects { gvr, loss, .. } = &self.objects;
        let seconds = age.as_secs();
        if self.objects.is_serious {
            tracing::warn!("nothing has come of {gvr} for {seconds}s; {loss}");
        } else {
            tracing::info!("nothing has come of {gvr} for {seconds}s; {loss}");
        }
        self.forget()
    }

    /// Forgets the objects.
    fn forget(&mut self) -> ObjectNews {
        self.reported = Reported::Unknown;
        ObjectNews::Unknown
    }

    /// Decides what counts now, and when the objects are followed again.
    fn stopped(&mut self, why: &Stopped, stopped: Option<Arc<Scope>>) -> Option<ObjectNews> {
        let now = Instant::now();
        let (until, attempts) = match self.reported {
            Reported::Nothing | Reported::Unknown => {
                let is_first = matches!(self.reported, Reported::Nothing);
                self.reported = Reported::Unknown;
                let until = now + REOPEN_AFTER + Duration::from_secs(1);
                self.state = FeedState::Waiting { until, stopped };
                return is_first.then_some(ObjectNews::Unknown);
            }
            Reported::All => {
                tracing::warn!(
                    reason = %why,
                    "{} are not followed for the moment; what is known of them stays",
                    self.objects.gvr,
                );
                (now + self.objects.keep, 0)
            }
            Reported::Last { until, attempts } => (until, attempts + 1),
        };
        self.reported = Reported::Last { until, attempts };
        let pause = FOLLOW_AGAIN.after(attempts);
        self.state = FeedState::Waiting {
            until: now + pause.mul_f64(0.75 + fastrand::f64() / 4.0),
            stopped,
        };
        None
    }
}

/// Waits until upstream's changes have not arrived for this time. Returns how long they have not.
async fn lost_for_long(scope: &Scope, keep: Duration) -> Duration {
    let mut delivering = scope.upstream.delivering();
    loop {
        let _ = delivering.wait_for(|is_delivering| !is_delivering).await;
        let lost = scope.upstream.age().unwrap_or_default();
        let again = delivering.wait_for(|is_delivering| *is_delivering);
        if timeout(keep.saturating_sub(lost), again).await.is_err() {
            return lost.max(keep);
        }
    }
}

/// Waits until a scope that stopped is ready after all. Never returns without one.
async fn recovered(stopped: Option<&Scope>) {
    match stopped {
        Some(scope) => scope.wait_until_recovered().await,
        None => pending().await,
    }
}

/// Waits for a change. Returns `false` when the subscription ended.
async fn has_more(subscription: &mut Subscription) -> bool {
    poll_fn(|context| {
        loop {
            match subscription.step(context, 64, usize::MAX) {
                SubscriptionStep::Events(events) if events.is_empty() => {}
                SubscriptionStep::Events(_) => return Poll::Ready(true),
                SubscriptionStep::CaughtUp(_) | SubscriptionStep::Unfinished => {
                    return Poll::Pending;
                }
                SubscriptionStep::Ended(_) => return Poll::Ready(false),
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use http::Response;
    use watershed_protocol::FieldTable;

    use super::*;
    use crate::scope::{ObjectShape, ScopeConfig};
    use crate::test_support::{Api, HTTP2, Pki, soon, streamed, text, typed, upstream_of};
    use crate::upstream::UpstreamClient;

    const KEEP: Duration = Duration::from_mins(5);

    fn definitions() -> FollowedObjects {
        FollowedObjects {
            gvr: GroupVersionResource::new(
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
            ),
            keep: KEEP,
            loss: "nothing is known",
            is_serious: true,
        }
    }

    #[tokio::test]
    async fn objects_that_cannot_be_followed_any_more_count_for_a_while() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async { text("") }).await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let (scopes, catalog) = (
            Scopes::new(client, ScopeConfig::default()),
            Catalog::default(),
        );
        tokio::time::pause();
        let began = Instant::now();
        // Upstream does not serve definitions.
        let mut never = ObjectFeed::new(definitions());
        assert_eq!(never.news(&catalog, &scopes).await, ObjectNews::Unknown);
        let mut once = ObjectFeed {
            reported: Reported::All,
            ..ObjectFeed::new(definitions())
        };
        assert_eq!(once.news(&catalog, &scopes).await, ObjectNews::Unknown);
        let second = Duration::from_secs(1);
        assert!((KEEP..KEEP + second).contains(&began.elapsed()));
        // Nobody is told twice.
        let hour = Duration::from_hours(1);
        assert!(
            tokio::time::timeout(hour, once.news(&catalog, &scopes))
                .await
                .is_err()
        );
    }

    /// A scope that cannot be followed is stale after a while, and does not stop.
    #[tokio::test]
    async fn objects_count_for_a_while_after_the_loss_of_their_watch() {
        const LIST: &str = concat!(
            r#"{"kind":"CustomResourceDefinitionList","apiVersion":"apiextensions.k8s.io/v1","#,
            r#""metadata":{"resourceVersion":"7"},"items":[]}"#,
            "\n"
        );
        const MARK: &str = concat!(
            r#"{"type":"BOOKMARK","object":{"kind":"CustomResourceDefinition","#,
            r#""apiVersion":"apiextensions.k8s.io/v1","metadata":{"resourceVersion":"8","#,
            r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            "\n"
        );
        let (pki, is_broken) = (Pki::new(), Arc::new(AtomicBool::new(false)));
        let breaks = Arc::clone(&is_broken);
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let query = request.uri().query().unwrap_or_default();
            let response = if breaks.load(Ordering::SeqCst) {
                typed(503, "application/json", "{}")
            } else if query.starts_with("watch=1") {
                let mark = stream::iter([Ok(Bytes::from_static(MARK.as_bytes()))]);
                let response = Response::builder().header("content-type", "application/json");
                let body = streamed(mark.chain(stream::pending()));
                response.body(body).unwrap()
            } else {
                typed(200, "application/json", LIST)
            };
            async move { response }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let scopes = Scopes::new(client, ScopeConfig::default());
        let catalog = Catalog::default();
        let key = ScopeKey::everything(definitions().gvr, Representation::whole(Encoding::Json));
        let fields = FieldTable::metadata_only(false);
        let shape = ObjectShape::new("CustomResourceDefinition", fields);
        let scope = scopes.open(&key, &shape);
        let mut feed = ObjectFeed {
            objects: definitions(),
            state: FeedState::Opening(scope),
            reported: Reported::Nothing,
        };
        let news = soon(feed.news(&catalog, &scopes)).await;
        assert_eq!(news, ObjectNews::Changed);
        is_broken.store(true, Ordering::SeqCst);
        api.cut();
        tokio::time::pause();
        let began = Instant::now();
        assert_eq!(feed.news(&catalog, &scopes).await, ObjectNews::Unknown);
        assert!((KEEP..2 * KEEP).contains(&began.elapsed()));
        assert!(feed.snapshot().is_none());
        tokio::time::resume();
        is_broken.store(false, Ordering::SeqCst);
        let news = soon(feed.news(&catalog, &scopes)).await;
        assert_eq!(news, ObjectNews::Changed);
    }
}
