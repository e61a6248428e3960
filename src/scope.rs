//! One cached scope: a task that pumps what upstream says into a store.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use metrics::{Counter, counter};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::kube::{BookmarkForm, Encoding, FieldTable, GroupVersionResource, ResourceVersion, TypeForm};
use crate::store::{self, Closed, Limits, Object, Reader, Snapshot, Writer};
use crate::upstream::{Change, Client, Reflector, Stopped, Target};
use crate::watch::Bookmarks;

/// A scope that could not be opened is tried again after this long; requests are forwarded meanwhile.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Times a scope was listed at upstream.
pub const UPSTREAM_LISTS: &str = "watershed_upstream_lists_total";
/// Events received from upstream.
pub const UPSTREAM_EVENTS: &str = "watershed_upstream_events_total";
/// Times an interrupted upstream watch went on without a loss.
pub const UPSTREAM_RESUMES: &str = "watershed_upstream_resumes_total";

/// How scopes keep their data.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How much history each scope keeps.
    pub window: Limits,
    /// How long a request waits for a scope's first list before it is forwarded.
    pub sync_wait: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Clients that reconnect within this time go on without a new list. kube-apiserver
            // promises 75 s; rolling restarts of large clusters take minutes.
            window: Limits { age: Duration::from_mins(5), bytes: 256 << 20 },
            sync_wait: Duration::from_secs(30),
        }
    }
}

/// What a scope covers: for now all objects of a type, in one representation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScopeKey {
    /// The type.
    pub gvr: GroupVersionResource,
    /// The representation it is held in.
    pub encoding: Encoding,
}

/// Where a scope is in its life.
#[derive(Clone, Debug)]
pub enum Phase {
    /// The first list is under way.
    Syncing,
    /// Reads can be answered.
    Ready(Arc<Ready>),
    /// It cannot be cached for now.
    Stopped(Stopped),
}

/// What a synced scope knows beside its objects.
#[derive(Debug)]
pub struct Ready {
    /// How upstream frames lists and events of the type.
    pub form: Arc<TypeForm>,
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
    pub reader: Reader,
    /// Upstream's form of bookmarks, once known.
    pub bookmarks: Bookmarks,
    /// When upstream last said something: an event, a bookmark or a list.
    pub last_heard: Mutex<Instant>,
    phase: watch::Receiver<Phase>,
    reached: watch::Receiver<ResourceVersion>,
    restart: tokio::sync::Notify,
    stop: CancellationToken,
    stopped_at: Mutex<Option<Instant>>,
}

impl Scope {
    /// Waits for the first list, at most until `wait` has passed.
    pub async fn ready(&self, wait: Duration) -> Result<Arc<Ready>, NotReady> {
        let mut phase = self.phase.clone();
        let settled = phase.wait_for(|phase| !matches!(phase, Phase::Syncing));
        match tokio::time::timeout(wait, settled).await {
            Err(_) => Err(NotReady::Syncing),
            Ok(Err(_)) => Err(NotReady::Stopped(Stopped::Vanished)),
            Ok(Ok(phase)) => match &*phase {
                Phase::Ready(ready) => Ok(Arc::clone(ready)),
                Phase::Stopped(why) => Err(NotReady::Stopped(why.clone())),
                Phase::Syncing => Err(NotReady::Syncing),
            },
        }
    }

    /// Waits until the scope has reached `version`; says whether it did.
    pub async fn reached(&self, version: ResourceVersion, wait: Duration) -> bool {
        let mut reached = self.reached.clone();
        let wanted = reached.wait_for(|reached| *reached >= version);
        matches!(tokio::time::timeout(wait, wanted).await, Ok(Ok(_)))
    }

    /// Where it is in its life.
    pub fn phase(&self) -> Phase {
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

/// All scopes of this process. Opened lazily, by the first client that wants one.
#[derive(Clone)]
pub struct Scopes {
    client: Client,
    config: Config,
    open: Arc<Mutex<HashMap<ScopeKey, Arc<Scope>>>>,
}

impl Scopes {
    /// No scope yet.
    pub fn new(client: Client, config: Config) -> Self {
        Self { client, config, open: Arc::default() }
    }

    /// How scopes keep their data.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The scope with this key; opened if it is not.
    pub fn open(&self, key: &ScopeKey, kind: &Arc<str>, fields: &Arc<FieldTable>) -> Arc<Scope> {
        let mut open = self.open.lock();
        if let Some(scope) = open.get(key) {
            let stopped_at = *scope.stopped_at.lock();
            if stopped_at.is_none_or(|at| at.elapsed() < TRY_AGAIN) {
                return Arc::clone(scope);
            }
        }
        let target = Target {
            gvr: key.gvr.clone(),
            kind: Arc::clone(kind),
            encoding: key.encoding,
            fields: Arc::clone(fields),
        };
        let scope = self.start(key.clone(), target);
        open.insert(key.clone(), Arc::clone(&scope));
        scope
    }

    /// Every scope there is, for metrics and pages.
    pub fn all(&self) -> Vec<Arc<Scope>> {
        self.open.lock().values().cloned().collect()
    }

    /// The type's schema changed: what upstream serves for the same versions may differ now, so its
    /// scopes are listed again.
    pub fn relist(&self, gvr: &GroupVersionResource) {
        for scope in self.open.lock().values().filter(|scope| scope.key.gvr == *gvr) {
            scope.restart.notify_one();
        }
    }

    /// The type changed its shape or is gone: the next request opens a new scope. The old one's
    /// watches end at once, or after `grace`: objects of a type that is being deleted are still
    /// deleted one by one, and watchers are owed those events, as upstream sends them.
    pub fn close(&self, gvr: &GroupVersionResource, grace: Duration) {
        let closed: Vec<_> = {
            let mut open = self.open.lock();
            open.extract_if(|key, _| key.gvr == *gvr).map(|(_, scope)| scope).collect()
        };
        for scope in closed {
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                scope.stop.cancel();
            });
        }
    }

    fn start(&self, key: ScopeKey, target: Target) -> Arc<Scope> {
        let (writer, reader) = store::new(self.config.window);
        let (publish, phase) = watch::channel(Phase::Syncing);
        let (reach, reached) = watch::channel(ResourceVersion::default());
        let scope = Arc::new(Scope {
            key,
            fields: Arc::clone(&target.fields),
            reader,
            bookmarks: Arc::new(ArcSwapOption::empty()),
            last_heard: Mutex::new(Instant::now()),
            phase,
            reached,
            restart: tokio::sync::Notify::new(),
            stop: CancellationToken::new(),
            stopped_at: Mutex::new(None),
        });
        let pump = Pump {
            reflector: Reflector::new(self.client.clone(), target),
            writer,
            publish,
            reach,
            events: counter_of(UPSTREAM_EVENTS, &scope.key.gvr),
            scope: Arc::clone(&scope),
        };
        tokio::spawn(pump.run());
        scope
    }
}

fn counter_of(name: &'static str, gvr: &GroupVersionResource) -> Counter {
    counter!(name, "group" => Arc::clone(&gvr.group), "resource" => Arc::clone(&gvr.resource))
}

/// The task of a scope.
struct Pump {
    reflector: Reflector,
    writer: Writer,
    publish: watch::Sender<Phase>,
    reach: watch::Sender<ResourceVersion>,
    events: Counter,
    scope: Arc<Scope>,
}

impl Pump {
    async fn run(mut self) {
        let stopped = loop {
            let change = tokio::select! {
                () = self.scope.stop.cancelled() => break Stopped::Vanished,
                () = self.scope.restart.notified() => {
                    tracing::info!(resource = %self.scope.key.gvr, "the type changed; listing again");
                    self.reflector.restart();
                    continue;
                }
                change = self.reflector.next() => change,
            };
            match change {
                Ok(change) => self.take_in(change),
                Err(stopped) => break stopped,
            }
        };
        tracing::info!(resource = %self.scope.key.gvr, encoding = ?self.scope.key.encoding, reason = %stopped,
            "not cached; its requests are forwarded");
        *self.scope.stopped_at.lock() = Some(Instant::now());
        self.publish.send_replace(Phase::Stopped(stopped));
        self.writer.close(Closed::Gone);
    }

    fn count(&self, name: &'static str) -> Counter {
        counter_of(name, &self.scope.key.gvr)
    }

    fn learn_bookmark(&self, form: Option<BookmarkForm>) {
        if let Some(form) = form {
            self.scope.bookmarks.store(Some(Arc::new(form)));
        }
    }

    fn take_in(&mut self, change: Change) {
        let now = Instant::now();
        *self.scope.last_heard.lock() = now;
        match change {
            Change::Listed { form, version, objects, streams_initial_events, warnings, bookmark } => {
                self.learn_bookmark(bookmark);
                let objects = objects.into_iter().map(|(bytes, scanned)| {
                    Arc::new(Object { bytes, version: scanned.version, attributes: scanned.attributes })
                });
                let snapshot = Snapshot::new(version, objects);
                tracing::info!(resource = %self.scope.key.gvr, encoding = ?self.scope.key.encoding, %version,
                    objects = snapshot.len(), bytes = snapshot.size(), "listed");
                self.count(UPSTREAM_LISTS).increment(1);
                self.writer.replace(snapshot);
                self.publish.send_replace(Phase::Ready(Arc::new(Ready {
                    form,
                    streams_initial_events,
                    warnings,
                })));
            }
            Change::Event(frame, scanned) => {
                self.events.increment(1);
                let object = Object {
                    bytes: frame.object.clone(),
                    version: scanned.version,
                    attributes: scanned.attributes,
                };
                if let Err(error) = self.writer.apply(now, frame, object) {
                    tracing::error!(resource = %self.scope.key.gvr, %error, "upstream's events do not add up; listing again");
                    self.reflector.restart();
                }
            }
            Change::Progress { version, form } => {
                self.learn_bookmark(form);
                self.writer.progress(now, version);
            }
            Change::Resumed => self.count(UPSTREAM_RESUMES).increment(1),
        }
        self.reach.send_replace(self.scope.reader.version());
    }
}
