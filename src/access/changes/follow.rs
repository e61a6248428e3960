//! Follows the RBAC types in scopes of their own, so that every change is known even if no client
//! reads them. A type is followed from the moment on from which it decides about requests.
use std::sync::Arc;
use std::time::Duration;

use watershed_protocol::{
    Encoding, EventKind, FieldTable, ItemBytes, Representation, ResourceVersion,
};

use super::Changes;
use super::rbac::{Affected, RbacKind};
use crate::access::config::FollowedRbac;
use crate::access::metrics;
use crate::access::scope_events;
use crate::scope::{ObjectShape, Scope, ScopeKey, ScopePhase, Scopes};
use crate::store::WindowEvent;

/// Longest wait for one version. Afterwards the next one is waited for.
const VERSION_WAIT: Duration = Duration::from_hours(1);

/// Follows the RBAC types forever, each once it is wanted.
pub(in crate::access) async fn follow(
    scopes: Scopes,
    changes: Arc<Changes>,
    followed: FollowedRbac,
) {
    let [roles, bindings, cluster_roles, cluster_bindings] = RbacKind::ALL.map(|kind| {
        let (scopes, changes) = (scopes.clone(), Arc::clone(&changes));
        async move { follow_kind(kind, followed, &scopes, &changes).await }
    });
    tokio::join!(roles, bindings, cluster_roles, cluster_bindings);
}

/// Returns `true` once upstream has listed a type of RBAC that is followed from the start, and
/// `false` if the first attempt at it fails, or takes longer than requests may wait for a list. The
/// list is the one that [`follow`] goes on from.
pub async fn lists_rbac(scopes: Scopes, followed: FollowedRbac) -> bool {
    let Some(scope) = open(RbacKind::ClusterRoles, followed, &scopes) else {
        return false;
    };
    scope
        .wait_until_ready(scopes.config().sync_wait)
        .await
        .is_ok()
}

/// Returns the scope of a type of RBAC; opens it if it is not open.
///
/// Any state will do to begin with: changes that it lacks arrive as events. On a thousand nodes, a
/// zone's proxy would otherwise have to prove to each one that it has the most recent state. Other
/// proxies begin with that: after a restart of a tier, its clients go on from newer versions than
/// that of an older state.
fn open(kind: RbacKind, followed: FollowedRbac, scopes: &Scopes) -> Option<Arc<Scope>> {
    let gvr = kind.gvr();
    let fields = FieldTable::builtin(&gvr, kind.is_namespaced())?;
    let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
    let shape = ObjectShape::new(kind.name(), fields);
    Some(match followed {
        FollowedRbac::All => scopes.open(&key, &shape),
        FollowedRbac::AsNeeded => scopes.open_for_changes(&key, &shape),
    })
}

async fn follow_kind(kind: RbacKind, followed: FollowedRbac, scopes: &Scopes, changes: &Changes) {
    changes.until_wanted(kind).await;
    loop {
        let Some(scope) = open(kind, followed, scopes) else {
            return;
        };
        if scope.wait_until_settled().await.is_ok() {
            follow_scope(kind, &scope, changes).await;
        }
        changes.set_followed(kind, false);
        changes.set_objects(kind, None);
        if let ScopePhase::Stopped(_) = scope.phase() {
            scope_events::pause_after(&scope).await;
        }
    }
}

/// Records the changes of a type until the scope is listed again or stops.
async fn follow_scope(kind: RbacKind, scope: &Scope, changes: &Changes) {
    let subscription = scope_events::subscribe(&scope.reader);
    changes.begin(kind);
    changes.set_objects(kind, Some(scope.reader.clone()));
    let record = |event: &WindowEvent| record_change(kind, event, changes);
    let set_followed = |followed| changes.set_followed(kind, followed);
    tokio::select! {
        () = scope_events::follow(scope, subscription, record, set_followed) => {}
        () = note_versions(kind, scope, changes) => {}
    }
}

/// Notes each moment at which upstream shows a newer version of a type. Never returns.
async fn note_versions(kind: RbacKind, scope: &Scope, changes: &Changes) {
    // Proofs for clients' reads carry the scope beyond its events, and changes are known by events.
    let mut newest = scope.reader.event_version();
    loop {
        let next = ResourceVersion(scope.reader.version().0.saturating_add(1));
        scope.wait_until_version(next, VERSION_WAIT).await;
        let reached = scope.reader.event_version();
        if reached > newest {
            newest = reached;
            changes.advance(kind);
        }
    }
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
