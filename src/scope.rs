//! One cached scope: a task that pumps what upstream says into a store.
pub mod gauges;
mod handle;
pub mod metrics;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::metric::{Counter, Metric};
use crate::store::{
    self, Layout, Snapshot, SnapshotBuilder, StoreReader, StoreWriter, StoredObject, WindowLimits,
};
use crate::upstream::{
    Change, Collect, Reflector, ReflectorTarget, Stopped, UpstreamClient, WatchCompression,
};
use crate::watcher::Bookmarks;
use handle::IdleTracker;
pub use handle::{Retention, ScopeHandle};
use watershed_protocol::{
    BookmarkFormat, FieldTable, GroupVersionResource, Representation, ResourceVersion, Scanned,
    Selection, WireFormat,
};

/// A scope that stopped is opened anew after this long at the earliest; requests are forwarded
/// meanwhile.
pub(crate) const REOPEN_AFTER: Duration = Duration::from_secs(30);
/// After a schema change an API server builds the type's storage anew, within about a second.
/// Should it have ended our watch before the change was seen here, the scope is listed again after
/// this.
const REBUILD: Duration = Duration::from_secs(2);

/// A watch that ended in good order is open again after milliseconds; a scope that waits longer
/// does not follow.
const REOPENED: Duration = Duration::from_secs(2);

/// How scopes keep their data.
#[derive(Clone, Copy, Debug)]
pub struct ScopeConfig {
    /// How much history each scope keeps.
    pub window: WindowLimits,
    /// How long after its opening requests wait for a scope's first list; then they are forwarded,
    /// as they are when the first attempt at it fails.
    pub sync_wait: Duration,
}

impl Default for ScopeConfig {
    fn default() -> Self {
        Self {
            // Clients that reconnect within this time go on without a new list. kube-apiserver
            // promises 75 s; rolling restarts of large clusters take minutes.
            window: WindowLimits {
                age: Duration::from_mins(5),
                bytes: 256 << 20,
            },
            sync_wait: Duration::from_secs(30),
        }
    }
}

/// What a scope covers: the objects of a type, or some of them, in one representation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScopeKey {
    /// The type.
    pub gvr: GroupVersionResource,
    /// Which of its objects.
    pub selection: Arc<Selection>,
    /// The representation it is held in, and no more of its objects than that.
    pub representation: Representation,
}

impl ScopeKey {
    /// All objects of a type.
    pub fn everything(gvr: GroupVersionResource, representation: Representation) -> Self {
        Self {
            gvr,
            selection: Arc::default(),
            representation,
        }
    }
}

/// Where a scope is in its life.
#[derive(Clone, Debug)]
pub enum ScopePhase {
    /// The first list is under way.
    Syncing,
    /// The first list failed, and is tried again.
    Failing,
    /// Reads can be answered.
    Ready(Arc<ReadyScope>),
    /// It cannot be cached for now.
    Stopped(Stopped),
}

/// What a synced scope knows beside its objects.
#[derive(Debug)]
pub struct ReadyScope {
    /// How upstream frames lists and events of the type.
    pub format: Arc<WireFormat>,
    /// Whether upstream serves sendInitialEvents for the type.
    pub streams_initial_events: bool,
    /// Upstream's Warning headers on reads of the type, for example of its deprecation.
    pub warnings: Vec<HeaderValue>,
}

/// A handle to one scope.
#[derive(Debug)]
pub struct Scope {
    /// What it covers.
    pub key: ScopeKey,
    /// The type's selectable fields.
    pub fields: Arc<FieldTable>,
    /// Its objects and events.
    pub reader: StoreReader,
    /// It covers what a client asked for, and is not one that the configuration names.
    pub on_demand: bool,
    /// Upstream's form of bookmarks, once known.
    pub bookmarks: Bookmarks,
    /// Whether upstream compresses the type's watches, learned when a client would have it so.
    pub compression: WatchCompression,
    /// When upstream last said something: an event, a bookmark or a list.
    pub last_heard: Mutex<Instant>,
    following: watch::Sender<bool>,
    first_list: OnceLock<ResourceVersion>,
    opened: Instant,
    phase: watch::Receiver<ScopePhase>,
    /// The version of the newest snapshot, for those who wait for one.
    reached: watch::Sender<ResourceVersion>,
    schema_changed: Notify,
    usage: IdleTracker,
    stop: CancellationToken,
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
                ScopePhase::Ready(ready) => Ok(Arc::clone(ready)),
                ScopePhase::Stopped(why) => Err(NotReady::Stopped(why.clone())),
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

    /// Whether upstream's changes arrive: a watch is open, or was a moment ago.
    pub fn is_following(&self) -> bool {
        *self.following.borrow()
    }

    /// The same, for those who wait for it to turn.
    pub fn following(&self) -> watch::Receiver<bool> {
        self.following.subscribe()
    }

    fn set_following(&self, now: bool) {
        self.following
            .send_if_modified(|following| std::mem::replace(following, now) != now);
    }

    /// Whether what followed on `version` happened, at least in part, before this scope was first
    /// listed: it never knew that history, where upstream may.
    pub fn is_before_first_list(&self, version: ResourceVersion) -> bool {
        self.first_list
            .get()
            .is_some_and(|first| version < *first && self.reader.oldest_version() == *first)
    }

    /// Waits until the scope has reached `version`; says whether it did.
    pub async fn wait_until_version(&self, version: ResourceVersion, wait: Duration) -> bool {
        let mut reached = self.reached.subscribe();
        let wanted = reached.wait_for(|reached| *reached >= version);
        matches!(tokio::time::timeout(wait, wanted).await, Ok(Ok(_)))
    }

    /// Takes it that `snapshot`, one of this scope's, has upstream's objects at `version`; see
    /// [`StoreReader::confirm`].
    pub fn confirm(&self, snapshot: Snapshot, version: ResourceVersion) {
        self.reader.confirm(snapshot, version);
        self.tell_reached();
    }

    /// Looked up while nobody else can tell: a later version is never followed by an earlier one.
    fn tell_reached(&self) {
        self.reached
            .send_modify(|reached| *reached = self.reader.version());
    }

    /// Where it is in its life.
    pub fn phase(&self) -> ScopePhase {
        self.phase.borrow().clone()
    }
}

/// Why a scope cannot answer now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotReady {
    /// The first list is still under way.
    #[error("the first list is not in yet")]
    Syncing,
    /// Upstream does not let it be cached.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The open scopes of a type.
type Family = HashMap<ScopeKey, Arc<Scope>>;

/// All scopes of this process. Opened lazily, by the first client that wants one.
#[derive(Clone)]
pub struct Scopes {
    client: UpstreamClient,
    config: ScopeConfig,
    open: Arc<Mutex<HashMap<GroupVersionResource, Family>>>,
    /// What the newest bookmarks that tell it told ([`BookmarkFormat::null_in_structs`]).
    null_in_structs: Arc<Mutex<Option<bool>>>,
}

impl Scopes {
    /// No scope yet.
    pub fn new(client: UpstreamClient, config: ScopeConfig) -> Self {
        Self {
            client,
            config,
            open: Arc::default(),
            null_in_structs: Arc::default(),
        }
    }

    /// How scopes keep their data.
    pub fn config(&self) -> &ScopeConfig {
        &self.config
    }

    /// The scope with this key; opened if it is not. It stays open for as long as the process runs.
    pub fn open(&self, key: &ScopeKey, kind: &Arc<str>, fields: &Arc<FieldTable>) -> Arc<Scope> {
        let mut open = self.open.lock();
        let family = open.entry(key.gvr.clone()).or_default();
        let scope = self.of_family(family, key, kind, fields, Retention::default());
        scope.usage.pin();
        scope
    }

    /// Lends the scope that is chosen with a look at the type's open ones, in all its versions and
    /// representations; it is opened if it is not.
    pub fn acquire(
        &self,
        of: (&GroupVersionResource, Representation),
        kind: &Arc<str>,
        fields: &Arc<FieldTable>,
        choose: impl FnOnce(
            &mut dyn Iterator<Item = &Arc<Scope>>,
        ) -> Option<(Arc<Selection>, Retention)>,
    ) -> Option<ScopeHandle> {
        let (gvr, representation) = of;
        let mut open = self.open.lock();
        let of_type = |other: &GroupVersionResource| {
            other.group == gvr.group && other.resource == gvr.resource
        };
        let mut present = open
            .iter()
            .filter(|(other, _)| of_type(other))
            .flat_map(|(_, family)| family.values());
        let (selection, keep) = choose(&mut present)?;
        let family = open.entry(gvr.clone()).or_default();
        let key = ScopeKey {
            gvr: gvr.clone(),
            selection,
            representation,
        };
        Some(ScopeHandle::new(
            &self.of_family(family, &key, kind, fields, keep),
        ))
    }

    fn of_family(
        &self,
        family: &mut Family,
        key: &ScopeKey,
        kind: &Arc<str>,
        fields: &Arc<FieldTable>,
        keep: Retention,
    ) -> Arc<Scope> {
        if let Some(scope) = family.get(key) {
            return Arc::clone(scope);
        }
        let target = ReflectorTarget {
            gvr: key.gvr.clone(),
            selection: Arc::clone(&key.selection),
            kind: Arc::clone(kind),
            representation: key.representation,
            fields: Arc::clone(fields),
        };
        let scope = self.start(key.clone(), target, keep);
        family.insert(key.clone(), Arc::clone(&scope));
        scope
    }

    /// The scope with this key, if it is open.
    pub fn get(&self, key: &ScopeKey) -> Option<Arc<Scope>> {
        self.open.lock().get(&key.gvr)?.get(key).cloned()
    }

    /// Every scope there is, for metrics and pages.
    pub fn all(&self) -> Vec<Arc<Scope>> {
        self.open
            .lock()
            .values()
            .flat_map(HashMap::values)
            .cloned()
            .collect()
    }

    /// The type's schema changed: what upstream serves for the same versions may differ now, so its
    /// scopes are listed again, as soon as upstream has taken the schema into use.
    pub fn schema_changed(&self, gvr: &GroupVersionResource) {
        let mut open = self.open.lock();
        let Some(family) = open.get_mut(gvr) else {
            return;
        };
        family.retain(|_, scope| {
            scope.schema_changed.notify_one();
            // What could not be cached under the old schema is tried again with the next request.
            !matches!(scope.phase(), ScopePhase::Stopped(_))
        });
    }

    /// Closes every scope: the process ends.
    pub fn shut_down(&self) {
        self.open
            .lock()
            .drain()
            .flat_map(|(_, family)| family)
            .for_each(|(_, scope)| scope.stop.cancel());
    }

    /// Lets go of a scope that stopped, so that the next request opens a new one.
    fn forget(&self, scope: &Arc<Scope>) {
        let mut open = self.open.lock();
        let Some(family) = open.get_mut(&scope.key.gvr) else {
            return;
        };
        if family
            .get(&scope.key)
            .is_some_and(|known| Arc::ptr_eq(known, scope))
        {
            family.remove(&scope.key);
        }
    }

    /// The type changed its shape or is gone: the next request opens a new scope. The old one's
    /// watches end at once, or after `grace`: objects of a type that is being deleted are still
    /// deleted one by one, and watchers are owed those events, as upstream sends them.
    pub fn close(&self, gvr: &GroupVersionResource, grace: Duration) {
        let closed = self.open.lock().remove(gvr);
        for scope in closed.into_iter().flat_map(HashMap::into_values) {
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                scope.stop.cancel();
            });
        }
    }

    fn start(&self, key: ScopeKey, target: ReflectorTarget, keep: Retention) -> Arc<Scope> {
        let (writer, reader) = store::new(keep.window.unwrap_or(self.config.window));
        let (publish, phase) = watch::channel(ScopePhase::Syncing);
        let compression = WatchCompression::new(
            self.client.clone(),
            key.gvr.clone(),
            &key.selection,
            key.representation,
        );
        let scope = Arc::new(Scope {
            key,
            on_demand: keep.on_demand,
            usage: IdleTracker::new(keep.idle),
            compression,
            fields: Arc::clone(&target.fields),
            reader,
            bookmarks: Arc::new(ArcSwapOption::empty()),
            last_heard: Mutex::new(Instant::now()),
            following: watch::Sender::new(false),
            first_list: OnceLock::new(),
            opened: Instant::now(),
            phase,
            reached: watch::Sender::default(),
            schema_changed: Notify::new(),
            stop: CancellationToken::new(),
        });
        let pump = Pump {
            reflector: Reflector::new(self.client.clone(), target),
            writer,
            format: None,
            publish,
            events: metrics::of_type(metrics::UPSTREAM_EVENTS, &scope.key.gvr),
            scope: Arc::clone(&scope),
            scopes: self.clone(),
            list_again: None,
            reopened_by: None,
            stopped: Stopped::Closed,
        };
        tokio::spawn(pump.run());
        scope
    }
}

/// The task of a scope.
struct Pump {
    reflector: Reflector,
    writer: StoreWriter,
    /// That of the last list.
    format: Option<Arc<WireFormat>>,
    publish: watch::Sender<ScopePhase>,
    events: Counter,
    scope: Arc<Scope>,
    scopes: Scopes,
    /// When the scope is to be listed again, after a schema change.
    list_again: Option<Instant>,
    /// Upstream ended the watch: unless it is open again by then, nothing is followed.
    reopened_by: Option<Instant>,
    /// Why the task is over, once it is; closed, when the runtime ends it.
    stopped: Stopped,
}

impl Pump {
    async fn run(mut self) {
        self.stopped = loop {
            let list_again = self.list_again;
            let change = tokio::select! {
                () = self.scope.stop.cancelled() => break Stopped::Closed,
                () = self.scope.schema_changed.notified() => {
                    self.reflector.schema_changed();
                    self.list_again = Some(Instant::now() + REBUILD);
                    continue;
                }
                () = sleep_until(list_again.unwrap_or_else(Instant::now).into()), if list_again.is_some() => {
                    tracing::info!(resource = %self.scope.key.gvr, "the type's schema changed; listing again");
                    self.list_again = None;
                    self.reflector.restart();
                    continue;
                }
                () = sleep_until(self.reopened_by.unwrap_or_else(Instant::now).into()), if self.reopened_by.is_some() => {
                    self.reopened_by = None;
                    self.scope.set_following(false);
                    continue;
                }
                change = self.reflector.next() => change,
            };
            match change {
                Ok(change) => self.take_in(change),
                Err(stopped) => break stopped,
            }
        };
    }

    fn count(&self, metric: Metric<Counter, 2>) -> Counter {
        metrics::of_type(metric, &self.scope.key.gvr)
    }

    fn learn_bookmark(&self, format: Option<BookmarkFormat>) {
        if let Some(format) = format {
            let known = {
                let mut known = self.scopes.null_in_structs.lock();
                *known = format.null_in_structs().or(*known);
                *known
            };
            self.scope
                .bookmarks
                .store(Some(Arc::new(format.with_null_in_structs(known))));
        }
    }

    fn take_in(&mut self, change: Change<SnapshotBuilder>) {
        let now = Instant::now();
        if matches!(change, Change::Ended) {
            self.reopened_by = Some(now + REOPENED);
            return;
        }
        self.reopened_by = None;
        let interrupted = matches!(change, Change::Interrupted);
        self.scope.set_following(!interrupted);
        if interrupted {
            self.publish.send_if_modified(|phase| {
                let first = matches!(phase, ScopePhase::Syncing);
                if first {
                    *phase = ScopePhase::Failing;
                }
                first
            });
            return;
        }
        *self.scope.last_heard.lock() = now;
        match change {
            Change::Listed {
                format,
                version,
                objects,
                streams_initial_events,
                warnings,
                bookmark,
            } => {
                self.learn_bookmark(bookmark);
                let snapshot = objects.finish(version);
                self.format = Some(Arc::clone(&format));
                tracing::info!(resource = %self.scope.key.gvr, encoding = ?self.scope.key.representation.encoding,
                    metadata_only = self.scope.key.representation.metadata_only, %version, objects = snapshot.len(), bytes = snapshot.size(), "listed");
                self.count(metrics::UPSTREAM_LISTS).increment(1);
                self.scope.first_list.get_or_init(|| version);
                self.writer.replace(snapshot);
                self.publish
                    .send_replace(ScopePhase::Ready(Arc::new(ReadyScope {
                        format,
                        streams_initial_events,
                        warnings,
                    })));
            }
            Change::Event(frame, scanned) => {
                self.events.increment(1);
                let Some(format) = &self.format else { return };
                let object = stored(format, &frame.object, scanned);
                if let Err(error) = self.writer.apply(now, frame, object) {
                    tracing::error!(resource = %self.scope.key.gvr, %error, "upstream's events do not add up; listing again");
                    self.reflector.restart();
                    self.scope.set_following(false);
                }
            }
            Change::Progress { version, format } => {
                self.learn_bookmark(format);
                self.writer.progress(now, version);
            }
            Change::Resumed => self.count(metrics::UPSTREAM_RESUMES).increment(1),
            Change::Interrupted | Change::Ended => {}
        }
        self.scope.tell_reached();
    }
}

/// An object as the store takes it: a slice of what was received.
fn stored(format: &WireFormat, object: &Bytes, scanned: Scanned) -> StoredObject {
    StoredObject {
        bytes: format.item_bytes(object),
        version: scanned.version,
        attributes: scanned.attributes,
    }
}

impl Collect for SnapshotBuilder {
    fn begin(format: &Arc<WireFormat>, fields: &FieldTable) -> Self {
        Self::new(Layout {
            format: Arc::clone(format),
            indexed: fields.indexed(),
        })
    }

    fn add(&mut self, object: &Bytes, scanned: Scanned) {
        self.put(stored(self.format(), object, scanned));
    }
}

impl Drop for Pump {
    /// However the task ends, even by a panic: nobody waits for a scope that stands still.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stopped = Stopped::Failed;
        }
        let (scope, scopes) = (Arc::clone(&self.scope), self.scopes.clone());
        match &self.stopped {
            Stopped::Closed => {
                tracing::debug!(resource = %scope.key.gvr, representation = ?scope.key.representation, "closed");
            }
            why => {
                let representation = scope.key.representation;
                tracing::info!(resource = %scope.key.gvr, selection = %scope.key.selection, ?representation, reason = %why,
                    "not cached; its requests are forwarded");
            }
        }
        let gvr = &scope.key.gvr;
        let reason = self.stopped.as_str();
        let labels = [
            gvr.group.clone().into(),
            gvr.resource.clone().into(),
            reason.into(),
        ];
        metrics::STOPPED.with(labels).increment(1);
        scope.set_following(false);
        self.publish
            .send_replace(ScopePhase::Stopped(self.stopped.clone()));
        self.writer.close();
        // Who closed it has let go of it.
        if self.stopped == Stopped::Closed {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let scope = Arc::downgrade(&scope);
            runtime.spawn(async move {
                sleep(REOPEN_AFTER).await;
                if let Some(scope) = scope.upgrade() {
                    scopes.forget(&scope);
                }
            });
        }
    }
}
