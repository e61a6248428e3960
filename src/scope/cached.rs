//! One cached scope, as its readers see it.
mod age;
mod charges;
mod consistent_list;
mod found_differences;
mod held_history;
mod idle;
mod objects_print;
mod signals;
mod source_link;
mod upstream_forms;
mod upstream_watch;
mod version_waiters;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use watershed_protocol::{FieldTable, ManagedFields, ResourceVersion};

use super::config::{Derivation, ScopeOptions};
use super::key::ScopeKey;
use super::phase::{NotReady, ReadyScope, ScopePhase};
use super::timeline::{Question, Timeline};
use crate::budget::MemoryBudget;
use crate::store::{HeldBytes, Snapshot, StoreReader};
use crate::upstream::{Probe, ReflectorTarget, Stopped, UpstreamClient};
use crate::work::retire;
use charges::ScopeMemory;
use found_differences::FoundDifferences;
use held_history::HeldHistory;
use idle::IdleTracker;
use signals::ScopeSignals;
use source_link::SourceLink;
use upstream_forms::UpstreamForms;
use upstream_watch::UpstreamWatch;
use version_waiters::VersionWaiters;

pub(super) use charges::discard;
pub(super) use found_differences::DifferingPart;
pub(super) use objects_print::ObjectsPrint;
pub(super) use signals::ScopeSignal;

/// The objects and events of one scope, and how far its task is.
#[derive(Debug)]
pub struct Scope {
    /// The objects it covers.
    pub key: ScopeKey,
    /// The type's selectable fields.
    pub fields: Arc<FieldTable>,
    /// The treatment of the objects' managed fields.
    pub managed_fields: ManagedFields,
    /// The scope covers what a client asked for; the configuration does not name it.
    pub on_demand: bool,
    /// Only derived scopes or the proxy itself read the scope so far, which need little history.
    pub(super) is_source_only: AtomicBool,
    /// Its objects and events.
    pub reader: StoreReader,
    pub(super) opened: Instant,
    /// A random number, which no other scope has, of any process.
    pub id: u64,
    pub(super) phase: watch::Receiver<ScopePhase>,
    /// Its watch at upstream.
    pub upstream: UpstreamWatch,
    /// The forms in which upstream sends its objects.
    pub forms: UpstreamForms,
    /// The history to which its objects belong.
    pub(super) history: HeldHistory,
    /// Readers that wait for the newest snapshot to reach a version.
    pub(super) version_waiters: VersionWaiters,
    pub(super) differences: FoundDifferences,
    /// The scope from which this one is derived, if it is.
    pub(super) source: SourceLink<Self>,
    pub(super) print: Arc<ObjectsPrint>,
    pub(super) idle: IdleTracker,
    pub(super) memory: ScopeMemory,
    pub(super) signals: ScopeSignals,
}

/// The parts that a scope is made of.
pub(super) struct ScopeParts<'a> {
    pub(super) client: &'a UpstreamClient,
    pub(super) target: &'a ReflectorTarget,
    pub(super) timeline: Timeline,
    pub(super) key: ScopeKey,
    pub(super) options: &'a ScopeOptions,
    pub(super) reader: StoreReader,
    pub(super) phase: watch::Receiver<ScopePhase>,
    pub(super) budget: &'a MemoryBudget,
}

impl Drop for Scope {
    /// A large type takes longer to free than others wait, so another thread usually does it. The
    /// task that wrote it has ended.
    fn drop(&mut self) {
        let stats = self.reader.stats();
        let charges = self.memory.charges.lock().take();
        retire((self.reader.clone(), charges), stats.objects + stats.events);
    }
}

impl Scope {
    /// Returns a scope before its first list.
    pub(super) fn new(parts: ScopeParts<'_>) -> Self {
        let ScopeParts {
            client,
            target,
            timeline,
            key,
            options,
            reader,
            phase,
            budget,
        } = parts;
        Self {
            history: HeldHistory::new(&timeline, &key.gvr),
            key,
            fields: Arc::clone(&target.fields),
            managed_fields: target.managed_fields,
            on_demand: options.origin.is_on_demand(),
            is_source_only: AtomicBool::new(options.derivation == Derivation::Source),
            reader,
            opened: Instant::now(),
            id: getrandom::u64().expect("the operating system gives random bytes"),
            phase,
            upstream: UpstreamWatch::new(),
            forms: UpstreamForms::new(client, target),
            version_waiters: VersionWaiters::default(),
            differences: FoundDifferences::default(),
            source: SourceLink::new(),
            print: Arc::default(),
            idle: IdleTracker::new(options.idle),
            memory: ScopeMemory::new(budget),
            signals: ScopeSignals::default(),
        }
    }

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

    /// Waits until the scope is ready and upstream's changes arrive, or the scope is stopped, however
    /// long that takes.
    pub async fn wait_until_followed(&self) -> Result<Arc<ReadyScope>, Stopped> {
        let (mut delivering, mut phase) = (self.upstream.delivering(), self.phase.clone());
        loop {
            let ready = self.wait_until_settled().await?;
            if *delivering.borrow_and_update() {
                return Ok(ready);
            }
            let other = phase.wait_for(|phase| !matches!(phase, ScopePhase::Ready(_)));
            tokio::select! {
                _ = delivering.changed() => {}
                _ = other => {}
            }
        }
    }

    /// Waits until a scope that was refused is ready after all. Never returns if it has ended.
    pub async fn wait_until_recovered(&self) {
        let mut phase = self.phase.clone();
        let ready = phase.wait_for(|phase| matches!(phase, ScopePhase::Ready(_)));
        if ready.await.is_err() {
            pending::<()>().await;
        }
    }

    /// Waits until the scope's task has ended.
    pub(super) async fn ended(&self) {
        let mut phase = self.phase.clone();
        let _ = phase
            .wait_for(|phase| matches!(phase, ScopePhase::Stopped(_)))
            .await;
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
    /// was asked to be: bytes from upstream cost more than CPU there.
    pub fn streams_compressed(&self) -> bool {
        let source = self.source.get();
        let followed = source.as_deref().unwrap_or(self);
        followed.upstream.is_compressed()
    }

    /// Returns `true` if what is held was derived from objects that were found not to be
    /// upstream's.
    pub(super) fn source_is_quarantined(&self) -> bool {
        self.source
            .get()
            .as_ref()
            .is_some_and(|source| source.differences.quarantines() != self.source.quarantines())
    }

    /// Returns `true` if some of what followed on `version` happened before the scope's first list, or
    /// was dropped while only derived scopes read it. No reader of it ever had that history; upstream
    /// may have it.
    pub fn is_before_first_list(&self, version: ResourceVersion) -> bool {
        self.history
            .beginning()
            .is_some_and(|first| version < first && self.reader.oldest_version() == first)
    }

    /// Returns `true` if upstream may have the history after `version`, which is not held here.
    ///
    /// A watch cache forgets as this scope does. A type without one is read from etcd.
    pub fn is_history_at_upstream(&self, version: ResourceVersion) -> bool {
        self.key.gvr.is_event() && self.history.is_of_timeline(version)
    }

    /// Returns `true` if upstream may have dropped its state at `version`, and then refuses to show
    /// it. Scopes keep some states for longer.
    pub fn may_be_dropped_upstream(&self, version: ResourceVersion) -> bool {
        self.history.newest().has_outlived(version)
    }

    /// Returns `true` if the scope has no list and watch at upstream, as it is derived from
    /// another.
    pub fn is_derived(&self) -> bool {
        self.source.is_derived()
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

    /// Returns `true` if the release that printed the objects is known.
    #[cfg(test)]
    pub(crate) fn knows_release(&self) -> bool {
        self.print.release().is_some()
    }

    /// Returns a client that asks the server at which the scope is followed: another one may be of
    /// another release, and print objects differently.
    pub fn beside(&self, client: &UpstreamClient) -> UpstreamClient {
        let server = self.upstream.server();
        server.map_or_else(|| client.clone(), |server| client.beside(&server))
    }

    /// Returns a probe of the scope's objects at upstream.
    pub fn probe(&self, client: UpstreamClient) -> Probe {
        let ScopeKey { gvr, selection, .. } = &self.key;
        Probe::new(client, gvr, selection, self.fields.namespaced())
    }

    /// Returns the time for which upstream's changes have not arrived, here or at the scope's source; `None`
    /// while they do.
    pub fn age(&self) -> Option<Duration> {
        let source = self.source.get();
        let of_source = source.as_ref().and_then(|source| source.upstream.age());
        self.upstream.age().max(of_source)
    }

    /// Returns `true` if memory should have the bytes that the followed server prints.
    pub fn is_printed_by_its_server(&self) -> bool {
        let source = self.source.get();
        let is_outdated = |scope: &Self| scope.print.is_outdated();
        self.age().is_none()
            && !is_outdated(self)
            && source.as_ref().is_none_or(|source| !is_outdated(source))
    }

    /// Returns the version of the scope's list, if upstream was asked for it at `moment` or later:
    /// what is held is no older than that.
    pub fn listed_since(&self, moment: Instant) -> Option<ResourceVersion> {
        self.history.listed_since(moment)
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
        self.history.is_current()
    }

    /// Prepares a consistent question about the scope's type. Call it before the question is sent.
    pub fn ask(&self) -> Question {
        self.history
            .timeline()
            .ask(&self.key.gvr, Arc::clone(&self.history.newest()))
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
        let source = self.source.get();
        let watched = source.as_deref().unwrap_or(self);
        watched.upstream.record_lacking(version);
    }

    /// Charges the budget with what is held now.
    pub(super) fn count_held(&self) {
        // Under the lock, so that a later figure is not replaced by an earlier one.
        let mut charges = self.memory.charges.lock();
        charges.set(self.held_alone());
    }

    /// Returns the bytes that are held, without those that count for its source.
    pub(super) fn held_alone(&self) -> HeldBytes {
        let mut held = self.reader.held();
        if let Some(source) = self.source.get().as_ref() {
            let shared = self.reader.shared_after(source.reader.oldest_version());
            held.history = held.history.saturating_sub(shared);
        }
        held
    }

    /// Returns the bytes that the budget is charged with.
    pub fn held(&self) -> usize {
        self.memory.charges.lock().bytes()
    }

    /// Wakes those who wait for the newest version.
    pub(super) fn publish_version(&self) {
        // Loaded first: a version of a timeline that ends meanwhile is not shown in the next one.
        let newest = self.history.newest();
        let version = self.reader.version();
        newest.raise(version);
        self.version_waiters.arrived(version);
    }
}
