//! Pauses between attempts, which double from one failure to the next.
use std::time::Duration;

/// Upper bound of doublings. The longest pause is reached before that.
const MAX_DOUBLINGS: u32 = 16;

/// The first and the longest pause between attempts. Pauses double from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseRange {
    /// The pause after the first failure.
    pub first: Duration,
    /// The pause that no other one exceeds.
    pub longest: Duration,
}

impl PauseRange {
    /// Creates pauses that double from `first` up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the pause after a failure with `before` failures in a row before it. It has no jitter.
    pub fn after(self, before: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << before.min(MAX_DOUBLINGS));
        doubled.min(self.longest)
    }

    /// Returns these pauses with jitter, for attempts none of which has failed.
    pub const fn backoff(self) -> Backoff {
        Backoff {
            pauses: self,
            failures: 0,
        }
    }
}

/// Exponential pauses with jitter. Without jitter, all scopes that fail together would try again
/// together.
#[derive(Clone, Debug)]
pub struct Backoff {
    pauses: PauseRange,
    failures: u32,
}

impl Backoff {
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
        let before = self.failures;
        self.failures = before.saturating_add(1);
        self.jittered(before)
    }

    /// Returns the pause after one more failure. The first one has none: most interruptions are a
    /// cut connection.
    pub fn pause_unless_first(&mut self) -> Duration {
        let before = self.failures;
        self.failures = before.saturating_add(1);
        match before.checked_sub(1) {
            None => Duration::ZERO,
            Some(before) => self.jittered(before),
        }
    }

    fn jittered(&self, before: u32) -> Duration {
        let jitter = 0.5 + fastrand::f64() / 2.0;
        self.pauses.after(before).mul_f64(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(500), Duration::from_secs(30));

    #[test]
    fn pauses_without_jitter_double_up_to_the_longest() {
        let pauses: Vec<_> = (0..8)
            .map(|before| PAUSES.after(before).as_millis())
            .collect();
        assert_eq!(
            pauses,
            [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
        );
        assert_eq!(PAUSES.after(u32::MAX), PAUSES.longest);
        let reversed = PauseRange::new(PAUSES.longest, PAUSES.first);
        assert_eq!(reversed.after(0), PAUSES.first, "no pause is longer");
    }

    #[test]
    fn pauses_grow_up_to_the_longest_and_vary() {
        let mut backoff = PAUSES.backoff();
        for failures in 0..40 {
            let full = PAUSES.after(failures);
            let pause = backoff.pause();
            assert!(full / 2 <= pause && pause <= full, "{failures}: {pause:?}");
        }
        let mut pauses: Vec<_> = (0..10).map(|_| backoff.pause()).collect();
        pauses.dedup();
        assert!(pauses.len() > 1, "{pauses:?}");
        backoff.reset();
        assert_eq!(backoff.pause_unless_first(), Duration::ZERO);
        let second = backoff.pause_unless_first();
        assert!(
            PAUSES.first / 2 <= second && second <= PAUSES.first,
            "{second:?}"
        );
    }
}
