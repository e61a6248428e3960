//! Follows the RBAC types in scopes of their own, so that every change is known even if no client
//! reads them.
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;
use watershed_protocol::{Encoding, EventKind, FieldTable, ItemBytes, Representation};

use super::changes::Changes;
use super::metrics;
use super::rbac::{Affected, RbacKind};
use crate::scope::{REOPEN_AFTER, Scope, ScopeKey, ScopePhase, Scopes};
use crate::store::{Interest, Subscription, SubscriptionStart, SubscriptionStep, WindowEvent};

/// Time after which a resumed watch counts as followed. The changes that it missed arrive at once,
/// and must be recorded before.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Follows all RBAC types forever.
pub(super) async fn follow(scopes: Scopes, changes: Arc<Changes>) {
    let [roles, bindings, cluster_roles, cluster_bindings] = RbacKind::ALL.map(|kind| {
        let (scopes, changes) = (scopes.clone(), Arc::clone(&changes));
        async move { follow_kind(kind, &scopes, &changes).await }
    });
    tokio::join!(roles, bindings, cluster_roles, cluster_bindings);
}

async fn follow_kind(kind: RbacKind, scopes: &Scopes, changes: &Changes) {
    let gvr = kind.gvr();
    let Some(fields) = FieldTable::builtin(&gvr, kind.is_namespaced()).map(Arc::new) else {
        return;
    };
    let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
    loop {
        let scope = scopes.open(&key, &kind.name().into(), &fields);
        if scope.wait_until_settled().await.is_ok() {
            follow_scope(kind, &scope, changes).await;
        }
        changes.set_followed(kind, false);
        if let ScopePhase::Stopped(_) = scope.phase() {
            // A stopped scope is not opened again before.
            sleep(REOPEN_AFTER + Duration::from_secs(1)).await;
        }
    }
}

/// Records the changes of a type until the scope is listed again or stops.
async fn follow_scope(kind: RbacKind, scope: &Scope, changes: &Changes) {
    let (mut subscription, _) = scope
        .reader
        .subscribe(SubscriptionStart::Now, Interest::All);
    // The changes before are unknown.
    changes.record(Affected::Everything);
    let mut following = scope.following();
    loop {
        let connected = *following.borrow_and_update();
        let settle = async {
            if connected {
                sleep(CATCH_UP).await;
            }
            changes.set_followed(kind, connected);
            pending::<()>().await;
        };
        tokio::select! {
            () = record_changes(kind, &mut subscription, changes) => return,
            changed = following.changed() => if changed.is_err() { return },
            () = settle => {}
        }
    }
}

/// Records changes until the subscription ends. Cancel safe: no event is lost.
async fn record_changes(kind: RbacKind, subscription: &mut Subscription, changes: &Changes) {
    poll_fn(|context| {
        loop {
            match subscription.step(context, 64, usize::MAX) {
                SubscriptionStep::Events(events) => events
                    .iter()
                    .for_each(|event| record_change(kind, event, changes)),
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

fn record_change(kind: RbacKind, event: &WindowEvent, changes: &Changes) {
    let previous = event.previous().map(|object| object.bytes.get());
    let old = previous.as_ref().map(ItemBytes::text);
    let present = event.object.bytes.get();
    let new = (event.kind != EventKind::Deleted).then(|| present.text());
    let namespace = event.object.attributes.namespace();
    if let Some(affected) = Affected::by(kind, namespace, old.as_deref(), new.as_deref()) {
        tracing::debug!(
            kind = kind.name(),
            object = event.object.key(),
            "RBAC changed"
        );
        metrics::changed(&kind.gvr().resource);
        changes.record(affected);
    }
}
