//! The history to which the objects of a scope belong.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use watershed_protocol::{GroupVersionResource, ResourceVersion};

use super::consistent_list::ConsistentList;
use crate::scope::timeline::{NewestVersion, Timeline};

/// In place of a version.
const NONE: u64 = u64::MAX;

/// The history of upstream's versions to which the held objects belong, and where the part of it
/// begins that the scope knows.
#[derive(Debug)]
pub(in crate::scope) struct HeldHistory {
    timeline: Timeline,
    /// The number of the timeline of what is held.
    held_in: AtomicU64,
    /// The newest version of the type that upstream showed, to any scope.
    newest: ArcSwap<NewestVersion>,
    /// The version of the scope's first list, or the one from which on it keeps history for readers;
    /// [`NONE`] before the first list.
    beginning: AtomicU64,
    /// The version of the first list of the present timeline: versions below it may be of a lost
    /// one. Zero in the scope's first timeline.
    timeline_start: AtomicU64,
    consistent_list: ConsistentList,
}

impl HeldHistory {
    /// Creates the history of a type whose versions follow `timeline`, of which nothing is held yet.
    pub(in crate::scope) fn new(timeline: &Timeline, gvr: &GroupVersionResource) -> Self {
        let newest = timeline.newest(gvr);
        Self {
            timeline: timeline.clone(),
            held_in: AtomicU64::new(newest.timeline()),
            newest: ArcSwap::new(newest),
            beginning: AtomicU64::new(NONE),
            timeline_start: AtomicU64::new(0),
            consistent_list: ConsistentList::default(),
        }
    }

    /// Returns the timeline that upstream's versions of the type follow.
    pub(in crate::scope) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns `true` if what is held is of the present timeline. If not, it is about to be
    /// dropped, and must not be shown any more.
    pub(in crate::scope) fn is_current(&self) -> bool {
        self.held_in() == self.timeline.number()
    }

    /// Returns the number of the timeline of what is held.
    pub(in crate::scope) fn held_in(&self) -> u64 {
        self.held_in.load(Ordering::Acquire)
    }

    /// Records that what is held is of this timeline.
    pub(in crate::scope) fn record_timeline(&self, timeline: u64) {
        self.held_in.store(timeline, Ordering::Release);
    }

    /// Returns the newest version of the type that upstream showed, to any scope.
    pub(in crate::scope) fn newest(&self) -> Guard<Arc<NewestVersion>> {
        self.newest.load()
    }

    /// Records that what is held was dropped. Until the next list, no version is known to be of the
    /// new timeline.
    pub(in crate::scope) fn expect_new_timeline(&self) {
        self.timeline_start.store(u64::MAX, Ordering::Release);
    }

    /// Follows the newest version of the present timeline from now on.
    pub(in crate::scope) fn begin_anew(&self, gvr: &GroupVersionResource) -> Arc<NewestVersion> {
        let newest = self.timeline.newest(gvr);
        self.newest.store(Arc::clone(&newest));
        newest
    }

    /// Records that the scope's history begins at this version, if it has not begun.
    pub(in crate::scope) fn record_beginning(&self, version: ResourceVersion) {
        let begin = |begun| (begun == NONE).then_some(version.0);
        let _ = self
            .beginning
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, begin);
    }

    /// Records that what happened up to this version was dropped before anybody could read it, if
    /// the history has begun.
    pub(in crate::scope) fn postpone_beginning(&self, version: ResourceVersion) {
        let postpone = |begun| (begun != NONE).then_some(version.0);
        let _ = self
            .beginning
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, postpone);
    }

    /// Records a list of this version.
    pub(in crate::scope) fn record_list(&self, version: ResourceVersion) {
        self.record_beginning(version);
        self.timeline_start.fetch_min(version.0, Ordering::AcqRel);
    }

    /// Records that upstream was asked for the list at `asked`, or later, and for its most recent
    /// state. What is held must be the list already.
    pub(in crate::scope) fn record_consistent_list(
        &self,
        asked: Instant,
        version: ResourceVersion,
    ) {
        self.consistent_list.store(asked, version);
    }

    /// Returns the version of the list, if upstream was asked for it at `moment` or later.
    pub(in crate::scope) fn listed_since(&self, moment: Instant) -> Option<ResourceVersion> {
        self.consistent_list.since(moment)
    }

    /// Returns the version at which the scope's history begins, once it does.
    pub(in crate::scope) fn beginning(&self) -> Option<ResourceVersion> {
        let beginning = self.beginning.load(Ordering::Acquire);
        (beginning != NONE).then_some(ResourceVersion(beginning))
    }

    /// Returns `true` if `version` is known to be of the present timeline.
    pub(in crate::scope) fn is_of_timeline(&self, version: ResourceVersion) -> bool {
        version.0 >= self.timeline_start.load(Ordering::Acquire)
    }
}
