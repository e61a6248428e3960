//! Handles that keep a scope open.
use std::ops::Deref;
use std::sync::Arc;

use super::cached::Scope;

/// Keeps a scope open while it is held. A watch drops it once it has subscribed: the scope stays
/// open for its subscriptions, too.
#[derive(Debug)]
pub struct ScopeHandle(Arc<Scope>);

impl ScopeHandle {
    pub(super) fn new(scope: &Arc<Scope>) -> Self {
        scope.idle.acquire();
        Self(Arc::clone(scope))
    }
}

impl Deref for ScopeHandle {
    type Target = Arc<Scope>;

    fn deref(&self) -> &Arc<Scope> {
        &self.0
    }
}

impl Drop for ScopeHandle {
    fn drop(&mut self) {
        self.0.idle.release();
    }
}
