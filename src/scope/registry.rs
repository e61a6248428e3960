//! The scopes of this process.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use watershed_protocol::{GroupVersionResource, Representation, Selection};

use super::cached::Scope;
use super::checkpoint::{CheckpointBody, Checkpoints, ClusterIdentity, ReplicaStates};
use super::config::{Derivation, ScopeConfig, ScopeOptions};
use super::creator::{ManagedFieldsPolicy, ScopeCreator};
use super::derived::OpenSource;
use super::handle::ScopeHandle;
use super::key::{ObjectShape, ScopeKey};
use super::open_scopes::OpenScopes;
use super::phase::ScopePhase;
use super::schema_changes::SchemaChanges;
use super::timeline::Timeline;
use super::unfit::UnfitScopes;
use crate::budget::{MemoryBudget, PressureStep};
use crate::upstream::{ServedBy, UpstreamClient};

/// Interval between sweeps for idle scopes.
const IDLE_SWEEP: Duration = Duration::from_secs(1);
/// Longest wait for the tasks of scopes at the end of the process.
const SHUT_DOWN: Duration = Duration::from_secs(1);

/// All scopes of this process. The first request that wants a scope opens it.
#[derive(Clone)]
pub struct Scopes {
    open: OpenScopes,
    schema_changes: SchemaChanges,
    creator: ScopeCreator,
    cluster: Arc<ClusterIdentity>,
}

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
        let open = OpenScopes::default();
        let creator = ScopeCreator::new(client, config, open.clone());
        Self {
            cluster: Arc::new(ClusterIdentity::new(&creator.client, &creator.timeline)),
            open,
            schema_changes: SchemaChanges::default(),
            creator,
        }
    }

    /// Holds types with or without managed fields. Without this, all are held with them.
    #[must_use]
    pub fn with_managed_fields(mut self, managed_fields: ManagedFieldsPolicy) -> Self {
        self.creator.managed_fields = managed_fields;
        self
    }

    /// Begins scopes with their checkpoints, and writes these (see [`save_regularly`]).
    ///
    /// [`save_regularly`]: super::save_regularly
    #[must_use]
    pub fn with_checkpoints(mut self, checkpoints: Option<Checkpoints>) -> Self {
        self.creator.shared.earlier.checkpoints = checkpoints;
        self
    }

    /// Begins scopes with the states of another replica, where there is no checkpoint.
    #[must_use]
    pub fn with_replica(mut self, replica: Option<ReplicaStates>) -> Self {
        self.creator.shared.earlier.replica = replica;
        self
    }

    /// Returns the checkpoints, if there are any.
    pub(super) fn checkpoints(&self) -> Option<&Checkpoints> {
        self.creator.shared.earlier.checkpoints.as_ref()
    }

    /// Returns what knows upstream's cluster.
    pub fn cluster(&self) -> &Arc<ClusterIdentity> {
        &self.cluster
    }

    /// Returns `true` if a scope can answer reads. Opens nothing.
    pub fn is_ready(&self, key: &ScopeKey) -> bool {
        let scope = self.get(key);
        scope.is_some_and(|scope| matches!(scope.phase(), ScopePhase::Ready(_)))
    }

    /// Captures the state of a scope for another replica; `None` if it is not held, or cannot be
    /// shown again exactly. Opens nothing, and waits for no scope.
    pub async fn checkpoint(&self, key: &ScopeKey) -> Option<CheckpointBody> {
        let scope = self.get(key)?;
        if scope.is_derived() || !scope.history.timeline().is(self.timeline()) {
            return None;
        }
        let cluster = self.cluster.get().await?;
        CheckpointBody::of(&scope, cluster)
    }

    /// Charges the scopes to this budget.
    #[must_use]
    pub fn within(mut self, budget: &MemoryBudget) -> Self {
        self.creator.budget = budget.clone();
        self
    }

    /// Returns the budget that the scopes are charged to.
    pub fn budget(&self) -> &MemoryBudget {
        &self.creator.budget
    }

    /// Returns the scopes that did not fit into it.
    pub(super) fn unfit(&self) -> &UnfitScopes {
        &self.creator.shared.unfit
    }

    /// Gives each of these aggregated API groups a timeline of its own.
    #[must_use]
    pub fn with_aggregated(mut self, groups: &[String]) -> Self {
        let timelines = groups
            .iter()
            .map(|group| (group.clone(), Timeline::default()));
        self.creator.aggregated = Arc::new(timelines.collect());
        self
    }

    /// Returns the timeline of the API server's versions.
    pub fn timeline(&self) -> &Timeline {
        &self.creator.timeline
    }

    /// Returns the server at which a scope met another release than before, the last one. It
    /// changes with each scope that does.
    pub fn releases(&self) -> watch::Receiver<Option<ServedBy>> {
        self.creator.shared.releases.subscribe()
    }

    /// Returns the settings of scopes.
    pub fn config(&self) -> &ScopeConfig {
        &self.creator.config
    }

    /// Returns the client that lists and watches the scopes.
    pub(super) fn client(&self) -> &UpstreamClient {
        &self.creator.client
    }

    /// Returns `true` if scopes were listed, and none of them may be served any more, as upstream
    /// cannot be followed. One type that fails does not count.
    pub fn are_stale(&self) -> bool {
        let scopes = self.all();
        let any = |is: fn(&ScopePhase) -> bool| scopes.iter().any(|scope| is(&scope.phase()));
        any(|phase| matches!(phase, ScopePhase::Stale(_)))
            && !any(|phase| matches!(phase, ScopePhase::Ready(_)))
    }

    /// Returns the scope with this key; opens it if it is not open. It stays open for as long as
    /// the process runs.
    pub fn open(&self, key: &ScopeKey, shape: &ObjectShape) -> Arc<Scope> {
        self.open_pinned(key, shape, ScopeOptions::of_proxy())
    }

    /// Opens a scope like [`Self::open`], for callers that only follow changes. They need not begin
    /// with the most recent state, as all later changes follow as events. So neither an API server nor a
    /// proxy before it has to prove which state that is.
    pub fn open_for_changes(&self, key: &ScopeKey, shape: &ObjectShape) -> Arc<Scope> {
        let options = ScopeOptions {
            begins_with_any_state: true,
            ..ScopeOptions::of_proxy()
        };
        self.open_pinned(key, shape, options)
    }

    fn open_pinned(
        &self,
        key: &ScopeKey,
        shape: &ObjectShape,
        options: ScopeOptions,
    ) -> Arc<Scope> {
        let mut open = self.open.lock();
        let scopes = open.entry(key.gvr.clone()).or_default();
        let scope = self.open_among(scopes, key, shape, options);
        scope.idle.pin();
        scope
    }

    /// Returns a handle to the scope that `choose` picks; opens it if it is not open and memory
    /// allows. `choose` gets the type's open scopes, in all its versions and representations.
    pub fn acquire(
        &self,
        gvr: &GroupVersionResource,
        representation: Representation,
        shape: &ObjectShape,
        choose: impl FnOnce(
            &mut dyn Iterator<Item = &Arc<Scope>>,
        ) -> Option<(Arc<Selection>, ScopeOptions)>,
    ) -> Result<ScopeHandle, NotAcquired> {
        let mut open = self.open.lock();
        let mut present = open
            .iter()
            .filter(|(other, _)| other.group == gvr.group && other.resource == gvr.resource)
            .flat_map(|(_, scopes)| scopes.values());
        let (selection, options) = choose(&mut present).ok_or(NotAcquired::NotChosen)?;
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
        let is_source = options.derivation == Derivation::Source;
        let (window, idle) = (options.window, options.idle);
        let scope = self.open_among(scopes, &key, shape, options);
        if !is_source && scope.is_source_only.swap(false, Ordering::Relaxed) {
            scope
                .reader
                .set_window(self.config().window_of(gvr, window));
            scope
                .history
                .postpone_beginning(scope.reader.oldest_version());
            scope.idle.set_limit(idle);
        }
        // The handle counts before the lock is released: no sweep can close the scope meanwhile.
        Ok(ScopeHandle::new(&scope))
    }

    /// Returns `true` if memory allows to open a scope.
    fn may_open(&self, key: &ScopeKey) -> bool {
        self.budget().free().is_none_or(|free| {
            self.budget().step() < PressureStep::RefuseScopes
                && free > 0
                && self.unfit().may_fit(key, free, Instant::now())
        })
    }

    /// Returns the scope with this key, if it is open.
    pub fn get(&self, key: &ScopeKey) -> Option<Arc<Scope>> {
        self.open.lock().get(&key.gvr)?.get(key).cloned()
    }

    /// Returns the open scopes of a type whose selections fit.
    pub fn selected(
        &self,
        gvr: &GroupVersionResource,
        fits: impl Fn(&Selection) -> bool,
    ) -> Vec<Arc<Scope>> {
        let open = self.open.lock();
        let scopes = open.get(gvr).into_iter().flat_map(HashMap::values);
        scopes
            .filter(|scope| fits(&scope.key.selection))
            .cloned()
            .collect()
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
        // First: a scope that is opened meanwhile is told by one of both.
        self.schema_changes.record(gvr);
        let mut open = self.open.lock();
        let Some(scopes) = open.get_mut(gvr) else {
            return;
        };
        scopes.retain(|_, scope| {
            scope.signals.schema_changed();
            // What could not be cached under the old schema is tried again with the next request.
            let stopped = matches!(scope.phase(), ScopePhase::Stopped(_));
            if stopped {
                scope.signals.stop();
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
            scope.signals.type_removed();
            tokio::spawn(async move {
                sleep(grace).await;
                scope.signals.stop();
            });
        }
    }

    /// Lets go of a scope that stopped. The next opening begins anew, without the usual wait.
    pub fn forget(&self, stopped: &Arc<Scope>) {
        self.open.forget(stopped);
        // It may be refused, and about to try again.
        stopped.signals.stop();
    }

    /// Closes every scope, as the process ends, and waits for their tasks. They would take the end of
    /// the process for a fault of upstream's.
    pub async fn shut_down(&self) {
        let scopes: Vec<_> = self
            .open
            .lock()
            .drain()
            .flat_map(|(_, scopes)| scopes.into_values())
            .collect();
        // A source after what is derived from it.
        let (derived, others): (Vec<_>, Vec<_>) =
            scopes.into_iter().partition(|scope| scope.is_derived());
        for scopes in [derived, others] {
            let ends = scopes.iter().map(|scope| {
                scope.signals.stop();
                scope.ended()
            });
            if timeout(SHUT_DOWN, join_all(ends)).await.is_err() {
                tracing::debug!("scopes did not close in time");
            }
        }
    }

    /// Closes scopes that nobody has used for their idle limit, and drops the states of the others that
    /// nobody has paged through for long. Never returns.
    pub async fn close_idle(self) {
        loop {
            sleep(IDLE_SWEEP).await;
            self.close_idle_at(Instant::now());
            for scope in self.all() {
                scope.reader.drop_old_pins(Instant::now());
            }
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
                representation = %scope.key.representation,
                selection = %scope.key.selection,
                "closed an idle scope"
            );
            scope.signals.stop();
        }
    }

    fn open_among(
        &self,
        scopes: &mut HashMap<ScopeKey, Arc<Scope>>,
        key: &ScopeKey,
        shape: &ObjectShape,
        options: ScopeOptions,
    ) -> Arc<Scope> {
        if let Some(scope) = scopes.get(key) {
            return Arc::clone(scope);
        }
        let open_source = |key, options| self.opener(key, shape, options);
        let scope = self.creator.create(key, shape, options, open_source);
        if self.schema_changes.has_just_changed(&key.gvr) {
            scope.signals.schema_changed();
        }
        scopes.insert(key.clone(), Arc::clone(&scope));
        scope
    }

    /// Returns what opens the scope from which others are derived.
    fn opener(&self, key: ScopeKey, shape: &ObjectShape, options: ScopeOptions) -> OpenSource {
        let scopes = self.clone();
        let shape = shape.clone();
        Box::new(move || {
            let source = scopes.acquire(&key.gvr, key.representation, &shape, |_| {
                Some((Arc::clone(&key.selection), options.clone()))
            });
            source.ok()
        })
    }
}
