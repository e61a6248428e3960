//! A moment that only moves on.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The latest of the moments that were noted. It is read without a lock.
#[derive(Debug)]
pub(super) struct LatestMoment {
    created: Instant,
    /// Milliseconds from the creation to the latest moment, plus one; zero before the first.
    millis: AtomicU64,
}

impl LatestMoment {
    /// Notes a moment. One before the creation does not count.
    pub(super) fn note(&self, moment: Instant) {
        let Some(since) = moment.checked_duration_since(self.created) else {
            return;
        };
        let millis = since.as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX - 1);
        self.millis.fetch_max(millis + 1, Ordering::AcqRel);
    }

    /// Returns the latest moment, or one up to a millisecond before it.
    pub(super) fn get(&self) -> Option<Instant> {
        let millis = self.millis.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.created + Duration::from_millis(millis))
    }
}

impl Default for LatestMoment {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            millis: AtomicU64::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_latest_moment_is_never_too_late() {
        let earlier = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let latest = LatestMoment::default();
        latest.note(earlier);
        assert_eq!(latest.get(), None);
        let created = Instant::now();
        latest.note(created);
        assert_eq!(latest.get(), Some(created));
        let noted = Duration::from_micros(2_999);
        latest.note(created + noted);
        latest.note(created + Duration::from_millis(1));
        assert_eq!(latest.get(), Some(created + Duration::from_millis(2)));
    }
}
