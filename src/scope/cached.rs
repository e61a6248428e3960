//! One cached scope, as its readers see it.
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use watershed_protocol::{FieldTable, ManagedFields, ResourceVersion};

use super::charges::ScopeCharges;
use super::consistent_list::ConsistentList;
use super::idle::IdleTracker;
use super::key::ScopeKey;
use super::phase::{NotReady, ReadyScope, ScopePhase};
use super::staleness::ScopeAge;
use super::timeline::{NewestVersion, Question, Timeline};
use super::version_waiters::VersionWaiters;
use crate::store::{HeldBytes, Snapshot, StoreReader};
use crate::upstream::{Release, ServedBy, Stopped, TableForms, UpstreamClient, WatchCompression};
use crate::watcher::{Bookmarks, IrreducibleObject};
use crate::work::retire;

/// The objects and events of one scope, and how far its task is.
#[derive(Debug)]
pub struct Scope {
    /// The objects it covers.
    pub key: ScopeKey,
    /// The type's selectable fields.
    pub fields: Arc<FieldTable>,
    /// The treatment of the objects' managed fields.
    pub managed_fields: ManagedFields,
    /// Its objects and events.
    pub reader: StoreReader,
    /// The scope covers what a client asked for; the configuration does not name it.
    pub on_demand: bool,
    /// Upstream's form of bookmarks, once known.
    pub bookmarks: Bookmarks,
    /// An object that cannot be reduced to its metadata, if a watch came to one.
    pub irreducible: Arc<IrreducibleObject>,
    /// An object that cannot be printed as a row, if a watch came to one.
    pub unprintable: Arc<IrreducibleObject>,
    /// Tells if upstream compresses the type's watches. Learned when a client asks for compression.
    pub compression: WatchCompression,
    /// The state came by a watch that upstream compressed.
    pub(super) is_compressed: AtomicBool,
    /// The form of the type's Tables. Learned when a client asks for one.
    pub tables: TableForms,
    /// The time of upstream's last event, bookmark or list.
    pub last_heard: Mutex<Instant>,
    pub(super) following: watch::Sender<bool>,
    /// The version of the events when upstream was last found to have more.
    pub(super) lacking: watch::Sender<ResourceVersion>,
    pub(super) age: ScopeAge,
    pub(super) first_list: OnceLock<ResourceVersion>,
    pub(super) listed: ConsistentList,
    /// The version of the first list of the present timeline: versions below it may be of a lost
    /// one. Zero in the scope's first timeline.
    pub(super) timeline_start: AtomicU64,
    pub(super) opened: Instant,
    pub(super) phase: watch::Receiver<ScopePhase>,
    /// Readers that wait for the newest snapshot to reach a version.
    pub(super) version_waiters: VersionWaiters,
    pub(super) timeline: Timeline,
    /// The newest version of the type that upstream showed, to any scope.
    pub(super) shown: ArcSwap<NewestVersion>,
    /// The timeline of what is held.
    pub(super) held_in: AtomicU64,
    pub(super) schema_changed: Notify,
    pub(super) type_removed: Notify,
    /// The scope's objects are not upstream's.
    pub(super) found_different: Notify,
    /// True if only the bytes of objects differ, where a difference was found.
    pub(super) prints_differently: AtomicBool,
    /// The server at which the scope is followed.
    pub(super) server: watch::Sender<Option<ServedBy>>,
    /// The release that printed all objects, once it is known.
    pub(super) printed_by: Mutex<Option<Release>>,
    /// The version of upstream's last list or bookmark.
    pub(super) bookmarked: watch::Sender<ResourceVersion>,
    /// The scope from which this one is derived, if it is.
    pub(super) derived_from: ArcSwapOption<Scope>,
    /// Counts the times that its objects were found not to be upstream's.
    pub(super) quarantines: AtomicU64,
    /// Quarantines of its source before the objects were derived that are held.
    pub(super) derived_after: AtomicU64,
    /// It has no list and watch at upstream, even before its source is open.
    pub(super) derives: AtomicBool,
    /// Only derived scopes or the proxy itself read the scope so far, which need little history.
    pub(super) is_source_only: AtomicBool,
    /// True if another release than that server's printed the objects.
    pub(super) outdated: Arc<AtomicBool>,
    pub(super) idle: IdleTracker,
    pub(super) charges: Mutex<ScopeCharges>,
    pub(super) stop: CancellationToken,
    /// It is closed for lack of memory, so nothing of it is to be held any more.
    pub(super) frees_memory: AtomicBool,
    /// Bytes of compressed forms at the last tick.
    pub(super) compressed: AtomicUsize,
}

impl Drop for Scope {
    /// A large type takes longer to free than others wait, so another thread usually does it. The
    /// task that wrote it has ended.
    fn drop(&mut self) {
        let stats = self.reader.stats();
        let charges = self.charges.lock().take();
        retire((self.reader.clone(), charges), stats.objects + stats.events);
    }
}

impl Scope {
    /// Waits for the first list, at most until `wait` has passed since the scope was opened.
    pub async fn wait_until_ready(&self, wait: Duration) -> Result<Arc<ReadyScope>, NotReady> {
        let mut phase = self.phase.clone();
        let settled = phase.wait_for(|phase| !matches!(phase, ScopePhase::Syncing));
        match tokio::time::timeout(wait.saturating_sub(self.opened.elapsed()), settled).await {
            Err(_) => Err(NotReady::Syncing),
            Ok(Err(_)) => Err(NotReady::Stopped(Stopped::Failed)),
            Ok(Ok(phase)) => match &*phase {
                ScopePhase::Ready(_) if self.source_is_quarantined() => Err(NotReady::Quarantined),
                ScopePhase::Ready(ready) => Ok(Arc::clone(ready)),
                ScopePhase::Stopped(why) => Err(NotReady::Stopped(why.clone())),
                ScopePhase::Stale(_) => Err(NotReady::Stale),
                ScopePhase::Quarantined => Err(NotReady::Quarantined),
                ScopePhase::SchemaChanged => Err(NotReady::SchemaChanged),
                ScopePhase::Syncing | ScopePhase::Failing => Err(NotReady::Syncing),
            },
        }
    }

    /// Waits until the scope is ready or stopped, however long that takes.
    pub async fn wait_until_settled(&self) -> Result<Arc<ReadyScope>, Stopped> {
        let mut phase = self.phase.clone();
        match phase
            .wait_for(|phase| matches!(phase, ScopePhase::Ready(_) | ScopePhase::Stopped(_)))
            .await
            .as_deref()
        {
            Ok(ScopePhase::Ready(ready)) => Ok(Arc::clone(ready)),
            Ok(ScopePhase::Stopped(why)) => Err(why.clone()),
            _ => Err(Stopped::Failed),
        }
    }

    /// Returns the present phase. A scope is quarantined with its source, whether it knows that yet
    /// or not.
    pub fn phase(&self) -> ScopePhase {
        let phase = self.phase.borrow().clone();
        match phase {
            ScopePhase::Ready(_) | ScopePhase::Stale(_) if self.source_is_quarantined() => {
                ScopePhase::Quarantined
            }
            phase => phase,
        }
    }

    /// Returns `true` if upstream compresses watches that begin with the state, and the scope's own
    /// was asked to be: bytes from upstream are dearer than CPU there.
    pub fn streams_compressed(&self) -> bool {
        let source = self.derived_from.load();
        let followed = source.as_deref().unwrap_or(self);
        followed.is_compressed.load(Ordering::Relaxed)
    }

    /// Returns `true` if what is held was derived from objects that were found not to be
    /// upstream's.
    pub(super) fn source_is_quarantined(&self) -> bool {
        let source = self.derived_from.load();
        source.as_ref().is_some_and(|source| {
            let quarantines = source.quarantines.load(Ordering::Acquire);
            quarantines != self.derived_after.load(Ordering::Acquire)
        })
    }

    /// Returns `true` if upstream's changes arrive: a watch is open, or was a moment ago.
    pub fn is_following(&self) -> bool {
        *self.following.borrow()
    }

    /// Returns [`Scope::is_following`] as a value whose changes can be waited for.
    pub fn following(&self) -> watch::Receiver<bool> {
        self.following.subscribe()
    }

    pub(super) fn set_following(&self, now: bool) {
        self.following
            .send_if_modified(|following| std::mem::replace(following, now) != now);
    }

    /// Returns the time for which upstream's changes have not arrived; `None` while they do.
    pub fn age(&self) -> Option<Duration> {
        self.age.get()
    }

    /// Returns `true` if some of what followed on `version` happened before the scope's first list.
    /// The scope never knew that history; upstream may.
    pub fn is_before_first_list(&self, version: ResourceVersion) -> bool {
        self.first_list
            .get()
            .is_some_and(|first| version < *first && self.reader.oldest_version() == *first)
    }

    /// Returns `true` if upstream may have the history after `version`, which is not held here.
    ///
    /// A watch cache forgets as this scope does. A type without one is read from etcd.
    pub fn is_history_at_upstream(&self, version: ResourceVersion) -> bool {
        self.key.gvr.is_event() && version.0 >= self.timeline_start.load(Ordering::Acquire)
    }

    /// Returns `true` if upstream may have dropped its state at `version`, and then refuses to show
    /// it. Scopes keep some states for longer.
    pub fn may_be_dropped_upstream(&self, version: ResourceVersion) -> bool {
        self.shown.load().has_outlived(version)
    }

    /// Returns `true` if the scope has no list and watch at upstream, as it is derived from
    /// another.
    pub fn is_derived(&self) -> bool {
        self.derives.load(Ordering::Relaxed)
    }

    /// Returns the part of each object that is held, as metrics and pages name it.
    pub fn content(&self) -> &'static str {
        let metadata_only = self.key.representation.metadata_only;
        match (metadata_only, self.managed_fields) {
            (false, ManagedFields::Keep) => "objects",
            (false, ManagedFields::Drop) => "objects-without-managed-fields",
            (true, ManagedFields::Keep) => "metadata",
            (true, ManagedFields::Drop) => "metadata-without-managed-fields",
        }
    }

    /// Returns a client that asks the server at which the scope is followed: another one may be of
    /// another release, and print objects differently.
    pub fn beside(&self, client: &UpstreamClient) -> UpstreamClient {
        let server = self.server.borrow().clone();
        server.map_or_else(|| client.clone(), |server| client.beside(&server))
    }

    /// Returns `true` if memory should have the bytes that the followed server prints.
    pub fn is_printed_by_its_server(&self) -> bool {
        let is_up_to_date =
            |scope: &Self| scope.age().is_none() && !scope.outdated.load(Ordering::Relaxed);
        let source = self.derived_from.load();
        is_up_to_date(self) && source.as_ref().is_none_or(|source| is_up_to_date(source))
    }

    /// Returns the version of the scope's list, if upstream was asked for it at `moment` or later:
    /// what is held is no older than that.
    pub fn listed_since(&self, moment: Instant) -> Option<ResourceVersion> {
        self.listed.since(moment)
    }

    /// Waits until the scope has reached `version`. Returns `false` if it did not within `wait`.
    pub async fn wait_until_version(&self, version: ResourceVersion, wait: Duration) -> bool {
        let reached = self.version_waiters.wait(version, || self.reader.version());
        tokio::time::timeout(wait, reached).await.is_ok()
    }

    /// Waits until the scope has reached `version`, which upstream had before. Returns `false` if it
    /// did not within `wait`, or at once if nothing has come since such a wait was in vain: the pages
    /// of a long list would each wait for an idle type.
    pub async fn catch_up_with(&self, version: ResourceVersion, wait: Duration) -> bool {
        let reached = || self.reader.version();
        self.version_waiters.catch_up(version, reached, wait).await
    }

    /// Returns `true` if what is held is of the present timeline of upstream's versions. If not, it
    /// is about to be dropped, and must not be shown any more.
    pub fn is_current(&self) -> bool {
        self.held_in.load(Ordering::Acquire) == self.timeline.number()
    }

    /// Prepares a consistent question about the scope's type. Call it before the question is sent.
    pub fn ask(&self) -> Question {
        self.timeline.ask(&self.key.gvr, self.shown.load_full())
    }

    /// Records that `snapshot`, one of this scope's, has upstream's objects at `version`; see
    /// [`StoreReader::confirm`].
    pub fn confirm(&self, snapshot: Snapshot, version: ResourceVersion) {
        self.reader.confirm(snapshot, version);
        self.publish_version();
    }

    /// Records that upstream has objects to which the events up to `version` have not led. A watch
    /// that brings no event for long after that is opened again.
    pub fn lacks_events_after(&self, version: ResourceVersion) {
        // Events of derived scopes come by the watch of their source.
        let source = self.derived_from.load();
        let watched = source.as_deref().unwrap_or(self);
        watched.lacking.send_replace(version);
    }

    /// Charges the budget with what is held now.
    pub(super) fn count_held(&self) {
        // Under the lock, so that a later figure is not replaced by an earlier one.
        let mut charges = self.charges.lock();
        charges.set(self.held_alone());
    }

    /// Returns the bytes that are held, without those that count for its source.
    pub(super) fn held_alone(&self) -> HeldBytes {
        let mut held = self.reader.held();
        if let Some(source) = self.derived_from.load().as_ref() {
            let shared = self.reader.shared_after(source.reader.oldest_version());
            held.history = held.history.saturating_sub(shared);
        }
        held
    }

    /// Returns the bytes that the budget is charged with.
    pub fn held(&self) -> usize {
        self.charges.lock().bytes()
    }

    /// Wakes those who wait for the newest version.
    pub(super) fn publish_version(&self) {
        // Loaded first: a version of a timeline that ends meanwhile is not shown in the next one.
        let shown = self.shown.load_full();
        let version = self.reader.version();
        shown.raise(version);
        self.version_waiters.arrived(version);
    }
}
