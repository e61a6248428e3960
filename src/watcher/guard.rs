//! A caller's right to see a watch, asked for as long as the watch is open.
use std::task::Context;

use tokio::time::Instant;

/// The state of a caller's right to see a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessStatus {
    /// The watch goes on.
    Granted,
    /// The watch delivers nothing for now: its next events may be from after a revocation.
    InDoubt,
    /// The watch ends.
    Revoked,
}

/// The right of a watch's caller to see it.
pub trait AccessGuard: Send + Unpin {
    /// Returns the state of the right. Wakes the task when it may have changed, except by the
    /// clock alone: see [`AccessGuard::due`].
    fn poll(&mut self, context: &mut Context<'_>) -> AccessStatus;

    /// Returns the latest moment of the next poll. It is not in the past after a poll.
    fn due(&self) -> Instant;
}
