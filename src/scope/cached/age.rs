//! The age of a scope, as its readers see it.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A scope's age as its readers see it. Every answer looks at it, so it is one plain atomic.
#[derive(Debug)]
pub(super) struct ScopeAge {
    opened: Instant,
    /// Milliseconds from the opening to the moment at which following was lost, plus one; zero
    /// while the scope is followed.
    lost: AtomicU64,
}

impl ScopeAge {
    /// Creates the age of a scope that is opened now.
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            lost: AtomicU64::new(0),
        }
    }

    /// Publishes the moment at which following was lost.
    pub(super) fn publish(&self, lost_since: Option<Instant>) {
        let millis = lost_since.map_or(0, |at| {
            let millis = at.saturating_duration_since(self.opened).as_millis();
            u64::try_from(millis).unwrap_or(u64::MAX - 1) + 1
        });
        self.lost.store(millis, Ordering::Relaxed);
    }

    /// Returns the time for which the scope has not been followed; `None` while it is.
    pub(super) fn get(&self) -> Option<Duration> {
        let lost = self.lost.load(Ordering::Relaxed).checked_sub(1)?;
        Some(
            self.opened
                .elapsed()
                .saturating_sub(Duration::from_millis(lost)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_age_is_the_time_since_the_loss() {
        let age = ScopeAge::new();
        assert_eq!(age.get(), None);
        age.publish(Some(Instant::now()));
        assert_eq!(age.get(), Some(Duration::ZERO));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(age.get(), Some(Duration::from_secs(7)));
        age.publish(None);
        assert_eq!(age.get(), None);
    }
}
