//! The open scopes.
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use watershed_protocol::GroupVersionResource;

use super::cached::Scope;
use super::key::ScopeKey;

/// The open scopes by type, shared by the registry and the scopes' tasks.
///
/// One lock, not a concurrent map: a request chooses its scope by a look at all scopes of the type,
/// in all versions, and opens one if none fits. Neither another opening nor the closing of idle
/// scopes may come between. The lock is held for microseconds, once a request.
#[derive(Clone, Default)]
pub(super) struct OpenScopes(Arc<Mutex<ScopesByType>>);

pub(super) type ScopesByType = HashMap<GroupVersionResource, HashMap<ScopeKey, Arc<Scope>>>;

impl OpenScopes {
    pub(super) fn lock(&self) -> MutexGuard<'_, ScopesByType> {
        self.0.lock()
    }

    /// Removes a scope that stopped, so that the next request opens a new one.
    pub(super) fn forget(&self, scope: &Arc<Scope>) {
        let mut open = self.lock();
        let Some(scopes) = open.get_mut(&scope.key.gvr) else {
            return;
        };
        // Another one may have been opened under the key.
        if scopes
            .get(&scope.key)
            .is_some_and(|known| Arc::ptr_eq(known, scope))
        {
            scopes.remove(&scope.key);
        }
        if scopes.is_empty() {
            open.remove(&scope.key.gvr);
        }
    }
}
