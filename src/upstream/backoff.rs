//! Pauses between attempts.

use std::time::Duration;

use tokio::time::Instant;

/// Time without a failure after which [`Pacing`] forgets the failures before it.
const HEALTHY: Duration = Duration::from_mins(2);

/// Exponential pauses with jitter. Without jitter, all scopes that fail together would try again
/// together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates pauses that double from `first` up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Returns the number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Forgets the failures so far.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let doublings = self.failures;
        self.failures = doublings.saturating_add(1);
        self.doubled(doublings)
    }

    /// Returns the pause after one more failure. The first one has none: most interruptions are a
    /// cut connection.
    pub(super) fn pause_unless_first(&mut self) -> Duration {
        let before = self.failures;
        self.failures = before.saturating_add(1);
        match before.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => self.doubled(doublings),
        }
    }

    fn doubled(&self, doublings: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << doublings.min(16));
        let jitter = 0.5 + fastrand::f64() / 2.0;
        doubled.min(self.longest).mul_f64(jitter)
    }
}

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
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            backoff: Backoff::new(first, longest),
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

    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn pauses_grow_up_to_the_longest_and_vary() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        for failures in 0..40 {
            let full = FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST);
            let pause = backoff.pause();
            assert!(full / 2 <= pause && pause <= full, "{failures}: {pause:?}");
        }
        let mut pauses: Vec<_> = (0..10).map(|_| backoff.pause()).collect();
        pauses.dedup();
        assert!(pauses.len() > 1, "{pauses:?}");
        backoff.reset();
        assert_eq!(backoff.pause_unless_first(), Duration::ZERO);
        let second = backoff.pause_unless_first();
        assert!(FIRST / 2 <= second && second <= FIRST, "{second:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_after_a_success_become_rarer() {
        let mut pacing = Pacing::new(FIRST, LONGEST);
        let begun = Instant::now();
        for _ in 0..30 {
            tokio::time::sleep_until(pacing.failed()).await;
            pacing.succeeded();
        }
        let took = begun.elapsed();
        assert!(took > LONGEST * 8, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_of_failures_before_the_next_attempt_do_not_add_up() {
        let mut pacing = Pacing::new(FIRST, LONGEST);
        for _ in 0..20 {
            tokio::time::sleep_until(pacing.failed()).await;
        }
        let next = pacing.failed();
        for _ in 0..20 {
            assert_eq!(pacing.failed(), next);
        }
        assert!(next - Instant::now() <= LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_are_short_again_after_a_healthy_period() {
        let mut pacing = Pacing::new(FIRST, LONGEST);
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
