//! The age of a scope, as its readers see it.
use std::time::Duration;

use tokio::time::Instant;

use crate::atomic_moment::AtomicMoment;

/// A scope's age as its readers see it. Every answer looks at it, so it is one plain atomic.
#[derive(Debug)]
pub(super) struct ScopeAge {
    opened: Instant,
    /// The moment at which following was lost; none while the scope is followed.
    lost: AtomicMoment,
}

impl ScopeAge {
    /// Creates the age of a scope that is opened now.
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            lost: AtomicMoment::default(),
        }
    }

    /// Publishes the moment at which following was lost.
    pub(super) fn publish(&self, lost_since: Option<Instant>) {
        match lost_since {
            Some(at) => self.lost.set(self.opened, at),
            None => self.lost.clear(),
        }
    }

    /// Returns the time for which the scope has not been followed; `None` while it is.
    pub(super) fn get(&self) -> Option<Duration> {
        Some(self.lost.get(self.opened)?.elapsed())
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
