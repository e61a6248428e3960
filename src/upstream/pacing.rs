//! Pauses between attempts that succeed at first.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{Backoff, PauseRange};

/// Time without a failure after which [`Pacing`] forgets the failures before it.
const HEALTHY: Duration = Duration::from_mins(2);

/// Spaces attempts that succeed at first and fail soon after, such as a list that is followed by
/// an event which does not fit it. A single success is no sign of health there, so the pauses
/// grow until nothing has failed for a while.
#[derive(Debug)]
pub(super) struct Pacing {
    backoff: Backoff,
    /// The earliest moment of the last attempt.
    last: Option<Instant>,
    /// The first success since the last failure.
    healthy_since: Option<Instant>,
}

impl Pacing {
    pub(super) fn new(pauses: PauseRange) -> Self {
        Self {
            backoff: pauses.backoff(),
            last: None,
            healthy_since: None,
        }
    }

    /// Notes a success.
    pub(super) fn succeeded(&mut self) {
        self.healthy_since.get_or_insert_with(Instant::now);
    }

    /// Returns the earliest moment of the next attempt after a failure.
    pub(super) fn failed(&mut self) -> Instant {
        let now = Instant::now();
        let healthy = self.healthy_since.take();
        if healthy.is_some_and(|since| now.duration_since(since) >= HEALTHY) {
            self.backoff.reset();
        }
        // The attempt after the failure before is still to come.
        if let Some(last) = self.last.filter(|last| *last > now) {
            return last;
        }
        let pause = self.backoff.pause_unless_first();
        let next = self.last.map_or(now, |last| now.max(last + pause));
        self.last = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(500), Duration::from_secs(30));

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_after_a_success_become_rarer() {
        let mut pacing = Pacing::new(PAUSES);
        let begun = Instant::now();
        for _ in 0..30 {
            tokio::time::sleep_until(pacing.failed()).await;
            pacing.succeeded();
        }
        let took = begun.elapsed();
        assert!(took > PAUSES.longest * 8, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_of_failures_before_the_next_attempt_do_not_add_up() {
        let mut pacing = Pacing::new(PAUSES);
        for _ in 0..20 {
            tokio::time::sleep_until(pacing.failed()).await;
        }
        let next = pacing.failed();
        for _ in 0..20 {
            assert_eq!(pacing.failed(), next);
        }
        assert!(next - Instant::now() <= PAUSES.longest);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_are_short_again_after_a_healthy_period() {
        let mut pacing = Pacing::new(PAUSES);
        for _ in 0..10 {
            tokio::time::sleep_until(pacing.failed()).await;
            pacing.succeeded();
        }
        // Time alone is no health: nothing worked.
        pacing.failed();
        tokio::time::advance(HEALTHY * 2).await;
        pacing.failed();
        assert!(pacing.backoff.failures() > 10);
        pacing.succeeded();
        tokio::time::advance(HEALTHY).await;
        assert_eq!(pacing.failed(), Instant::now());
        assert_eq!(pacing.backoff.failures(), 1);
    }
}
