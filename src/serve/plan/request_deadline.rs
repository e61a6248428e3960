//! The time that a client gives its request, of which upstream needs a part.
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout_at};

use super::read::ReadPlan;
use crate::serve::source::ForwardReason;

/// Divisor: a read may wait here for half of its time. Upstream has the rest.
const WAIT_DIVISOR: u32 = 2;
/// Longer than any read waits. Upstream's own limit is shorter.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// The moment up to which a read may wait here.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) struct RequestDeadline(Instant);

impl RequestDeadline {
    /// Returns the deadline of a read that came at a moment.
    pub(in crate::serve) fn of(read: &ReadPlan, arrived: std::time::Instant) -> Self {
        let wait = read
            .timeout
            .map_or(MAX_WAIT, |timeout| timeout / WAIT_DIVISOR);
        Self(Instant::from_std(arrived) + wait.min(MAX_WAIT))
    }

    /// Waits for what others make for the read as well; `None` if it takes too long.
    pub(in crate::serve) fn wait_for_others<T>(
        self,
        shared: impl Future<Output = Option<T>>,
    ) -> impl Future<Output = Option<T>> {
        timeout_at(self.0, shared)
            .map(Result::ok)
            .map(Option::flatten)
    }

    /// Waits for a step of the read. One that takes too long has the read forwarded, for this
    /// reason.
    pub(in crate::serve) fn wait<T>(
        self,
        step: impl Future<Output = Result<T, ForwardReason>>,
        reason: ForwardReason,
    ) -> impl Future<Output = Result<T, ForwardReason>> {
        // Not an async function: its future would have room for the step twice.
        timeout_at(self.0, step).map(move |result| result.unwrap_or(Err(reason)))
    }
}
