//! The recent changes of RBAC, the verdicts that they overtake, and the watches that they wake.
mod explain;
pub(super) mod follow;
pub(super) mod listeners;
pub(super) mod rbac;
mod rules;
pub(super) mod settling;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::FollowedRbac;
use super::metrics;
use super::moment::LatestMoment;
use super::request::AccessRequest;
use super::verdict::{ChangePosition, Verdict};
use crate::scope::Timeline;
use crate::store::StoreReader;
use explain::FollowedRoles;
use listeners::WatchListeners;
use rbac::{Affected, RbacKind, RequestReach};
use settling::{PASSED_ON_AGE, SETTLED, settles_after};

/// Limit of the recorded changes, counted with their subjects. When it is exceeded, those of the
/// namespace with the most become one change of the whole namespace, so that its administrators
/// cannot end the verdicts of others. If there is none, all become a change of everything.
const MAX_WEIGHT: usize = 50_000;
/// Number of changes that are looked at for the last one that concerns a request. The next one is
/// taken to concern it.
const MAX_LOOKED_AT: usize = 2_000;

/// The changes of RBAC that are newer than the oldest verdict in use.
#[derive(Debug)]
pub(super) struct Changes {
    log: RwLock<ChangeLog>,
    /// The number of the next change. A verdict that has been compared up to here needs no lock.
    head: AtomicU64,
    /// One bit for each type whose changes are to arrive.
    wanted: watch::Sender<u8>,
    /// One bit for each type whose changes arrive.
    followed: AtomicU8,
    /// One bit for each type whose changes have arrived at some time.
    begun: AtomicU8,
    /// The last moments at which upstream showed a newer version of each type.
    advanced: [LatestMoment; RbacKind::ALL.len()],
    objects: FollowedRoles,
    listeners: Arc<WatchListeners>,
    /// Age limit of recorded changes. No verdict is older.
    keep: Duration,
    /// Its end is a change of everything.
    timeline: Timeline,
}

/// Returns the bits of the types that decide about requests.
fn bits(reach: RequestReach) -> u8 {
    let bit = |kind: &RbacKind| 1 << *kind as u8;
    reach.kinds().iter().map(bit).sum()
}

impl Changes {
    /// Creates a record for verdicts that are used for up to `longest`.
    pub(super) fn new(longest: Duration, timeline: Timeline, followed: FollowedRbac) -> Self {
        let wanted = match followed {
            FollowedRbac::All => RequestReach::Namespace,
            FollowedRbac::AsNeeded => RequestReach::Cluster,
        };
        Self {
            wanted: watch::Sender::new(bits(wanted)),
            log: RwLock::default(),
            head: AtomicU64::new(0),
            followed: AtomicU8::new(0),
            begun: AtomicU8::new(0),
            advanced: Default::default(),
            objects: FollowedRoles::default(),
            listeners: Arc::default(),
            keep: longest + SETTLED,
            timeline,
        }
    }

    /// Has the changes arrive that can concern a request.
    pub(super) fn want(&self, request: &AccessRequest) {
        let needed = bits(RequestReach::of(request));
        let is_new = self.wanted.send_if_modified(|wanted| {
            let before = *wanted;
            *wanted |= needed;
            *wanted != before
        });
        if is_new {
            self.show_followed();
        }
    }

    /// Waits until the changes of a type are to arrive.
    pub(super) async fn until_wanted(&self, kind: RbacKind) {
        let mut wanted = self.wanted.subscribe();
        let is_wanted = |wanted: &u8| wanted & (1 << kind as u8) != 0;
        // The sender is not dropped before `self`.
        let _ = wanted.wait_for(is_wanted).await;
    }

    /// Returns `true` if every change that can concern a request arrives here.
    pub(super) fn are_followed(&self, request: &AccessRequest) -> bool {
        let needed = bits(RequestReach::of(request));
        self.followed.load(Ordering::Acquire) & needed == needed
    }

    fn show_followed(&self) {
        // One at a time: what is shown last has to be the latest.
        self.wanted.send_if_modified(|wanted| {
            metrics::following(self.followed.load(Ordering::Acquire) & *wanted == *wanted);
            false
        });
    }

    /// Sets whether changes of a type arrive. All missed ones must have been recorded before.
    pub(super) fn set_followed(&self, kind: RbacKind, followed: bool) {
        let bit = 1 << kind as u8;
        if followed {
            self.followed.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.followed.fetch_and(!bit, Ordering::AcqRel);
        }
        self.show_followed();
    }

    /// Sets the objects of a type, which later changes are changes of. `None` while they are unknown.
    pub(super) fn set_objects(&self, kind: RbacKind, objects: Option<StoreReader>) {
        self.objects.set(kind, objects);
    }

    /// Returns `true` if the binding that upstream gave as its reason grants a request, by the objects that are
    /// followed. Changes that they lack are recorded later.
    pub(super) fn explain(&self, reason: &str, request: &AccessRequest) -> bool {
        self.objects.explain(reason, request)
    }

    /// Notes that upstream has just shown a newer version of a type than before. The changes up to
    /// there are recorded, or about to be.
    pub(super) fn advance(&self, kind: RbacKind) {
        self.advanced[kind as usize].note(Instant::now());
    }

    /// Returns the moment up to which the types that decide about a request are known. A watch can
    /// stand still and look followed: its bookmarks repeat a version while the server's own cache
    /// gets nothing from etcd. So each type is known up to its last newer version.
    pub(super) fn known_until(&self, request: &AccessRequest) -> Option<Instant> {
        let kinds = RequestReach::of(request).kinds().iter();
        let known = kinds.map(|kind| self.advanced[*kind as usize].get());
        known.min().flatten()
    }

    /// Notes that the changes of a type arrive from now on, and that earlier ones are unknown.
    ///
    /// Until the types that decide about a request are followed, its verdict is used for seconds.
    /// Such verdicts are reviewed once, when upstream has settled: a proxy that starts would
    /// otherwise ask for each of them again and again. Later on a verdict may be older, and is
    /// reviewed at once.
    pub(super) fn begin(&self, kind: RbacKind) {
        let bit = 1 << kind as u8;
        let before = self.begun.fetch_or(bit, Ordering::AcqRel);
        if before & bit != 0 {
            return self.record(Affected::Everything);
        }
        for reach in RequestReach::ALL {
            let missing = bits(reach) & !before;
            if missing == bit {
                self.record(Affected::UnknownPast(reach));
            }
        }
    }

    /// Records a change that has just happened, and wakes the watches that it concerns.
    pub(super) fn record(&self, affected: Affected) {
        let recorded = {
            let mut log = self.log.write();
            let recorded = log.push(affected, self.keep);
            self.head.store(log.head, Ordering::Release);
            recorded
        };
        for affected in &recorded {
            self.listeners.wake_affected(affected);
        }
    }

    /// Returns the open watches' tasks.
    pub(super) fn listeners(&self) -> &Arc<WatchListeners> {
        &self.listeners
    }

    /// Returns the position of a request that is sent now.
    pub(super) fn position(&self) -> ChangePosition {
        let timeline = self.timeline.number();
        let log = self.log.read();
        let requested = Instant::now();
        let newest = log.changes.iter().rev();
        let unsettled = newest
            .take_while(|(_, (at, _))| *at + SETTLED + PASSED_ON_AGE > requested)
            .last();
        ChangePosition {
            requested,
            timeline,
            head: log.head,
            unsettled: unsettled.map_or(log.head, |(number, _)| *number),
        }
    }

    /// Returns the time from the last change that concerns a request until it was sent, `limit` at
    /// most.
    pub(super) fn quiet_before(
        &self,
        position: &ChangePosition,
        request: &AccessRequest,
        limit: Duration,
    ) -> Duration {
        self.since_last(position, request, limit, |_| true)
    }

    /// Returns `true` if a change that concerns a request came so shortly before it that a verdict which
    /// another proxy passes on may be from before the change, or from a server that had not seen it.
    ///
    /// Changes from before they were followed do not count: a verdict that may be from before those is
    /// reviewed again ([`apply`](Self::apply)).
    pub(super) fn are_fresh_before(
        &self,
        position: &ChangePosition,
        request: &AccessRequest,
    ) -> bool {
        let limit = SETTLED + PASSED_ON_AGE;
        let counts = |affected: &Affected| !matches!(affected, Affected::UnknownPast(_));
        self.since_last(position, request, limit, counts) < limit
    }

    /// Returns the time from the last change that counts and concerns a request until it was sent, `limit` at
    /// most.
    fn since_last(
        &self,
        position: &ChangePosition,
        request: &AccessRequest,
        limit: Duration,
        counts: impl Fn(&Affected) -> bool,
    ) -> Duration {
        let log = self.log.read();
        let earlier = log.changes.range(..position.head).rev();
        for (looked_at, (_, (at, affected))) in earlier.enumerate() {
            let since = position.requested.saturating_duration_since(*at);
            if since >= limit {
                break;
            }
            let concerns = || counts(affected) && affected.concerns(request);
            if looked_at == MAX_LOOKED_AT || concerns() {
                return since;
            }
        }
        limit
    }

    /// Returns `true` if a request was sent in the present timeline of upstream's versions. RBAC's
    /// objects are others in another one.
    pub(super) fn is_in_this_timeline(&self, position: &ChangePosition) -> bool {
        position.timeline == self.timeline.number()
    }

    /// Compares a verdict with the changes that it has not been compared with yet.
    pub(super) fn apply(&self, verdict: &Verdict, request: &AccessRequest) {
        if !self.is_in_this_timeline(&verdict.position) {
            verdict.set_overtaken(Instant::now());
            return;
        }
        let compared = verdict.compared.load(Ordering::Acquire);
        if compared >= self.head.load(Ordering::Acquire) {
            return;
        }
        let log = self.log.read();
        let ChangePosition {
            requested, head, ..
        } = verdict.position;
        for (number, (at, affected)) in log.changes.range(compared..) {
            if !affected.concerns(request) {
                continue;
            }
            let is_later = *number >= head;
            // None is used for longer than it would be without RBAC.
            let longest = requested + verdict.unwatched_ttl;
            let is_young = *at + SETTLED <= longest;
            let is_first = matches!(**affected, Affected::UnknownPast(_));
            if is_first && (is_young || !is_later) {
                let settled = verdict.settles_if_first_followed_at(*at);
                let after = settled.min(longest).saturating_duration_since(requested);
                if !after.is_zero() {
                    verdict.set_settled(after);
                }
            } else if is_later {
                verdict.set_overtaken(*at);
            } else if let Some(after) = settles_after(*at, requested) {
                verdict.set_settled(after);
            }
        }
        verdict.compared.fetch_max(log.head, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct ChangeLog {
    /// The number of the next change.
    head: u64,
    /// The changes by their numbers.
    changes: BTreeMap<u64, (Instant, Arc<Affected>)>,
    weight: usize,
    /// The changes that concern one namespace only.
    namespaces: HashMap<Box<str>, NamespaceChanges>,
}

/// The recorded changes that concern one namespace only.
#[derive(Debug, Default)]
struct NamespaceChanges {
    numbers: BTreeSet<u64>,
    weight: usize,
}

impl ChangeLog {
    /// Adds a change that happens now, and forgets those older than `keep`. Returns what was
    /// recorded: further changes stand for others that were too many.
    fn push(&mut self, affected: Affected, keep: Duration) -> Vec<Arc<Affected>> {
        let now = Instant::now();
        while let Some((number, (at, _))) = self.changes.first_key_value()
            && now.duration_since(*at) > keep
        {
            self.forget(*number);
        }
        let mut recorded = vec![self.add(now, affected)];
        while self.weight > MAX_WEIGHT {
            let coarser = self.merge_heaviest();
            recorded.push(self.add(now, coarser));
        }
        recorded
    }

    fn add(&mut self, now: Instant, affected: Affected) -> Arc<Affected> {
        let weight = affected.weight();
        self.weight += weight;
        if let Some(namespace) = affected.namespace() {
            let own = self.namespaces.entry(namespace.into()).or_default();
            own.numbers.insert(self.head);
            own.weight += weight;
        }
        let recorded = Arc::new(affected);
        self.changes.insert(self.head, (now, Arc::clone(&recorded)));
        self.head += 1;
        recorded
    }

    /// Forgets the changes of the namespace that has the most, or all if that is not much. Returns
    /// a change that concerns whatever they did.
    ///
    /// Nothing is missed: the new change comes later than those that it stands for.
    fn merge_heaviest(&mut self) -> Affected {
        let heaviest = self.namespaces.iter().max_by_key(|(_, own)| own.weight);
        if let Some((namespace, own)) = heaviest
            && own.weight > 1
        {
            let (namespace, numbers) = (namespace.clone(), own.numbers.clone());
            for number in numbers {
                self.forget(number);
            }
            return Affected::Namespace(namespace);
        }
        self.changes.clear();
        self.namespaces.clear();
        self.weight = 0;
        Affected::Everything
    }

    fn forget(&mut self, number: u64) {
        let Some((_, affected)) = self.changes.remove(&number) else {
            return;
        };
        let weight = affected.weight();
        self.weight -= weight;
        if let Some(namespace) = affected.namespace()
            && let Some(own) = self.namespaces.get_mut(namespace)
        {
            own.numbers.remove(&number);
            own.weight -= weight;
            if own.numbers.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests;
