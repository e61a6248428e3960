//! Follows the pods, so that grants of nodes end with what they rest on.
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;
use watershed_protocol::{EventKind, FieldTable, ObjectAttributes};

use super::{NodeRights, PodStore, is_over};
use crate::scope::{REOPEN_AFTER, Scope, ScopeKey, ScopePhase, Scopes};
use crate::store::{Interest, Subscription, SubscriptionStart, SubscriptionStep, WindowEvent};

/// Time after which a resumed watch counts as followed. The changes that it missed arrive at once.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Follows the pods of a scope forever.
pub(in crate::access) async fn follow(scopes: Scopes, key: ScopeKey, rights: Arc<NodeRights>) {
    let Some(fields) = FieldTable::builtin(&key.gvr, true).map(Arc::new) else {
        return;
    };
    let (Some(node), Some(phase)) = (
        fields.position("spec.nodeName"),
        fields.position("status.phase"),
    ) else {
        return;
    };
    rights.set_followed(false);
    loop {
        let scope = scopes.open(&key, &"Pod".into(), &fields);
        if scope.wait_until_settled().await.is_ok() {
            let store = PodStore {
                reader: scope.reader.clone(),
                encoding: key.representation.encoding,
                node,
                phase,
            };
            follow_scope(&scope, store, &rights).await;
        }
        rights.set_followed(false);
        if let ScopePhase::Stopped(_) = scope.phase() {
            // A stopped scope is not opened again before.
            sleep(REOPEN_AFTER + Duration::from_secs(1)).await;
        }
    }
}

/// Notes the pods that leave until the scope is listed again or stops.
async fn follow_scope(scope: &Scope, store: PodStore, rights: &NodeRights) {
    let (mut subscription, _) = scope
        .reader
        .subscribe(SubscriptionStart::Now, Interest::All);
    rights.set_store(store.clone());
    let mut following = scope.following();
    loop {
        let connected = *following.borrow_and_update();
        let settle = async {
            if connected {
                sleep(CATCH_UP).await;
            }
            rights.set_followed(connected);
            pending::<()>().await;
        };
        tokio::select! {
            () = note_departures(&mut subscription, &store, rights) => return,
            changed = following.changed() => if changed.is_err() { return },
            () = settle => {}
        }
    }
}

/// Notes the pods that leave until the subscription ends. Cancel safe: no event is lost.
async fn note_departures(subscription: &mut Subscription, store: &PodStore, rights: &NodeRights) {
    poll_fn(|context| {
        loop {
            match subscription.step(context, 64, usize::MAX) {
                SubscriptionStep::Events(events) => {
                    let left = events.iter().filter_map(|event| store.left(event));
                    left.for_each(|node| rights.pod_left(node));
                }
                SubscriptionStep::CaughtUp(_) | SubscriptionStep::Unfinished => {
                    return Poll::Pending;
                }
                SubscriptionStep::Expired { .. }
                | SubscriptionStep::Paused
                | SubscriptionStep::Closed => {
                    return Poll::Ready(());
                }
            }
        }
    })
    .await;
}

impl PodStore {
    /// Returns the node that has a pod less after an event.
    fn left<'a>(&self, event: &'a WindowEvent) -> Option<&'a str> {
        let now = &event.object.attributes;
        if event.kind == EventKind::Deleted {
            return self.host(now);
        }
        let before = self.host(event.previous_attributes()?)?;
        (self.host(now) != Some(before)).then_some(before)
    }

    /// Returns the node of a pod that has not ended.
    fn host<'a>(&self, pod: &'a ObjectAttributes) -> Option<&'a str> {
        let node = pod.field(self.node);
        (!node.is_empty() && !is_over(pod.field(self.phase))).then_some(node)
    }
}
