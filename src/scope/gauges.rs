//! Gauges of scopes, set before each scrape.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use watershed_protocol::{Encoding, GroupVersionResource, Selection};

use super::{Scope, ScopeKey, ScopePhase, Scopes};
use crate::metric::{Declaration, Gauge, Metric, SharedString, labelled};
use crate::store::StoreStats;

/// Returns all metrics of this module.
pub fn declarations() -> [Declaration; GAUGES.len()] {
    GAUGES.map(|gauge| gauge.declaration())
}

/// The gauges of scopes. Scopes of a type that were opened on demand share a series.
#[derive(Debug, Default)]
pub struct ScopeGauges {
    /// The series of the last scrape. Those that are gone must not stay at what they were.
    shown: Mutex<HashSet<ScopeSeries>>,
}

impl ScopeGauges {
    /// Sets the gauges to the present figures.
    pub fn publish(&self, scopes: &Scopes) {
        let mut now: HashMap<ScopeSeries, ScopeSums> = HashMap::new();
        for scope in scopes.all() {
            now.entry(ScopeSeries::of(&scope)).or_default().add(&scope);
        }
        let before = std::mem::replace(&mut *self.shown.lock(), now.keys().cloned().collect());
        for gone in before.iter().filter(|series| !now.contains_key(series)) {
            gone.set([0.0; GAUGES.len()]);
        }
        for (series, sums) in now {
            series.set(sums.values());
        }
    }
}

/// The labels of a scope's gauges. On-demand scopes of a type share a series because clients make
/// their selections up, and these must not become label values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ScopeSeries {
    gvr: GroupVersionResource,
    encoding: Encoding,
    content: &'static str,
    /// `None` for on-demand scopes.
    selection: Option<Arc<Selection>>,
}

impl ScopeSeries {
    fn of(scope: &Scope) -> Self {
        let ScopeKey {
            gvr,
            selection,
            representation,
        } = scope.key.clone();
        Self {
            gvr: labelled(&gvr),
            encoding: representation.encoding,
            content: scope.content(),
            selection: Some(selection).filter(|_| !scope.on_demand),
        }
    }

    /// Sets all gauges, in the order of [`GAUGES`].
    fn set(&self, values: [f64; GAUGES.len()]) {
        for (gauge, value) in GAUGES.iter().zip(values) {
            gauge.with(self.labels()).set(value);
        }
    }

    fn labels(&self) -> [SharedString; LABELS.len()] {
        let encoding = self.encoding.as_str();
        let selection = match &self.selection {
            Some(selection) => selection.to_string().into(),
            None => "on-demand".into(),
        };
        [
            Arc::clone(&self.gvr.group).into(),
            Arc::clone(&self.gvr.version).into(),
            Arc::clone(&self.gvr.resource).into(),
            encoding.into(),
            self.content.into(),
            selection,
        ]
    }
}

/// The figures of the scopes that share a series.
#[derive(Debug, Default)]
struct ScopeSums {
    scopes: usize,
    ready: usize,
    following: usize,
    compressed: usize,
    silence: f64,
    staleness: f64,
    derived: usize,
    stale: usize,
    figures: StoreStats,
}

impl ScopeSums {
    fn add(&mut self, scope: &Scope) {
        let figures = scope.reader.stats();
        self.scopes += 1;
        let phase = scope.phase();
        self.ready += usize::from(matches!(phase, ScopePhase::Ready(_)));
        self.stale += usize::from(matches!(phase, ScopePhase::Stale(_)));
        self.derived += usize::from(scope.is_derived());
        self.following += usize::from(scope.upstream.is_delivering());
        self.compressed += scope.memory.compressed();
        self.silence = self.silence.max(scope.upstream.silence().as_secs_f64());
        let age = scope.age().unwrap_or_default().as_secs_f64();
        self.staleness = self.staleness.max(age);
        self.figures.version = self.figures.version.max(figures.version);
        self.figures.objects += figures.objects;
        self.figures.object_bytes += figures.object_bytes;
        self.figures.events += figures.events;
        self.figures.event_bytes += figures.event_bytes;
        self.figures.watchers += figures.watchers;
    }

    /// Returns the values in the order of [`GAUGES`].
    fn values(&self) -> [f64; GAUGES.len()] {
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
            self.staleness,
            watchers as f64,
            self.scopes as f64,
            self.derived as f64,
            self.stale as f64,
        ]
    }
}

const LABELS: &[&str; 6] = &[
    "group",
    "version",
    "resource",
    "encoding",
    "content",
    "selection",
];

const GAUGES: [Metric<Gauge, { LABELS.len() }>; 14] = [
    Metric::new(
        "watershed_scope_ready",
        LABELS,
        "1 while reads of the scope are answered from memory, 0 while it syncs, is too old, \
         differs from upstream, or is not cached.",
    ),
    Metric::new(
        "watershed_scope_following",
        LABELS,
        "1 while upstream's changes arrive, 0 while the upstream watch is interrupted and retried, or \
         open without bringing what was due.",
    ),
    Metric::new(
        "watershed_scope_objects",
        LABELS,
        "Objects in the scope's newest snapshot.",
    ),
    Metric::new(
        "watershed_scope_object_bytes",
        LABELS,
        "Bytes of the objects in the scope's newest snapshot.",
    ),
    Metric::new(
        "watershed_scope_compressed_bytes",
        LABELS,
        "Bytes of compressed forms of the objects in the scope's newest snapshot, counted some \
         seconds ago. They are held beside the objects, or instead of those that nobody reads.",
    ),
    Metric::new(
        "watershed_scope_window_events",
        LABELS,
        "Events in the scope's window of recent events.",
    ),
    Metric::new(
        "watershed_scope_window_bytes",
        LABELS,
        "Bytes of the scope's window of recent events.",
    ),
    Metric::new(
        "watershed_scope_resource_version",
        LABELS,
        "The resourceVersion that the scope has reached.",
    ),
    Metric::new(
        "watershed_scope_last_message_age_seconds",
        LABELS,
        "Seconds since upstream last sent an event, bookmark or list for the scope.",
    ),
    Metric::new(
        "watershed_scope_staleness_seconds",
        LABELS,
        "Seconds since upstream was last known to be followed; 0 while it is. A quiet type whose \
         upstream watch is open is followed. Above --max-staleness, reads are forwarded.",
    ),
    Metric::new(
        "watershed_scope_watchers",
        LABELS,
        "Watches served from the scope, and scopes derived from it.",
    ),
    Metric::new(
        "watershed_scopes",
        LABELS,
        "Scopes in this series. Scopes of a type that were opened on demand share one: its counts and \
         bytes are sums, its version, silence and staleness are the highest, and it is ready or \
         following when all of them are.",
    ),
    Metric::new(
        "watershed_scopes_derived",
        LABELS,
        "Scopes in this series that have no list and watch at upstream, as they are derived from \
         the type's scope in protobuf.",
    ),
    Metric::new(
        "watershed_scopes_stale",
        LABELS,
        "Scopes in this series that were not followed for longer than --max-staleness. Their reads \
         are forwarded, and their watches were ended.",
    ),
];
