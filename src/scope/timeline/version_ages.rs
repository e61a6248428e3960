//! Since when upstream has been beyond a version.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use watershed_protocol::ResourceVersion;

/// For so long an API server keeps old versions in etcd, at least: every five minutes it has etcd
/// drop those that are older (`--etcd-compaction-interval`, by default 5m).
pub(super) const KEPT_BY_UPSTREAM: Duration = Duration::from_mins(5);
/// Time between two entries.
const RESOLUTION: Duration = Duration::from_secs(10);

/// A moment, and the newest version known then.
type Entry = (Instant, ResourceVersion);

/// The newest versions of the last minutes, with their moments.
#[derive(Debug, Default)]
pub(super) struct VersionAges {
    /// The oldest first. Only the first may be older than [`KEPT_BY_UPSTREAM`].
    entries: VecDeque<Entry>,
    latest: Option<Entry>,
}

impl VersionAges {
    /// Notes that a version newer than all before is known since `now`.
    pub(super) fn reached(&mut self, now: Instant, version: ResourceVersion) {
        if let Some(latest) = self.latest.replace((now, version)) {
            let is_due = |&(at, _): &Entry| latest.0.duration_since(at) >= RESOLUTION;
            if self.entries.back().is_none_or(is_due) {
                self.entries.push_back(latest);
            }
        }
        while self.entries.get(1).is_some_and(|&(at, _)| is_old(now, at)) {
            self.entries.pop_front();
        }
    }

    /// Returns `true` if a newer version than this has been known for longer than upstream keeps
    /// old ones.
    pub(super) fn is_outlived(&self, now: Instant, version: ResourceVersion) -> bool {
        let entries = self.entries.iter().chain(&self.latest);
        let mut old = entries.take_while(|&&(at, _)| is_old(now, at));
        old.any(|&(_, newer)| newer > version)
    }
}

fn is_old(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) >= KEPT_BY_UPSTREAM
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_version_is_outlived_once_a_newer_one_is_five_minutes_old() {
        let start = Instant::now();
        let mut ages = VersionAges::default();
        assert!(!ages.is_outlived(start + 9 * MINUTE, ResourceVersion(1)));
        ages.reached(start, ResourceVersion(10));
        ages.reached(start + MINUTE, ResourceVersion(20));
        assert!(!ages.is_outlived(start + 4 * MINUTE, ResourceVersion(9)));
        assert!(ages.is_outlived(start + 5 * MINUTE, ResourceVersion(9)));
        assert!(!ages.is_outlived(start + 5 * MINUTE, ResourceVersion(10)));
        assert!(ages.is_outlived(start + 6 * MINUTE, ResourceVersion(10)));
        let newest = ResourceVersion(20);
        assert!(
            !ages.is_outlived(start + 99 * MINUTE, newest),
            "nothing is newer"
        );
    }

    #[test]
    fn ages_of_many_versions_take_little_memory() {
        let start = Instant::now();
        let mut ages = VersionAges::default();
        for second in 0..3600_u32 {
            ages.reached(
                start + second * Duration::from_secs(1),
                ResourceVersion(second.into()),
            );
        }
        assert!(ages.entries.len() <= 32, "{}", ages.entries.len());
        let now = start + Duration::from_secs(3599);
        assert!(ages.is_outlived(now, ResourceVersion(3280)));
        assert!(!ages.is_outlived(now, ResourceVersion(3300)));
    }
}
