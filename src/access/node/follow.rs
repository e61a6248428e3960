//! Follows the pods, so that grants of nodes end with what they rest on.
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::time::sleep;
use watershed_protocol::{EventKind, FieldTable, ObjectAttributes};

use super::{NodeRights, PodStore, is_over};
use crate::access::scope_events::{self, PAUSE};
use crate::scope::{ObjectShape, Scope, ScopeKey, ScopeOptions, Scopes};
use crate::store::WindowEvent;

/// Follows the pods of a scope forever.
///
/// The scope is one like those of clients: when memory is short it is closed, and the clock decides
/// about grants until there is room for it again.
pub(in crate::access) async fn follow(
    scopes: Scopes,
    key: ScopeKey,
    options: ScopeOptions,
    rights: Arc<NodeRights>,
) {
    let Some(fields) = FieldTable::builtin(&key.gvr, true) else {
        return;
    };
    let (Some(node), Some(phase)) = (
        fields.position("spec.nodeName"),
        fields.position("status.phase"),
    ) else {
        return;
    };
    let shape = ObjectShape::new("Pod", fields);
    loop {
        let choice = (Arc::clone(&key.selection), options.clone());
        if let Ok(scope) = scopes.acquire(&key.gvr, key.representation, &shape, |_| Some(choice)) {
            while scope.wait_until_settled().await.is_ok() {
                let store = PodStore {
                    reader: scope.reader.clone(),
                    encoding: key.representation.encoding,
                    node,
                    phase,
                };
                follow_scope(&scope, store, &rights).await;
                rights.set_lost(scope.upstream.last_heard());
            }
            rights.forget_store();
            scope_events::pause_after(&scope).await;
        } else {
            // Memory is too short for it.
            sleep(PAUSE).await;
        }
    }
}

/// Notes the pods that leave until the scope is listed again or stops.
async fn follow_scope(scope: &Scope, store: PodStore, rights: &NodeRights) {
    let subscription = scope_events::subscribe(&scope.reader);
    rights.set_store(store.clone());
    let note = |event: &WindowEvent| {
        if let Some(node) = store.left(event) {
            rights.pod_left(node);
        }
    };
    let set_followed = |followed| {
        if followed {
            rights.set_followed();
        } else {
            rights.set_lost(scope.upstream.last_heard());
        }
    };
    scope_events::follow(scope, subscription, note, set_followed).await;
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
