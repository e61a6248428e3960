//! A moment that threads read and change without a lock.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A moment, or none. It counts from a start that its owner keeps, so it takes eight bytes.
///
/// The start has to be the same in all calls. Moments before it count as the start.
#[derive(Debug, Default)]
pub struct AtomicMoment {
    /// Nanoseconds from the start to the moment, plus one; zero without a moment.
    mark: AtomicU64,
}

impl AtomicMoment {
    /// Returns the moment.
    pub fn get(&self, start: Instant) -> Option<Instant> {
        let nanos = self.mark.load(Ordering::Acquire).checked_sub(1)?;
        Some(start + Duration::from_nanos(nanos))
    }

    /// Returns `true` if there is a moment.
    pub fn is_set(&self) -> bool {
        self.mark.load(Ordering::Acquire) > 0
    }

    /// Replaces the moment.
    pub fn set(&self, start: Instant, moment: Instant) {
        self.mark.store(mark(start, moment), Ordering::Release);
    }

    /// Leaves no moment.
    pub fn clear(&self) {
        self.mark.store(0, Ordering::Release);
    }

    /// Replaces an earlier moment, or none.
    pub fn set_latest(&self, start: Instant, moment: Instant) {
        self.mark.fetch_max(mark(start, moment), Ordering::AcqRel);
    }

    /// Replaces a later moment, or none. Returns `true` if there was none.
    pub fn set_earliest(&self, start: Instant, moment: Instant) -> bool {
        let mark = mark(start, moment);
        let earlier = |known: u64| (known == 0 || mark < known).then_some(mark);
        let before = self
            .mark
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
        before == Ok(0)
    }
}

fn mark(start: Instant, moment: Instant) -> u64 {
    let nanos = moment.saturating_duration_since(start).as_nanos();
    u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_kept_to_the_nanosecond() {
        let (moment, start) = (AtomicMoment::default(), Instant::now());
        assert_eq!((moment.get(start), moment.is_set()), (None, false));
        for nanos in [0, 1, 86_400_000_000_001] {
            let at = start + Duration::from_nanos(nanos);
            moment.set(start, at);
            assert_eq!((moment.get(start), moment.is_set()), (Some(at), true));
        }
        moment.clear();
        assert_eq!((moment.get(start), moment.is_set()), (None, false));
    }

    #[test]
    fn the_latest_or_the_earliest_of_several_moments_is_kept() {
        let (latest, earliest) = (AtomicMoment::default(), AtomicMoment::default());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let are_first = [2, 3, 1].map(|seconds| {
            latest.set_latest(start, at(seconds));
            earliest.set_earliest(start, at(seconds))
        });
        assert_eq!(are_first, [true, false, false]);
        assert_eq!(latest.get(start), Some(at(3)));
        assert_eq!(earliest.get(start), Some(at(1)));
    }
}
