//! The running audit log: its policy, its sinks, and the requests whose end it still expects.
use std::time::Duration;

use ::metrics::Counter;
use bytes::Bytes;
use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use super::metrics;
use super::policy::AuditPolicy;
use super::queue::EventQueue;

/// Time at shutdown for requests that were cut to log their end.
const LAST_EVENTS: Duration = Duration::from_secs(1);
/// Time at shutdown for the sinks to empty their queues.
const FLUSH: Duration = Duration::from_secs(5);

/// The running audit log.
pub(super) struct AuditLog {
    pub(super) policy: AuditPolicy,
    sinks: Vec<EventQueue>,
    events: Counter,
    /// The requests that will still log their end.
    pub(super) open: TaskTracker,
}

impl AuditLog {
    pub(super) fn new(policy: AuditPolicy, sinks: Vec<EventQueue>) -> Self {
        Self {
            policy,
            sinks,
            events: metrics::EVENTS.with([]),
            open: TaskTracker::new(),
        }
    }

    /// Sends an event to all sinks.
    pub(super) fn emit(&self, line: &Bytes) {
        self.events.increment(1);
        for sink in &self.sinks {
            sink.push(line.clone());
        }
    }

    pub(super) async fn shut_down(&self) {
        self.open.close();
        let _ = tokio::time::timeout(LAST_EVENTS, self.open.wait()).await;
        join_all(self.sinks.iter().map(|sink| sink.flush(FLUSH))).await;
    }
}
