//! The scopes of this process.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use watershed_protocol::{
    Encoding, FieldTable, GroupVersionResource, ManagedFields, Representation, ResourceVersion,
    Selection,
};

use super::cached::Scope;
use super::charges::ScopeCharges;
use super::checkpoint::{CheckpointBody, Checkpoints, ClusterIdentity, ReplicaStates};
use super::config::{Derivation, Retention, ScopeConfig};
use super::consistent_list::ConsistentList;
use super::continuity::Continuity;
use super::derived::{DerivationFailures, DerivedFeed, JsonPrinter, PrintingThreads};
use super::earlier_states::EarlierStates;
use super::feed::ScopeFeed;
use super::handle::ScopeHandle;
use super::idle::IdleTracker;
use super::key::ScopeKey;
use super::metrics;
use super::open_scopes::OpenScopes;
use super::overdue::OverdueEvents;
use super::phase::ScopePhase;
use super::pump::{NullInStructs, PumpTimers, ScopePump};
use super::release::{LEARNERS, ReleaseLearner};
use super::staleness::{ScopeAge, StalenessClock};
use super::streaming::StreamingLearner;
use super::timeline::Timeline;
use super::unfit::UnfitScopes;
use super::version_waiters::VersionWaiters;
use crate::budget::{MemoryBudget, PressureStep};
use crate::store::{self, StoreReader};
use crate::upstream::{
    InitialEventsProbe, Probe, Reflector, ReflectorTarget, ServedBy, Stopped, TableForms,
    UpstreamClient, WatchCompression,
};

/// Interval between sweeps for idle scopes.
const IDLE_SWEEP: Duration = Duration::from_secs(1);

/// All scopes of this process. The first request that wants a scope opens it.
#[derive(Clone)]
pub struct Scopes {
    client: UpstreamClient,
    config: ScopeConfig,
    open: OpenScopes,
    null_in_structs: Arc<NullInStructs>,
    timeline: Timeline,
    /// The timelines of aggregated API groups, whose servers number their versions by themselves.
    aggregated: Arc<HashMap<String, Timeline>>,
    /// Permits to learn the form of another release.
    learners: Arc<Semaphore>,
    /// The server at which a scope met another release than before, the last one.
    releases: Arc<watch::Sender<Option<ServedBy>>>,
    budget: MemoryBudget,
    unfit: Arc<UnfitScopes>,
    earlier: EarlierStates,
    cluster: Arc<ClusterIdentity>,
    /// Types whose JSON is not derived from protobuf.
    failures: Arc<DerivationFailures>,
    /// Threads that print the JSON of others.
    printing: PrintingThreads,
    managed_fields: ManagedFieldsPolicy,
}

/// Returns the treatment of managed fields of a type.
pub type ManagedFieldsPolicy = Arc<dyn Fn(&GroupVersionResource) -> ManagedFields + Send + Sync>;

/// The reason why there is no scope for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAcquired {
    /// None was chosen.
    NotChosen,
    /// It is not open, and memory is too short to open it.
    NoMemory,
}

impl Scopes {
    /// Creates a registry without scopes.
    pub fn new(client: UpstreamClient, config: ScopeConfig) -> Self {
        let timeline = Timeline::default();
        Self {
            cluster: Arc::new(ClusterIdentity::new(&client, &timeline)),
            client,
            config,
            open: OpenScopes::default(),
            null_in_structs: Arc::default(),
            timeline,
            aggregated: Arc::default(),
            learners: Arc::new(Semaphore::new(LEARNERS)),
            releases: Arc::default(),
            budget: MemoryBudget::default(),
            unfit: Arc::default(),
            earlier: EarlierStates::default(),
            failures: Arc::default(),
            printing: PrintingThreads::of_process(),
            managed_fields: Arc::new(|_| ManagedFields::Keep),
        }
    }

    /// Holds types with or without managed fields. Without this, all are held with them.
    #[must_use]
    pub fn with_managed_fields(self, managed_fields: ManagedFieldsPolicy) -> Self {
        Self {
            managed_fields,
            ..self
        }
    }

    /// Begins scopes with their checkpoints, and writes these (see [`save_regularly`]).
    ///
    /// [`save_regularly`]: super::save_regularly
    #[must_use]
    pub fn with_checkpoints(mut self, checkpoints: Option<Checkpoints>) -> Self {
        self.earlier.checkpoints = checkpoints;
        self
    }

    /// Begins scopes with the states of another replica, where there is no checkpoint.
    #[must_use]
    pub fn with_replica(mut self, replica: Option<ReplicaStates>) -> Self {
        self.earlier.replica = replica;
        self
    }

    /// Returns the checkpoints, if there are any.
    pub(super) fn checkpoints(&self) -> Option<&Checkpoints> {
        self.earlier.checkpoints.as_ref()
    }

    /// Returns what knows upstream's cluster.
    pub fn cluster(&self) -> &Arc<ClusterIdentity> {
        &self.cluster
    }

    /// Returns true if a scope can answer reads. Opens nothing.
    pub fn is_ready(&self, key: &ScopeKey) -> bool {
        let scope = self.get(key);
        scope.is_some_and(|scope| matches!(scope.phase(), ScopePhase::Ready(_)))
    }

    /// Captures the state of a scope for another replica; `None` if it is not held, or cannot be
    /// shown again exactly. Opens nothing, and waits for no scope.
    pub async fn checkpoint(&self, key: &ScopeKey) -> Option<CheckpointBody> {
        let scope = self.get(key)?;
        if scope.is_derived() || !scope.timeline.is(&self.timeline) {
            return None;
        }
        let cluster = self.cluster.get().await?;
        CheckpointBody::of(&scope, cluster)
    }

    /// Charges the scopes to this budget.
    #[must_use]
    pub fn within(self, budget: &MemoryBudget) -> Self {
        Self {
            budget: budget.clone(),
            ..self
        }
    }

    /// Returns the budget that the scopes are charged to.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Returns the scopes that did not fit into it.
    pub(super) fn unfit(&self) -> &UnfitScopes {
        &self.unfit
    }

    /// Gives each of these aggregated API groups a timeline of its own.
    #[must_use]
    pub fn with_aggregated(self, groups: &[String]) -> Self {
        let timelines = groups
            .iter()
            .map(|group| (group.clone(), Timeline::default()));
        Self {
            aggregated: Arc::new(timelines.collect()),
            ..self
        }
    }

    /// Returns the timeline of the API server's versions.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns the server at which a scope met another release than before, the last one. It
    /// changes with each scope that does.
    pub fn releases(&self) -> watch::Receiver<Option<ServedBy>> {
        self.releases.subscribe()
    }

    /// Returns the settings of scopes.
    pub fn config(&self) -> &ScopeConfig {
        &self.config
    }

    /// Returns the client that lists and watches the scopes.
    pub(super) fn client(&self) -> &UpstreamClient {
        &self.client
    }

    /// Returns true if scopes were listed, and none of them may be served any more, as upstream
    /// cannot be followed. One type that fails does not count.
    pub fn are_stale(&self) -> bool {
        let scopes = self.all();
        let any = |is: fn(&ScopePhase) -> bool| scopes.iter().any(|scope| is(&scope.phase()));
        any(|phase| matches!(phase, ScopePhase::Stale(_)))
            && !any(|phase| matches!(phase, ScopePhase::Ready(_)))
    }

    /// Returns the scope with this key; opens it if it is not open. It stays open for as long as
    /// the process runs.
    pub fn open(&self, key: &ScopeKey, kind: &Arc<str>, fields: &Arc<FieldTable>) -> Arc<Scope> {
        let mut open = self.open.lock();
        let scopes = open.entry(key.gvr.clone()).or_default();
        let retention = Retention {
            indispensable: true,
            ..Retention::default()
        };
        let scope = self.open_among(scopes, key, kind, fields, retention);
        scope.idle.pin();
        scope
    }

    /// Returns a handle to the scope that `choose` picks; opens it if it is not open and memory
    /// allows. `choose` gets the type's open scopes, in all its versions and representations.
    pub fn acquire(
        &self,
        of: (&GroupVersionResource, Representation),
        kind: &Arc<str>,
        fields: &Arc<FieldTable>,
        choose: impl FnOnce(
            &mut dyn Iterator<Item = &Arc<Scope>>,
        ) -> Option<(Arc<Selection>, Retention)>,
    ) -> Result<ScopeHandle, NotAcquired> {
        let (gvr, representation) = of;
        let mut open = self.open.lock();
        let mut present = open
            .iter()
            .filter(|(other, _)| other.group == gvr.group && other.resource == gvr.resource)
            .flat_map(|(_, scopes)| scopes.values());
        let (selection, retention) = choose(&mut present).ok_or(NotAcquired::NotChosen)?;
        let key = ScopeKey {
            gvr: gvr.clone(),
            selection,
            representation,
        };
        let is_open = open.get(gvr).is_some_and(|open| open.contains_key(&key));
        if !is_open && !self.may_open(&key) {
            return Err(NotAcquired::NoMemory);
        }
        let scopes = open.entry(gvr.clone()).or_default();
        let is_source = retention.derivation == Derivation::Source;
        let (window, idle) = (retention.window, retention.idle);
        let scope = self.open_among(scopes, &key, kind, fields, retention);
        if !is_source && scope.is_source_only.swap(false, Ordering::Relaxed) {
            scope
                .reader
                .set_window(window.unwrap_or(self.config.window));
            scope.idle.set_limit(idle);
        }
        // The handle counts before the lock is released: no sweep can close the scope meanwhile.
        Ok(ScopeHandle::new(&scope))
    }

    /// Returns true if memory allows to open a scope.
    fn may_open(&self, key: &ScopeKey) -> bool {
        self.budget.free().is_none_or(|free| {
            self.budget.step() < PressureStep::RefuseScopes
                && free > 0
                && self.unfit.may_fit(key, free, Instant::now())
        })
    }

    /// Returns the scope with this key, if it is open.
    pub fn get(&self, key: &ScopeKey) -> Option<Arc<Scope>> {
        self.open.lock().get(&key.gvr)?.get(key).cloned()
    }

    /// Returns every open scope, for metrics and pages.
    pub fn all(&self) -> Vec<Arc<Scope>> {
        self.open
            .lock()
            .values()
            .flat_map(HashMap::values)
            .cloned()
            .collect()
    }

    /// Has the scopes of a type listed again, as its schema changed: what upstream serves for the
    /// same versions may differ now. They wait until upstream has taken the schema into use.
    pub fn schema_changed(&self, gvr: &GroupVersionResource) {
        let mut open = self.open.lock();
        let Some(scopes) = open.get_mut(gvr) else {
            return;
        };
        scopes.retain(|_, scope| {
            scope.schema_changed.notify_one();
            // What could not be cached under the old schema is tried again with the next request.
            let stopped = matches!(scope.phase(), ScopePhase::Stopped(_));
            if stopped {
                scope.stop.cancel();
            }
            !stopped
        });
    }

    /// Closes the scopes of a type, as it changed its shape or is gone. The next request opens a
    /// new scope.
    ///
    /// The old one's watches end after `grace`, or once upstream refuses the type. Objects of a
    /// type that is being deleted are deleted one by one, and watchers are owed those events, as
    /// upstream sends them.
    pub fn close(&self, gvr: &GroupVersionResource, grace: Duration) {
        let closed = self.open.lock().remove(gvr);
        for scope in closed.into_iter().flat_map(HashMap::into_values) {
            scope.type_removed.notify_one();
            tokio::spawn(async move {
                sleep(grace).await;
                scope.stop.cancel();
            });
        }
    }

    /// Lets go of a scope that stopped. The next opening begins anew, without the usual wait.
    pub fn forget(&self, stopped: &Arc<Scope>) {
        self.open.forget(stopped);
    }

    /// Closes every scope: the process ends.
    pub fn shut_down(&self) {
        self.open
            .lock()
            .drain()
            .flat_map(|(_, scopes)| scopes)
            .for_each(|(_, scope)| scope.stop.cancel());
    }

    /// Closes scopes that nobody has used for their idle limit. Never returns.
    pub async fn close_idle(self) {
        loop {
            sleep(IDLE_SWEEP).await;
            self.close_idle_at(Instant::now());
        }
    }

    pub(super) fn close_idle_at(&self, now: Instant) {
        // Without the lock, as each store has one of its own, which a change may hold.
        let is_watched = |scope: &Arc<Scope>| scope.reader.stats().watchers > 0;
        let mut idle = self.all();
        idle.retain(|scope| scope.idle.is_expired(is_watched(scope), now));
        if idle.is_empty() {
            return;
        }
        let mut closed = Vec::new();
        let mut open = self.open.lock();
        for scopes in open.values_mut() {
            // Somebody may have acquired it since. Who watches holds a handle while it begins.
            let expired = scopes.extract_if(|_, scope| {
                idle.iter().any(|idle| Arc::ptr_eq(idle, scope))
                    && scope.idle.is_expired(false, now)
            });
            closed.extend(expired.map(|(_, scope)| scope));
        }
        open.retain(|_, scopes| !scopes.is_empty());
        drop(open);
        for scope in closed {
            tracing::info!(
                resource = %scope.key.gvr,
                selection = %scope.key.selection,
                "closed, as nobody used it"
            );
            scope.stop.cancel();
        }
    }

    fn open_among(
        &self,
        scopes: &mut HashMap<ScopeKey, Arc<Scope>>,
        key: &ScopeKey,
        kind: &Arc<str>,
        fields: &Arc<FieldTable>,
        retention: Retention,
    ) -> Arc<Scope> {
        if let Some(scope) = scopes.get(key) {
            return Arc::clone(scope);
        }
        let target = ReflectorTarget {
            gvr: key.gvr.clone(),
            selection: Arc::clone(&key.selection),
            kind: Arc::clone(kind),
            representation: key.representation,
            fields: Arc::clone(fields),
            managed_fields: (self.managed_fields)(&key.gvr),
        };
        let scope = self.start(key.clone(), target, retention);
        scopes.insert(key.clone(), Arc::clone(&scope));
        scope
    }

    /// Returns the feed of a scope in JSON whose changes are derived from the type's scope in
    /// protobuf; `None` if they are not to be derived.
    fn derived(
        &self,
        key: &ScopeKey,
        target: &ReflectorTarget,
        retention: &Retention,
        shown: &StoreReader,
    ) -> Option<DerivedFeed> {
        let Representation {
            encoding,
            metadata_only,
        } = key.representation;
        // The servers of aggregated groups print as they like.
        let may_derive = retention.derivation == Derivation::Derived
            && encoding == Encoding::Json
            && !self.aggregated.contains_key(&*key.gvr.group)
            && !self.failures.contains(&key.gvr, metadata_only);
        if !may_derive {
            return None;
        }
        let printer = JsonPrinter::of_type(&key.gvr, &target.kind, metadata_only)?;
        let representation = Representation {
            encoding: Encoding::Protobuf,
            metadata_only,
        };
        let retention = Retention {
            // The scope that is derived counts.
            owner: None,
            ..retention.clone().of_source(self.config.window)
        };
        let scopes = self.clone();
        let (gvr, selection) = (key.gvr.clone(), Arc::clone(&key.selection));
        let (kind, fields) = (Arc::clone(&target.kind), Arc::clone(&target.fields));
        let open_source = move || {
            let of = (&gvr, representation);
            let source = scopes.acquire(of, &kind, &fields, |_| {
                Some((Arc::clone(&selection), retention.clone()))
            });
            source.ok()
        };
        Some(DerivedFeed::new(
            self.client.clone(),
            target.clone(),
            printer,
            Box::new(open_source),
            shown.clone(),
            &self.printing,
        ))
    }

    /// Starts the task of a new scope.
    fn start(&self, key: ScopeKey, target: ReflectorTarget, retention: Retention) -> Arc<Scope> {
        let (mut writer, reader) = store::new(retention.window.unwrap_or(self.config.window));
        let probe = key.gvr.is_event().then(|| {
            writer.expect_shared_deletions();
            Probe::new(
                self.client.clone(),
                &key.gvr,
                &key.selection,
                target.fields.namespaced(),
            )
        });
        let (publish_phase, phase) = watch::channel(ScopePhase::Syncing);
        let initial_events = InitialEventsProbe::new(
            self.client.clone(),
            &key.gvr,
            &key.selection,
            key.representation,
        );
        let scope = Arc::new(self.new_scope(key, &target, &retention, reader, phase));
        let release = ReleaseLearner::new(
            self.client.clone(),
            target.clone(),
            scope.reader.clone(),
            Arc::clone(&self.learners),
            Arc::clone(&scope.outdated),
        );
        let pump = ScopePump {
            feed: self.feed(&scope, target, &retention),
            failures: Arc::clone(&self.failures),
            unfit: Arc::clone(&self.unfit),
            continuity: Continuity::new(self.client.clone(), &scope),
            writer,
            probe,
            phase: publish_phase,
            events: metrics::of_type(&metrics::UPSTREAM_EVENTS, &scope.key.gvr),
            scope: Arc::clone(&scope),
            open: self.open.clone(),
            null_in_structs: Arc::clone(&self.null_in_structs),
            timers: PumpTimers::default(),
            streaming: StreamingLearner::new(initial_events),
            release,
            is_rewritten: false,
            followed_release: None,
            releases: Arc::clone(&self.releases),
            list_asked: None,
            ready: None,
            refused_since: None,
            staleness: StalenessClock::new(
                retention.max_staleness.unwrap_or(self.config.max_staleness),
            ),
            overdue: OverdueEvents::new(
                scope.lacking.subscribe(),
                scope.reader.clone(),
                self.config.overdue,
            ),
            earlier: self.earlier.clone(),
            restoring: None,
            stopped: Stopped::Closed,
            _owner: retention.owner,
        };
        tokio::spawn(pump.run());
        scope
    }

    /// Returns a scope before its first list.
    fn new_scope(
        &self,
        key: ScopeKey,
        target: &ReflectorTarget,
        retention: &Retention,
        reader: StoreReader,
        phase: watch::Receiver<ScopePhase>,
    ) -> Scope {
        let compression = WatchCompression::new(
            self.client.clone(),
            key.gvr.clone(),
            &key.selection,
            key.representation,
        );
        let tables = TableForms::new(self.client.clone(), key.gvr.clone(), &key.selection);
        let timeline = self
            .aggregated
            .get(&*key.gvr.group)
            .unwrap_or(&self.timeline);
        let shown = timeline.newest(&key.gvr);
        Scope {
            key,
            timeline: timeline.clone(),
            held_in: AtomicU64::new(shown.timeline()),
            shown: ArcSwap::new(shown),
            on_demand: retention.on_demand,
            idle: IdleTracker::new(retention.idle),
            charges: Mutex::new(ScopeCharges::new(&self.budget)),
            compression,
            tables,
            fields: Arc::clone(&target.fields),
            managed_fields: target.managed_fields,
            reader,
            bookmarks: Arc::new(ArcSwapOption::empty()),
            irreducible: Arc::default(),
            unprintable: Arc::default(),
            last_heard: Mutex::new(Instant::now()),
            following: watch::Sender::new(false),
            lacking: watch::Sender::default(),
            age: ScopeAge::new(),
            first_list: OnceLock::new(),
            listed: ConsistentList::default(),
            timeline_start: AtomicU64::new(0),
            opened: Instant::now(),
            phase,
            version_waiters: VersionWaiters::default(),
            schema_changed: Notify::new(),
            type_removed: Notify::new(),
            found_different: Notify::new(),
            printed_by: Mutex::default(),
            prints_differently: AtomicBool::new(false),
            server: watch::Sender::default(),
            bookmarked: watch::Sender::new(ResourceVersion::default()),
            derived_from: ArcSwapOption::empty(),
            quarantines: AtomicU64::new(0),
            derived_after: AtomicU64::new(0),
            derives: AtomicBool::new(false),
            is_source_only: AtomicBool::new(retention.derivation == Derivation::Source),
            outdated: Arc::new(AtomicBool::new(false)),
            stop: CancellationToken::new(),
            frees_memory: AtomicBool::new(false),
            compressed: AtomicUsize::new(0),
        }
    }

    /// Returns the source of a scope's changes.
    fn feed(
        &self,
        scope: &Arc<Scope>,
        target: ReflectorTarget,
        retention: &Retention,
    ) -> ScopeFeed {
        let mut derived = self.derived(&scope.key, &target, retention, &scope.reader);
        let mut reflector = Reflector::new(self.client.clone(), target)
            .compressed(self.config.compression)
            .lasting(self.config.watch_lifetime);
        if !retention.indispensable {
            let estimates = !self.unfit.is_to_be_tried(&scope.key, Instant::now());
            derived = derived.map(|derived| derived.within(&self.budget, estimates));
            reflector = reflector.within(&self.budget, estimates);
        }
        ScopeFeed::new(scope, reflector, derived, &self.failures)
    }
}
