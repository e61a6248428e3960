//! The phase that a scope shows to its readers.
use std::sync::Arc;

use tokio::sync::watch;

use crate::scope::phase::{ReadyScope, ScopePhase};
use crate::upstream::Stopped;

/// The phase that a scope shows to its readers. Only the scope's task changes it, by the steps below.
pub(in crate::scope) struct ShownPhase(watch::Sender<ScopePhase>);

impl ShownPhase {
    /// Returns the phase of a scope that begins, and what its readers see of it.
    pub(in crate::scope) fn syncing() -> (Self, watch::Receiver<ScopePhase>) {
        let (shown, seen) = watch::channel(ScopePhase::Syncing);
        (Self(shown), seen)
    }

    /// Returns the present phase.
    pub(super) fn now(&self) -> ScopePhase {
        self.0.borrow().clone()
    }

    /// Returns `true` if there is a state that readers get, or would get if it were not too old.
    pub(super) fn is_held(&self) -> bool {
        matches!(
            *self.0.borrow(),
            ScopePhase::Ready(_) | ScopePhase::Stale(_)
        )
    }

    /// Returns `true` if the state may be of an older schema than upstream's.
    pub(super) fn is_schema_changed(&self) -> bool {
        matches!(*self.0.borrow(), ScopePhase::SchemaChanged)
    }

    /// Shows a state that is upstream's.
    pub(super) fn serve(&self, ready: Arc<ReadyScope>) {
        self.0.send_replace(ScopePhase::Ready(ready));
    }

    /// Shows other properties of a state that is held.
    pub(super) fn renew(&self, ready: &Arc<ReadyScope>) {
        self.0.send_modify(|phase| match phase {
            ScopePhase::Ready(shown) | ScopePhase::Stale(shown) => *shown = Arc::clone(ready),
            ScopePhase::Syncing
            | ScopePhase::Failing
            | ScopePhase::Quarantined
            | ScopePhase::SchemaChanged
            | ScopePhase::Stopped(_) => {}
        });
    }

    /// Shows that the state was not followed for longer than allowed.
    pub(super) fn exceed_age(&self, ready: Arc<ReadyScope>) {
        self.0.send_replace(ScopePhase::Stale(ready));
    }

    /// Shows that the state is not upstream's.
    pub(super) fn quarantine(&self) {
        self.0.send_replace(ScopePhase::Quarantined);
    }

    /// Shows that the type's schema has changed, if a state of the former one is held.
    pub(super) fn change_schema(&self) {
        if self.is_held() {
            self.await_schema();
        }
    }

    /// Shows that upstream has yet to take a changed schema into use.
    pub(super) fn await_schema(&self) {
        self.0.send_replace(ScopePhase::SchemaChanged);
    }

    /// Shows that nothing is held, and that requests need not wait.
    pub(super) fn fail(&self) {
        self.0.send_replace(ScopePhase::Failing);
    }

    /// Shows that requests need not wait for the first list, if they do.
    pub(super) fn fail_first_list(&self) {
        if matches!(*self.0.borrow(), ScopePhase::Syncing) {
            self.fail();
        }
    }

    /// Shows that the scope cannot be cached for now.
    pub(super) fn stop(&self, stopped: Stopped) {
        self.0.send_replace(ScopePhase::Stopped(stopped));
    }
}
