//! Timelines of upstream's versions, and the proof that one has ended.
//!
//! etcd numbers its changes, and the numbers never go back. They do when etcd is restored from a
//! backup, or when another cluster takes the place of the first. Then the same version means another
//! state, and nothing that was held may be shown any more. A *timeline* is a time in which the
//! versions fit together. There is one owner of its number, [`Timeline`], and whoever holds
//! something of upstream's holds the number with it.
//!
//! The proof is an answer to a consistent question. Such an answer is of a version that is at least
//! any version that any API server showed before the question, or the timeline is another. So each
//! question carries the newest version that was known when it was sent ([`Question`]). Versions are
//! compared within a type, as API servers can keep types in several etcds
//! (`--etcd-servers-overrides`).
//!
//! The types of a custom group have a *branch* of the API server's timeline. An APIService can lead
//! their URLs to another server at any moment, which numbers its versions by itself. So their
//! versions are no proof about other types: the branch ends alone, and the API server is asked at
//! once about itself ([`super::rollback_monitor`]). A branch ends with the timeline it belongs to.
mod version_ages;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use watershed_protocol::{GroupVersionResource, ResourceVersion, is_built_in_group};

use super::metrics;
use version_ages::VersionAges;

/// The scopes are listed again within this time after a rollback, each at a moment of its own.
const SPREAD: Duration = Duration::from_secs(1);
/// Limit of that time. It doubles with each rollback that follows soon: two clusters behind one
/// address would have everything listed again without end.
const MAX_SPREAD: Duration = Duration::from_secs(30);
/// A rollback is a lone one if there was no other for so long.
const CALM: Duration = Duration::from_mins(2);

/// The present timeline of upstream's versions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Timeline(Arc<TimelineState>);

#[derive(Debug, Default)]
struct TimelineState {
    /// The number of the present timeline. It changes under the lock of `tables`.
    number: AtomicU64,
    changes: watch::Sender<u64>,
    tables: Mutex<TimelineTables>,
    /// The timeline that this one is a branch of.
    root: Option<Timeline>,
    branches: Mutex<HashMap<Arc<str>, Weak<TimelineState>>>,
    /// Notified when a branch has ended alone.
    suspected: Notify,
}

#[derive(Debug, Default)]
struct TimelineTables {
    /// The newest version of each type in this timeline.
    versions: HashMap<TypeKey, Arc<NewestVersion>>,
    rollbacks: Rollbacks,
}

/// Group and name of a type. All its versions and representations lie in one etcd.
type TypeKey = (Arc<str>, Arc<str>);

/// The recent rollbacks.
#[derive(Debug, Default)]
struct Rollbacks {
    last: Option<Instant>,
    /// Number of those before the last one that followed each other soon.
    earlier: u32,
}

/// The newest version that upstream showed of a type, in one timeline.
#[derive(Debug)]
pub(super) struct NewestVersion {
    timeline: u64,
    version: AtomicU64,
    ages: Mutex<VersionAges>,
}

impl NewestVersion {
    /// Notes that upstream showed this version.
    pub(super) fn raise(&self, version: ResourceVersion) {
        if self.version.fetch_max(version.0, Ordering::Relaxed) < version.0 {
            let mut ages = self.ages.lock();
            // Another thread may have raised it meanwhile.
            ages.reached(Instant::now(), self.get());
        }
    }

    /// Returns `true` if upstream has been beyond `version` for longer than it keeps old versions.
    pub(super) fn has_outlived(&self, version: ResourceVersion) -> bool {
        self.ages.lock().is_outlived(Instant::now(), version)
    }

    /// Returns the newest version.
    pub(super) fn get(&self) -> ResourceVersion {
        ResourceVersion(self.version.load(Ordering::Relaxed))
    }

    /// Returns the number of its timeline.
    pub(super) fn timeline(&self) -> u64 {
        self.timeline
    }
}

/// The proof that a timeline has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollbackEvidence {
    /// A consistent answer is of a version before one that was shown earlier.
    Version {
        /// The type.
        gvr: GroupVersionResource,
        /// The version that upstream showed earlier.
        shown: ResourceVersion,
        /// The version of the answer.
        answered: ResourceVersion,
    },
    /// Upstream has no such event, or an object is not as it was at a version.
    History {
        /// The type.
        gvr: GroupVersionResource,
        /// The version of the event or the object.
        at: ResourceVersion,
    },
    /// The namespace kube-system, and so the cluster, is another one.
    Cluster {
        /// The unique id of the namespace before.
        before: String,
        /// The unique id now.
        now: String,
    },
}

impl RollbackEvidence {
    /// The metric labels of all kinds.
    const LABELS: [&str; 3] = ["version", "history", "cluster"];

    fn label(&self) -> &'static str {
        match self {
            Self::Version { .. } => Self::LABELS[0],
            Self::History { .. } => Self::LABELS[1],
            Self::Cluster { .. } => Self::LABELS[2],
        }
    }
}

impl fmt::Display for RollbackEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version {
                gvr,
                shown,
                answered,
            } => write!(
                f,
                "upstream is at version {answered} of {gvr}, and showed version {shown} before"
            ),
            Self::History { gvr, at } => write!(
                f,
                "upstream's history of {gvr} is another one at version {at}"
            ),
            Self::Cluster { before, now } => write!(
                f,
                "the namespace kube-system has the unique id {now}, and had {before} before"
            ),
        }
    }
}

/// The answer is of another timeline than the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("upstream's versions went back")]
pub struct TimelineChanged;

impl Default for Timeline {
    fn default() -> Self {
        for label in RollbackEvidence::LABELS {
            // A series that begins with its first rollback would hide that one from alerts.
            metrics::ROLLBACKS.with([label.into()]).increment(0);
        }
        Self(Arc::new(TimelineState::default()))
    }
}

impl Timeline {
    /// Returns the number of the present timeline. What was learned under another is not to be
    /// relied on.
    pub fn number(&self) -> u64 {
        self.0.number.load(Ordering::Acquire)
    }

    /// Returns `true` if both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the number as a value whose changes can be waited for.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Ends the timeline with this number. Does nothing if it has ended already: many find out at
    /// the same time.
    pub fn end(&self, number: u64, evidence: &RollbackEvidence) {
        if !self.begin_next(number) {
            return;
        }
        self.0.tables.lock().rollbacks.count(Instant::now());
        if let Some(root) = &self.0.root {
            tracing::warn!(
                %evidence,
                "custom types have another history now, as after a restore of etcd, or from another \
                 server: those of their group are dropped and listed again"
            );
            root.0.suspected.notify_one();
            return;
        }
        metrics::ROLLBACKS
            .with([evidence.label().into()])
            .increment(1);
        tracing::error!(
            %evidence,
            "upstream has another history now, as after a restore of etcd: everything held is \
             dropped, every watch ends with 410, and all types are listed again"
        );
        let branches: Vec<_> = {
            let branches = self.0.branches.lock();
            branches
                .values()
                .filter_map(Weak::upgrade)
                .map(Self)
                .collect()
        };
        for branch in branches {
            branch.begin_next(branch.number());
        }
    }

    /// Begins the timeline after the one with this number. Returns `false` if that has ended already.
    fn begin_next(&self, number: u64) -> bool {
        {
            let mut tables = self.0.tables.lock();
            if self.number() != number {
                return false;
            }
            tables.versions.clear();
            self.0.number.store(number + 1, Ordering::Release);
        }
        // Another thread may have ended the next timeline meanwhile.
        self.0.changes.send_if_modified(|known| {
            let is_news = *known <= number;
            *known = (*known).max(number + 1);
            is_news
        });
        true
    }

    /// Returns the timeline of a group's types: this one, or a branch.
    pub(super) fn of_group(&self, group: &Arc<str>) -> Self {
        if is_built_in_group(group) {
            return self.clone();
        }
        let mut branches = self.0.branches.lock();
        if let Some(known) = branches.get(group).and_then(Weak::upgrade) {
            return Self(known);
        }
        // Groups come and go.
        branches.retain(|_, branch| branch.strong_count() > 0);
        let branch = Arc::new(TimelineState {
            root: Some(self.clone()),
            ..TimelineState::default()
        });
        branches.insert(Arc::clone(group), Arc::downgrade(&branch));
        Self(branch)
    }

    /// Waits until a branch has ended alone. Cancel safe.
    pub(super) async fn suspected(&self) {
        self.0.suspected.notified().await;
    }

    /// Returns the time after which a scope is listed again. It differs from call to call.
    pub(super) fn relist_delay(&self) -> Duration {
        // What ended the root ended its branches.
        let of_all = self.0.root.as_ref().map(Self::relist_spread);
        let spread = of_all.max(Some(self.relist_spread())).unwrap_or_default();
        spread.mul_f64(fastrand::f64())
    }

    fn relist_spread(&self) -> Duration {
        self.0.tables.lock().rollbacks.spread(Instant::now())
    }

    /// Returns the newest version of a type in the present timeline.
    pub(super) fn newest(&self, gvr: &GroupVersionResource) -> Arc<NewestVersion> {
        let key = (Arc::clone(&gvr.group), Arc::clone(&gvr.resource));
        let mut tables = self.0.tables.lock();
        if let Some(known) = tables.versions.get(&key) {
            return Arc::clone(known);
        }
        // Types come and go.
        tables
            .versions
            .retain(|_, newest| Arc::strong_count(newest) > 1);
        let newest = Arc::new(NewestVersion {
            timeline: self.number(),
            version: AtomicU64::new(0),
            ages: Mutex::default(),
        });
        tables.versions.insert(key, Arc::clone(&newest));
        newest
    }

    /// Prepares a consistent question about a type. Call it before the question is sent.
    pub(super) fn ask(&self, gvr: &GroupVersionResource, newest: Arc<NewestVersion>) -> Question {
        Question {
            timeline: self.clone(),
            gvr: gvr.clone(),
            shown: newest.get(),
            newest,
        }
    }
}

impl Rollbacks {
    fn count(&mut self, now: Instant) {
        let is_soon = self
            .last
            .is_some_and(|last| now.duration_since(last) < CALM);
        self.earlier = if is_soon { self.earlier + 1 } else { 0 };
        self.last = Some(now);
    }

    /// Returns the time over which lists are spread now. Those of a branch follow rollbacks of the root,
    /// which may be long ago.
    fn spread(&self, now: Instant) -> Duration {
        let is_soon = self
            .last
            .is_some_and(|last| now.duration_since(last) < CALM);
        let earlier = if is_soon { self.earlier } else { 0 };
        SPREAD.saturating_mul(1 << earlier.min(10)).min(MAX_SPREAD)
    }
}

/// A question to upstream for the most recent state: a list with no `resourceVersion`.
#[derive(Clone, Debug)]
pub struct Question {
    timeline: Timeline,
    gvr: GroupVersionResource,
    newest: Arc<NewestVersion>,
    /// The newest version known when the question was sent.
    shown: ResourceVersion,
}

impl Question {
    /// Returns `true` if a version of the type was known when the question was sent.
    pub(super) fn knows_a_version(&self) -> bool {
        self.shown > ResourceVersion::default()
    }

    /// Checks the version of the answer. An older one than was known before ends the timeline.
    pub fn answered(&self, version: ResourceVersion) -> Result<(), TimelineChanged> {
        if version < self.shown {
            let evidence = RollbackEvidence::Version {
                gvr: self.gvr.clone(),
                shown: self.shown,
                answered: version,
            };
            self.timeline.end(self.number(), &evidence);
        }
        if self.timeline.number() != self.number() {
            return Err(TimelineChanged);
        }
        self.newest.raise(version);
        Ok(())
    }

    /// Ends the timeline of the question, as the answer to it has an object that is not as it was at
    /// `version`.
    pub fn contradicted(&self, version: ResourceVersion) {
        let evidence = RollbackEvidence::History {
            gvr: self.gvr.clone(),
            at: version,
        };
        self.timeline.end(self.number(), &evidence);
    }

    /// Returns the number of the timeline in which the question was asked.
    pub(super) fn number(&self) -> u64 {
        self.newest.timeline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> GroupVersionResource {
        GroupVersionResource::new("", "v1", "pods")
    }

    fn question(timeline: &Timeline) -> Question {
        timeline.ask(&pods(), timeline.newest(&pods()))
    }

    #[test]
    fn an_answer_below_a_version_shown_before_the_question_ends_the_timeline() {
        let timeline = Timeline::default();
        let newest = timeline.newest(&pods());
        newest.raise(ResourceVersion(10));
        let before = question(&timeline);
        newest.raise(ResourceVersion(20));
        let after = question(&timeline);
        assert_eq!(before.answered(ResourceVersion(15)), Ok(()));
        assert_eq!(timeline.number(), 0, "20 was shown after the question");
        assert_eq!(after.answered(ResourceVersion(15)), Err(TimelineChanged));
        assert_eq!(timeline.number(), 1);
        assert_eq!(*timeline.changes().borrow(), 1);
        // The new timeline knows nothing of the old one's versions.
        assert_eq!(question(&timeline).answered(ResourceVersion(15)), Ok(()));
    }

    #[test]
    fn versions_of_different_types_are_not_compared() {
        let timeline = Timeline::default();
        timeline.newest(&pods()).raise(ResourceVersion(20));
        let events = GroupVersionResource::new("", "v1", "events");
        let question = timeline.ask(&events, timeline.newest(&events));
        assert_eq!(question.answered(ResourceVersion(3)), Ok(()));
        // Versions of an API share the objects.
        let beta = GroupVersionResource::new("", "v1beta1", "pods");
        let kept = timeline.newest(&pods());
        kept.raise(ResourceVersion(20));
        let question = timeline.ask(&beta, timeline.newest(&beta));
        assert_eq!(question.answered(ResourceVersion(19)), Err(TimelineChanged));
    }

    #[test]
    fn a_timeline_ends_once_however_many_find_out() {
        let timeline = Timeline::default();
        let newest = timeline.newest(&pods());
        newest.raise(ResourceVersion(10));
        let questions = [question(&timeline), question(&timeline)];
        for question in questions {
            assert_eq!(question.answered(ResourceVersion(9)), Err(TimelineChanged));
        }
        assert_eq!(timeline.number(), 1);
        // Late news of the old timeline does not reach the new one.
        newest.raise(ResourceVersion(11));
        assert_eq!(question(&timeline).answered(ResourceVersion(9)), Ok(()));
    }

    #[test]
    fn an_answer_that_comes_after_the_end_of_its_timeline_is_not_used() {
        let timeline = Timeline::default();
        let question = question(&timeline);
        question.contradicted(ResourceVersion(3));
        assert_eq!(question.answered(ResourceVersion(10)), Err(TimelineChanged));
    }

    #[tokio::test]
    async fn custom_types_are_no_proof_about_others_and_share_their_end() {
        let timeline = Timeline::default();
        let branch = timeline.of_group(&"example.org".into());
        let other = timeline.of_group(&"example.com".into());
        assert!(timeline.of_group(&"apps".into()).is(&timeline));
        assert!(timeline.of_group(&"example.org".into()).is(&branch));
        let widgets = GroupVersionResource::new("example.org", "v1", "widgets");
        let newest = branch.newest(&widgets);
        newest.raise(ResourceVersion(2503));
        let question = branch.ask(&widgets, newest);
        assert_eq!(
            question.answered(ResourceVersion(103)),
            Err(TimelineChanged)
        );
        let numbers = || [&timeline, &branch, &other].map(Timeline::number);
        assert_eq!(numbers(), [0, 1, 0]);
        timeline.suspected().await;
        question_of_pods_goes_back(&timeline);
        assert_eq!(numbers(), [1, 2, 1]);
    }

    fn question_of_pods_goes_back(timeline: &Timeline) {
        let newest = timeline.newest(&pods());
        newest.raise(ResourceVersion(10));
        let _ = question(timeline).answered(ResourceVersion(9));
    }

    #[test]
    fn rollbacks_of_all_types_slow_down_the_lists_of_custom_types_too() {
        let timeline = Timeline::default();
        let branch = timeline.of_group(&"example.org".into());
        for _ in 0..6 {
            question_of_pods_goes_back(&timeline);
        }
        assert_eq!(branch.number(), 6);
        let delays = (0..100).map(|_| branch.relist_delay());
        let longest = delays.max().unwrap();
        assert!(longest > 5 * SPREAD, "{longest:?}");
    }

    #[test]
    fn rollbacks_in_a_row_have_the_scopes_listed_less_and_less_often() {
        let (mut rollbacks, start) = (Rollbacks::default(), Instant::now());
        let spreads: Vec<_> = (0..8)
            .map(|n| {
                let now = start + n * CALM / 2;
                rollbacks.count(now);
                rollbacks.spread(now).as_secs()
            })
            .collect();
        assert_eq!(spreads, [1, 2, 4, 8, 16, 30, 30, 30]);
        let later = start + 10 * CALM;
        assert_eq!(
            rollbacks.spread(later),
            SPREAD,
            "for a branch that ends alone"
        );
        rollbacks.count(later);
        assert_eq!(rollbacks.spread(later), SPREAD);
    }
}
