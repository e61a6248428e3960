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
    GAUGES.map(|gauge| gauge.metric.declaration())
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
            gone.set(|_| 0.0);
        }
        for (series, sums) in now {
            series.set(|gauge| (gauge.value)(&sums));
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

    /// Sets all gauges.
    fn set(&self, value: impl Fn(&ScopeGauge) -> f64) {
        for gauge in &GAUGES {
            gauge.metric.with(self.labels()).set(value(gauge));
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

    /// Returns 1 if these are all scopes of the series, and else 0.
    fn all(&self, scopes: usize) -> f64 {
        f64::from(u8::from(scopes == self.scopes))
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

/// A gauge, and what it shows of the scopes that share a series.
struct ScopeGauge {
    metric: Metric<Gauge, { LABELS.len() }>,
    value: fn(&ScopeSums) -> f64,
}

impl ScopeGauge {
    const fn new(name: &'static str, help: &'static str, value: fn(&ScopeSums) -> f64) -> Self {
        Self {
            metric: Metric::new(name, LABELS, help),
            value,
        }
    }
}

const GAUGES: [ScopeGauge; 14] = [
    ScopeGauge::new(
        "watershed_scope_ready",
        "1 while reads of the scope are answered from memory, 0 while it syncs, is too old, \
         differs from upstream, or is not cached.",
        |sums| sums.all(sums.ready),
    ),
    ScopeGauge::new(
        "watershed_scope_following",
        "1 while upstream's changes arrive, 0 while the upstream watch is interrupted and retried, or \
         open without bringing what was due.",
        |sums| sums.all(sums.following),
    ),
    ScopeGauge::new(
        "watershed_scope_objects",
        "Objects in the scope's newest snapshot.",
        |sums| sums.figures.objects as f64,
    ),
    ScopeGauge::new(
        "watershed_scope_object_bytes",
        "Bytes of the objects in the scope's newest snapshot.",
        |sums| sums.figures.object_bytes as f64,
    ),
    ScopeGauge::new(
        "watershed_scope_compressed_bytes",
        "Bytes of compressed forms of the objects in the scope's newest snapshot, counted some \
         seconds ago. They are held beside the objects, or instead of those that nobody reads.",
        |sums| sums.compressed as f64,
    ),
    ScopeGauge::new(
        "watershed_scope_window_events",
        "Events in the scope's window of recent events.",
        |sums| sums.figures.events as f64,
    ),
    ScopeGauge::new(
        "watershed_scope_window_bytes",
        "Bytes of the scope's window of recent events.",
        |sums| sums.figures.event_bytes as f64,
    ),
    ScopeGauge::new(
        "watershed_scope_resource_version",
        "The resourceVersion that the scope has reached.",
        |sums| sums.figures.version.0 as f64,
    ),
    ScopeGauge::new(
        "watershed_scope_last_message_age_seconds",
        "Seconds since upstream last sent an event, bookmark or list for the scope.",
        |sums| sums.silence,
    ),
    ScopeGauge::new(
        "watershed_scope_staleness_seconds",
        "Seconds since upstream was last known to be followed; 0 while it is. A quiet type whose \
         upstream watch is open is followed. Above --max-staleness, reads are forwarded.",
        |sums| sums.staleness,
    ),
    ScopeGauge::new(
        "watershed_scope_watchers",
        "Watches served from the scope, and scopes derived from it.",
        |sums| sums.figures.watchers as f64,
    ),
    ScopeGauge::new(
        "watershed_scopes",
        "Scopes in this series. Scopes of a type that were opened on demand share one: its counts and \
         bytes are sums, its version, silence and staleness are the highest, and it is ready or \
         following when all of them are.",
        |sums| sums.scopes as f64,
    ),
    ScopeGauge::new(
        "watershed_scopes_derived",
        "Scopes in this series that have no list and watch at upstream, as they are derived from \
         the type's scope in protobuf.",
        |sums| sums.derived as f64,
    ),
    ScopeGauge::new(
        "watershed_scopes_stale",
        "Scopes in this series that were not followed for longer than --max-staleness. Their reads \
         are forwarded, and their watches were ended.",
        |sums| sums.stale as f64,
    ),
];
