//! Tracks, without asking, whether upstream's versions grow.
//!
//! API servers can keep types in several etcds (`--etcd-servers-overrides`), whose versions have nothing to do with
//! each other. A consistent answer is of a version that is at least any that its etcd showed before. So a type that
//! had shown a later one is in another etcd, unless versions went back. The versions of such a type tell nothing.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use watershed_protocol::ResourceVersion;

/// Number of intervals after which a question is not put off any more. New versions do not tell if it is the same
/// cluster.
const MAX_INTERVALS: u32 = 6;
/// Looks for new versions in an interval, at least.
const LOOKS: u32 = 4;
/// Longest pause between two looks.
const MAX_LOOK: Duration = Duration::from_secs(5);

/// Group and name of a type.
pub(super) type NameOfType = (Arc<str>, Arc<str>);
/// The newest versions that upstream showed of the types that are followed.
pub(super) type NewestVersions = Vec<(NameOfType, ResourceVersion)>;
/// The number of a timeline, and a version in it.
type VersionAt = (u64, ResourceVersion);

/// The last moments at which upstream's versions are known to have gone on.
#[derive(Debug)]
pub(super) struct UpstreamProgress {
    newest: VersionAt,
    /// The moment at which a newer version than before was seen.
    grown: Instant,
    /// The moment of the last question.
    asked: Instant,
    /// Types whose versions tell nothing, in the timeline of this number.
    elsewhere: (u64, HashSet<NameOfType>),
}

impl Default for UpstreamProgress {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            newest: VersionAt::default(),
            grown: now,
            asked: now,
            elsewhere: Default::default(),
        }
    }
}

impl UpstreamProgress {
    /// Notes that upstream is asked.
    pub(super) fn asked(&mut self) {
        self.asked = Instant::now();
    }

    /// Notes the version of a consistent answer. Growth of types with lower versions tells nothing about it.
    pub(super) fn reached(&mut self, timeline: u64, version: ResourceVersion) {
        self.newest = self.newest.max((timeline, version));
    }

    /// Notes that the versions of a type tell nothing.
    pub(super) fn ignore(&mut self, timeline: u64, name: NameOfType) {
        if self.elsewhere.0 != timeline {
            self.elsewhere = (timeline, HashSet::new());
        }
        self.elsewhere.1.insert(name);
    }

    /// Returns `true` if the versions of a type can be compared with those of the answers.
    pub(super) fn tells(&self, timeline: u64, name: &NameOfType) -> bool {
        self.elsewhere.0 != timeline || !self.elsewhere.1.contains(name)
    }

    /// Waits until there has been neither a question nor a newer version for `wait`, or no question for six times
    /// as long. `newest` returns the number of the timeline, too.
    pub(super) async fn stalled(
        &mut self,
        wait: Duration,
        newest: impl Fn() -> (u64, NewestVersions),
    ) {
        loop {
            let put_off = self.grown.max(self.asked) + wait;
            let due = put_off.min(self.asked + wait * MAX_INTERVALS);
            let now = Instant::now();
            if due <= now {
                return;
            }
            let look = (wait / LOOKS).min(MAX_LOOK);
            sleep_until(due.min(now + look)).await;
            let (timeline, versions) = newest();
            let comparable = versions
                .iter()
                .filter(|(name, _)| self.tells(timeline, name));
            let newest = comparable.map(|(_, version)| *version).max();
            let newest = (timeline, newest.unwrap_or_default());
            if newest > self.newest {
                self.newest = newest;
                self.grown = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(8);

    fn name(plural: &str) -> NameOfType {
        ("".into(), plural.into())
    }

    fn pods_at(version: u64) -> NewestVersions {
        vec![(name("pods"), ResourceVersion(version))]
    }

    /// Returns the time until a question, if versions grow each second for as long.
    async fn until_asked(growing: Duration, wait: Duration) -> Duration {
        let mut progress = UpstreamProgress::default();
        let begun = Instant::now();
        let newest = || (0, pods_at(begun.elapsed().min(growing).as_secs()));
        progress.stalled(wait, newest).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_is_put_off_while_new_versions_come() {
        assert_eq!(until_asked(Duration::ZERO, WAIT).await, WAIT);
        let begun = Duration::from_secs(20);
        let asked = until_asked(begun, WAIT).await;
        let look = WAIT / LOOKS;
        assert!(
            asked >= begun + WAIT && asked <= begun + WAIT + look,
            "{asked:?}"
        );
        for wait in [WAIT, Duration::from_mins(5)] {
            let asked = until_asked(Duration::MAX, wait).await;
            assert_eq!(asked, wait * MAX_INTERVALS);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_timeline_counts_as_news() {
        let mut progress = UpstreamProgress {
            newest: (0, ResourceVersion(1_000)),
            ..UpstreamProgress::default()
        };
        let begun = Instant::now();
        progress.stalled(WAIT, || (1, pods_at(1))).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / LOOKS);
    }

    #[tokio::test(start_paused = true)]
    async fn types_of_another_etcd_do_not_count() {
        let mut progress = UpstreamProgress::default();
        let begun = Instant::now();
        let seconds = || begun.elapsed().as_secs();
        progress.reached(0, ResourceVersion(1_000));
        progress.ignore(0, name("pods"));
        let of_others = || {
            let lower = (name("leases"), ResourceVersion(seconds()));
            (0, [pods_at(1_001 + seconds()), vec![lower]].concat())
        };
        progress.stalled(WAIT, of_others).await;
        assert_eq!(begun.elapsed(), WAIT);
    }
}
