//! Signals to the task of a scope.
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

/// Signals from the rest of the proxy to the task of a scope, which reacts between two steps.
#[derive(Debug, Default)]
pub(in crate::scope) struct ScopeSignals {
    stop: CancellationToken,
    schema_changed: Notify,
    type_removed: Notify,
}

/// One thing that the task is told.
#[derive(Clone, Copy, Debug)]
pub(in crate::scope) enum ScopeSignal {
    /// The scope is to be closed.
    Stop,
    /// Upstream defines the type anew.
    SchemaChanged,
    /// Upstream serves the type no longer.
    TypeRemoved,
}

impl ScopeSignals {
    /// Tells the task to close the scope. This cannot be taken back.
    pub(in crate::scope) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the scope is to be closed.
    pub(in crate::scope) fn stopped(&self) -> WaitForCancellationFuture<'_> {
        self.stop.cancelled()
    }

    pub(in crate::scope) fn schema_changed(&self) {
        self.schema_changed.notify_one();
    }

    pub(in crate::scope) fn type_removed(&self) {
        self.type_removed.notify_one();
    }

    /// Returns the next signal for the task. Cancelling a call loses nothing.
    pub(in crate::scope) async fn next(&self) -> ScopeSignal {
        tokio::select! {
            () = self.stop.cancelled() => ScopeSignal::Stop,
            () = self.schema_changed.notified() => ScopeSignal::SchemaChanged,
            () = self.type_removed.notified() => ScopeSignal::TypeRemoved,
        }
    }
}
