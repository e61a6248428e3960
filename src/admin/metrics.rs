//! Gauges of the scopes, read when somebody asks. The names stand here and nowhere else.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use metrics::{describe_counter, describe_gauge, gauge};
use parking_lot::Mutex;

use super::State;
use crate::scope::{Scope, ScopeKey, ScopePhase};
use crate::store::StoreStats;
use watershed_protocol::{Encoding, GroupVersionResource, Representation, Selection};

/// Always 1; its labels say what runs.
pub const BUILD_INFO: &str = "watershed_build_info";
/// Types that discovery shows as listable and watchable.
pub const TYPES: &str = "watershed_types";
/// 1 when the scope answers, 0 while it syncs or is not cached.
pub const READY: &str = "watershed_scope_ready";
/// 1 while upstream's changes arrive, 0 while upstream cannot be followed.
pub const FOLLOWING: &str = "watershed_scope_following";
/// Objects of the newest snapshot.
pub const OBJECTS: &str = "watershed_scope_objects";
/// Their bytes.
pub const OBJECT_BYTES: &str = "watershed_scope_object_bytes";
/// Bytes of what is kept compressed beside them.
pub const COMPRESSED_BYTES: &str = "watershed_scope_compressed_bytes";
/// Events in the window.
pub const WINDOW_EVENTS: &str = "watershed_scope_window_events";
/// Their bytes.
pub const WINDOW_BYTES: &str = "watershed_scope_window_bytes";
/// The resourceVersion reached.
pub const VERSION: &str = "watershed_scope_resource_version";
/// Seconds since upstream last said something.
pub const SILENCE: &str = "watershed_scope_last_heard_seconds";
/// Watches that follow the scope.
pub const WATCHERS: &str = "watershed_scope_watchers";

/// How many scopes the others are of: those of a type that were opened by demand are shown
/// together.
pub const COUNT: &str = "watershed_scope_count";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    metrics_process::Collector::default().describe();
    describe_gauge!(
        BUILD_INFO,
        "Always 1. The labels say which version runs, and on what."
    );
    describe_gauge!(
        TYPES,
        "Types that upstream's discovery shows as listable and watchable."
    );
    describe_gauge!(
        READY,
        "1 when the scope answers from memory, 0 while it syncs or is not cached."
    );
    describe_gauge!(
        FOLLOWING,
        "1 while upstream's changes arrive, 0 while upstream cannot be followed and is tried again."
    );
    describe_gauge!(OBJECTS, "Objects in the scope's newest snapshot.");
    describe_gauge!(
        OBJECT_BYTES,
        "Bytes held for the objects of the scope's newest snapshot."
    );
    describe_gauge!(
        COMPRESSED_BYTES,
        "Bytes held beside the objects of the scope's newest snapshot for clients that take gzip."
    );
    describe_gauge!(
        WINDOW_EVENTS,
        "Events in the scope's window of recent events."
    );
    describe_gauge!(
        WINDOW_BYTES,
        "Bytes held for the scope's window of recent events."
    );
    describe_gauge!(VERSION, "The resourceVersion that the scope has reached.");
    describe_gauge!(
        SILENCE,
        "Seconds since upstream last sent an event, bookmark or list for the scope."
    );
    describe_gauge!(WATCHERS, "Watches that follow the scope.");
    describe_gauge!(
        COUNT,
        "Scopes that the other gauges tell of: those of a type that were opened by demand are added up, and ready if all are."
    );
    describe_counter!(
        crate::scope::STOPPED,
        "Scopes that were given up (forbidden: the proxy may not list and watch it) or closed, by the reason."
    );
    describe_counter!(
        crate::scope::UPSTREAM_LISTS,
        "Times a scope was listed at upstream, first and after a loss of history."
    );
    describe_counter!(
        crate::scope::UPSTREAM_EVENTS,
        "Events received from upstream."
    );
    describe_counter!(
        crate::scope::UPSTREAM_RESUMES,
        "Times an interrupted upstream watch went on without a loss."
    );
}

const OF_A_SCOPE: [&str; 11] = [
    READY,
    FOLLOWING,
    OBJECTS,
    OBJECT_BYTES,
    COMPRESSED_BYTES,
    WINDOW_EVENTS,
    WINDOW_BYTES,
    VERSION,
    SILENCE,
    WATCHERS,
    COUNT,
];

/// Sets the gauges when somebody asks.
#[derive(Debug, Default)]
pub struct Gauges {
    /// CPU, memory and file descriptors, under the names every Prometheus client library uses.
    process: metrics_process::Collector,
    /// The scopes shown last: those that are gone must not stay at what they were.
    shown: Mutex<HashSet<Shown>>,
}

impl Gauges {
    /// Sets all of them to what is so now.
    pub(super) fn collect(&self, state: &State) {
        self.process.collect();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "os" => std::env::consts::OS,
            "architecture" => std::env::consts::ARCH)
        .set(1.0);
        gauge!(TYPES).set(state.catalog.len() as f64);
        crate::listener::metrics::publish_certificates(
            state.proxy_tls.as_ref(),
            state.admin_tls.as_ref(),
        );
        crate::serve::metrics::publish(&state.usage);
        crate::upstream::metrics::publish(state.upstream.traffic());
        let mut now: HashMap<Shown, Sums> = HashMap::new();
        for scope in state.scopes.all() {
            now.entry(Shown::of(&scope)).or_default().add(&scope);
        }
        let gone = std::mem::replace(&mut *self.shown.lock(), now.keys().cloned().collect());
        for shown in gone.iter().filter(|shown| !now.contains_key(shown)) {
            for name in OF_A_SCOPE {
                shown.gauge(name).set(0.0);
            }
        }
        for (shown, sums) in now {
            for (name, value) in OF_A_SCOPE.iter().zip(sums.values()) {
                shown.gauge(name).set(value);
            }
        }
    }
}

/// What is shown together: a scope, or all of a type that were opened by demand. What these select
/// was made up by clients, and is no label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shown {
    gvr: GroupVersionResource,
    representation: Representation,
    /// `None` for all that were opened by demand.
    selection: Option<Arc<Selection>>,
}

#[derive(Debug, Default)]
struct Sums {
    scopes: usize,
    ready: usize,
    following: usize,
    compressed: usize,
    silence: f64,
    figures: StoreStats,
}

impl Sums {
    fn add(&mut self, scope: &Scope) {
        let figures = scope.reader.stats();
        self.scopes += 1;
        self.ready += usize::from(matches!(scope.phase(), ScopePhase::Ready(_)));
        self.following += usize::from(scope.is_following());
        self.compressed += scope.reader.snapshot().compressed_size();
        self.silence = self
            .silence
            .max(scope.last_heard.lock().elapsed().as_secs_f64());
        self.figures.version = self.figures.version.max(figures.version);
        self.figures.objects += figures.objects;
        self.figures.object_bytes += figures.object_bytes;
        self.figures.events += figures.events;
        self.figures.event_bytes += figures.event_bytes;
        self.figures.watchers += figures.watchers;
    }

    /// In the order of [`OF_A_SCOPE`].
    fn values(&self) -> [f64; OF_A_SCOPE.len()] {
        let StoreStats {
            version,
            objects,
            object_bytes,
            events,
            event_bytes,
            watchers,
        } = self.figures;
        [
            f64::from(u8::from(self.ready == self.scopes)),
            f64::from(u8::from(self.following == self.scopes)),
            objects as f64,
            object_bytes as f64,
            self.compressed as f64,
            events as f64,
            event_bytes as f64,
            version.0 as f64,
            self.silence,
            watchers as f64,
            self.scopes as f64,
        ]
    }
}

impl Shown {
    fn of(scope: &Scope) -> Self {
        let ScopeKey {
            gvr,
            selection,
            representation,
        } = scope.key.clone();
        Self {
            gvr,
            representation,
            selection: Some(selection).filter(|_| !scope.on_demand),
        }
    }

    fn gauge(&self, name: &'static str) -> metrics::Gauge {
        let key = self;
        let Representation {
            encoding,
            metadata_only,
        } = key.representation;
        let selection = key
            .selection
            .as_ref()
            .map_or_else(|| "by demand".to_owned(), ToString::to_string);
        let content = if metadata_only { "metadata" } else { "objects" };
        let encoding = match encoding {
            Encoding::Json => "json",
            Encoding::Protobuf => "protobuf",
        };
        gauge!(name, "group" => Arc::clone(&key.gvr.group), "version" => Arc::clone(&key.gvr.version),
        "resource" => Arc::clone(&key.gvr.resource), "encoding" => encoding, "content" => content, "selection" => selection)
    }
}
