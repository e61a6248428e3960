//! Comparison of upstream's objects with the cache.
use std::time::{Duration, Instant};

use super::outcome::ProvenVersion;
use crate::scope::Scope;
use crate::store::Snapshot;
use crate::watcher::ViewFilter;
use crate::work::{WorkBudget, retire};
use watershed_protocol::{ResourceVersion, VersionList};

/// Wait for events that are on their way from upstream.
pub(super) const IN_TRANSIT: Duration = Duration::from_millis(100);

/// The state of some objects, which is upstream's at a version.
#[derive(Clone, Debug)]
pub(crate) struct ProvenState {
    /// The scope's objects. Only the compared ones are known to be upstream's.
    pub(crate) snapshot: Snapshot,
    /// The version. The scope's events may not have reached it.
    pub(crate) version: ResourceVersion,
}

/// A version that the cache has reached for some objects of a scope.
pub(super) struct ProvenSelection {
    pub(super) proven: ProvenVersion,
    /// The state of these objects, if the cache may be older as a whole.
    pub(super) state: Option<ProvenState>,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub(super) enum Compared {
    /// The objects are upstream's.
    Same(Snapshot),
    /// Events carried the cache to the list's version or past it.
    Passed,
    /// An earlier comparison has proven the list's version already. It tells nothing about events.
    Known,
    /// The cache is behind.
    Behind,
}

/// Compares upstream's objects with those of the cache that `filter` selects. Events that are on
/// their way may make the two equal, or carry the cache past the list's version.
pub(super) async fn compare(
    scope: &Scope,
    list: &VersionList,
    filter: Option<&ViewFilter>,
) -> Compared {
    let until = Instant::now() + IN_TRANSIT;
    loop {
        let reached = scope.reader.version();
        if reached >= list.version {
            let is_followed = scope.reader.event_version() >= list.version;
            return if is_followed {
                Compared::Passed
            } else {
                Compared::Known
            };
        }
        // What the events have led to, as readers do not see an unfinished version.
        let followed = scope.reader.followed();
        if is_same(&followed, list, filter).await {
            return Compared::Same(followed);
        }
        let (version, held) = (followed.version(), followed.len());
        // Events of this version may follow, which the list shows already.
        let is_unfinished = scope.reader.unfinished().is_some();
        // Changes during the comparison may have left it the last to hold the objects.
        if !scope.reader.holds(&followed) {
            let objects = followed.len();
            retire(followed, objects);
        }
        let left = until.saturating_duration_since(Instant::now());
        let next = ResourceVersion(reached.0 + 1);
        if left.is_zero() || !scope.wait_until_version(next, left).await {
            let is_all_held = filter.is_none() && !is_unfinished;
            if owes_events(list, version, is_all_held.then_some(held)) {
                scope.lacks_events_after(version);
            }
            return Compared::Behind;
        }
    }
}

/// Returns `true` if the list shows that upstream has changes after `version`. `held` is the number
/// of objects at that version, if it is known and the list is of all of them. Objects that differ in
/// other ways are not the events' fault.
fn owes_events(list: &VersionList, version: ResourceVersion, held: Option<usize>) -> bool {
    let has_newer = || list.objects.iter().any(|(_, listed)| *listed > version);
    let lacks_some = held.is_some_and(|held| list.objects.len() < held);
    list.is_complete && (lacks_some || has_newer())
}

/// Returns `true` if the list has exactly the selected objects, in these versions. Both are in the
/// order of upstream's keys.
async fn is_same(snapshot: &Snapshot, list: &VersionList, filter: Option<&ViewFilter>) -> bool {
    if !list.is_complete {
        return false;
    }
    let namespace = filter.and_then(ViewFilter::namespace);
    let mut listed = list.objects.iter();
    let (mut budget, work) = (WorkBudget::default(), filter.map_or(1, ViewFilter::work));
    for object in snapshot.items(namespace) {
        budget.work(work).await;
        if filter.is_some_and(|filter| !filter.matches(&object.attributes)) {
            continue;
        }
        let next = listed.next();
        if next.is_none_or(|(key, version)| key != object.key() || *version != object.version) {
            return false;
        }
    }
    listed.next().is_none()
}
