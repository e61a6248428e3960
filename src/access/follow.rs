//! Follows the RBAC types through scopes of their own, so that every change is known, whoever reads
//! them.
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

use super::changes::Changes;
use super::metrics;
use super::rbac::{Affected, Kind};
use crate::scope::{REOPEN_AFTER, Scope, ScopeKey, ScopePhase, Scopes};
use crate::store::{Interest, Subscription, SubscriptionStart, SubscriptionStep, WindowEvent};
use watershed_protocol::{Encoding, EventKind, FieldTable, Representation};

/// When a watch goes on after a break, the changes in between come at once. It counts as followed
/// after this.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Follows all of them for ever.
pub(super) async fn follow(scopes: Scopes, changes: Arc<Changes>) {
    let [roles, bindings, cluster_roles, cluster_bindings] = Kind::ALL.map(|kind| {
        let (scopes, changes) = (scopes.clone(), Arc::clone(&changes));
        async move { follow_kind(kind, &scopes, &changes).await }
    });
    tokio::join!(roles, bindings, cluster_roles, cluster_bindings);
}

async fn follow_kind(kind: Kind, scopes: &Scopes, changes: &Changes) {
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
            // It is not opened anew before.
            sleep(REOPEN_AFTER + Duration::from_secs(1)).await;
        }
    }
}

/// Until the scope is listed anew or stops.
async fn follow_scope(kind: Kind, scope: &Scope, changes: &Changes) {
    let (mut subscription, _) = scope
        .reader
        .subscribe(SubscriptionStart::Now, Interest::All);
    // Whatever happened before is not known.
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
            () = take_in(kind, &mut subscription, changes) => return,
            turned = following.changed() => if turned.is_err() { return },
            () = settle => {}
        }
    }
}

/// Records changes until the subscription ends. Nothing is lost when the future is dropped.
async fn take_in(kind: Kind, subscription: &mut Subscription, changes: &Changes) {
    poll_fn(|context| {
        loop {
            match subscription.step(context, 64, usize::MAX) {
                SubscriptionStep::Events(events) => events
                    .iter()
                    .for_each(|event| changed(kind, event, changes)),
                SubscriptionStep::CaughtUp(_) => return Poll::Pending,
                SubscriptionStep::Expired { .. } | SubscriptionStep::Closed => {
                    return Poll::Ready(());
                }
            }
        }
    })
    .await;
}

fn changed(kind: Kind, event: &WindowEvent, changes: &Changes) {
    let old = event.previous.as_ref().map(|object| object.bytes.text());
    let new = (event.kind != EventKind::Deleted).then(|| event.object.bytes.text());
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
