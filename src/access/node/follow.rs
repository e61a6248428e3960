//! Follows the pods, so that grants of nodes end with what they rest on.
#[cfg(test)]
mod tests;

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use watershed_protocol::{EventKind, FieldTable, ObjectAttributes};

use super::{NodeRights, PodStore, is_over};
use crate::scope::{REOPEN_AFTER, Retention, Scope, ScopeKey, Scopes};
use crate::store::{Interest, Subscription, SubscriptionStart, SubscriptionStep, WindowEvent};

/// Time after which a resumed watch counts as followed. The changes that it missed arrive at once.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Pause after a scope that stopped, or that memory is too short for. One that stopped is not
/// opened again before.
const PAUSE: Duration = REOPEN_AFTER.saturating_add(Duration::from_secs(1));

/// Follows the pods of a scope forever.
///
/// The scope is one like those of clients: when memory is short it is closed, and the clock decides
/// about grants until there is room for it again.
pub(in crate::access) async fn follow(
    scopes: Scopes,
    (key, retention): (ScopeKey, Retention),
    rights: Arc<NodeRights>,
) {
    let Some(fields) = FieldTable::builtin(&key.gvr, true).map(Arc::new) else {
        return;
    };
    let (Some(node), Some(phase)) = (
        fields.position("spec.nodeName"),
        fields.position("status.phase"),
    ) else {
        return;
    };
    loop {
        let of = (&key.gvr, key.representation);
        let choice = (Arc::clone(&key.selection), retention.clone());
        if let Ok(scope) = scopes.acquire(of, &"Pod".into(), &fields, |_| Some(choice)) {
            while scope.wait_until_settled().await.is_ok() {
                let store = PodStore {
                    reader: scope.reader.clone(),
                    encoding: key.representation.encoding,
                    node,
                    phase,
                };
                follow_scope(&scope, store, &rights).await;
                rights.set_lost(last_heard(&scope));
            }
            rights.forget_store();
        }
        sleep(PAUSE).await;
    }
}

fn last_heard(scope: &Scope) -> Instant {
    Instant::from_std(*scope.last_heard.lock())
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
                rights.set_followed();
            } else {
                rights.set_lost(last_heard(scope));
            }
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
