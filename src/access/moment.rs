//! A moment that only moves on.
use tokio::time::Instant;

use crate::atomic_moment::AtomicMoment;

/// The latest of the moments that were noted. It is read without a lock.
#[derive(Debug)]
pub(super) struct LatestMoment {
    created: Instant,
    latest: AtomicMoment,
}

impl LatestMoment {
    /// Notes a moment. One before the creation does not count.
    pub(super) fn note(&self, moment: Instant) {
        if moment >= self.created {
            self.latest.set_latest(self.created, moment);
        }
    }

    /// Returns the latest moment.
    pub(super) fn get(&self) -> Option<Instant> {
        self.latest.get(self.created)
    }
}

impl Default for LatestMoment {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            latest: AtomicMoment::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_earlier_moment_does_not_count() {
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
        assert_eq!(latest.get(), Some(created + noted));
    }
}
