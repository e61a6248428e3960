//! The pauses between attempts to derive a scope.
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::backoff::{Backoff, PauseRange};

/// Pauses after an attempt without a result.
const RETRIES: PauseRange = PauseRange::new(Duration::from_millis(200), Duration::from_secs(5));
/// Checks without an answer after which the derivation ends.
const MAX_FAILURES: u32 = 5;

/// Paces attempts, and counts those that fail.
pub(super) struct Attempts {
    pauses: Backoff,
    failures: u32,
    next: Option<Instant>,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self {
            pauses: RETRIES.backoff(),
            failures: 0,
            next: None,
        }
    }

    /// Delays the next attempt by this.
    pub(super) fn delay(&mut self, pause: Duration) {
        self.next = Some(Instant::now() + pause);
    }

    /// Delays the next attempt by a pause that grows until [`Attempts::advanced`].
    pub(super) fn retry(&mut self) {
        let pause = self.pauses.pause();
        self.delay(pause);
    }

    /// Counts an attempt that failed, and delays the next one. Returns `false` if there have been
    /// too many.
    pub(super) fn failed(&mut self, counts: bool) -> bool {
        self.failures += u32::from(counts);
        self.retry();
        self.failures < MAX_FAILURES
    }

    /// Notes that a check succeeded.
    pub(super) fn checked(&mut self) {
        self.failures = 0;
    }

    /// Notes that changes arrive.
    pub(super) fn advanced(&mut self) {
        self.pauses.reset();
    }

    /// Waits until the next attempt is due. Cancelling a call loses nothing.
    pub(super) async fn wait(&self) {
        if let Some(at) = self.next {
            sleep_until(at).await;
        }
    }

    /// Returns `true` if the next attempt is delayed.
    pub(super) fn is_delayed(&self) -> bool {
        self.next.is_some()
    }

    /// Ends the delay.
    pub(super) fn begin(&mut self) {
        self.next = None;
    }
}
