//! Metrics of requests and watches.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use watershed_protocol::{GroupVersionResource, Verb};

use super::plan::RequestPlan;
use super::source::{AnswerSource, ForwardReason};
use super::usage::Usage;
use crate::metric::{Counter, Declaration, Gauge, Histogram, Metric, SharedString, type_labels};
use crate::watcher::{WatchEnding, WatchObserver};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    REQUESTS.declaration(),
    DURATION.declaration(),
    ABORTED.declaration(),
    LIMITED.declaration(),
    FILTERED.declaration(),
    IN_USE.declaration(),
    LIMIT.declaration(),
    BYTES_IN_USE.declaration(),
    BYTES_LIMIT.declaration(),
    IN_FLIGHT.declaration(),
    RESPONSE_BYTES.declaration(),
    WATCHES.declaration(),
    EVENTS.declaration(),
    EVENT_BYTES.declaration(),
    ENDED.declaration(),
    TAKEN_OVER.declaration(),
    DOCUMENT_CHECKS.declaration(),
    VERIFIED.declaration(),
    SHADOWED.declaration(),
];

const REQUESTS: Metric<Counter, 6> = Metric::new(
    "watershed_requests_total",
    &["verb", "group", "resource", "source", "reason", "code"],
    "Requests answered, by verb, resource, source, reason for forwarding and status code.",
);
const DURATION: Metric<Histogram, 2> = Metric::new(
    "watershed_request_duration_seconds",
    &["verb", "source"],
    "Seconds from a request's arrival to the headers of its response.",
);
const ABORTED: Metric<Counter, 3> = Metric::new(
    "watershed_requests_aborted_total",
    &["verb", "group", "resource"],
    "Requests that their clients gave up, or whose connection was cut, before the headers of a \
     response, by verb and resource. They do not count in watershed_requests_total. Followed logs do not \
     count here.",
);
const LIMITED: Metric<Counter, 1> = Metric::new(
    "watershed_requests_limited_total",
    &["reason"],
    "Requests refused with 429 or 431 because their caller exceeded a limit, by limit.",
);
const FILTERED: Metric<Counter, 1> = Metric::new(
    "watershed_requests_filtered_total",
    &["flag"],
    "Requests refused with 403 by a flag of single-identity mode, by flag.",
);
const IN_USE: Metric<Gauge, 1> = Metric::new(
    "watershed_limited_resources_in_use",
    &["limit"],
    "Number of the things in use that are limited for each caller, such as watches, of all callers together, by \
     limit.",
);
const LIMIT: Metric<Gauge, 1> = Metric::new(
    "watershed_limited_resources_limit",
    &["limit"],
    "Number of these things that all callers together may use, by limit, where there is one.",
);
const BYTES_IN_USE: Metric<Gauge, 1> = Metric::new(
    "watershed_limited_memory_in_use_bytes",
    &["limit"],
    "Memory in use that is limited for each caller, of all callers together, by limit.",
);
const BYTES_LIMIT: Metric<Gauge, 1> = Metric::new(
    "watershed_limited_memory_limit_bytes",
    &["limit"],
    "Memory that all callers together may use, by limit.",
);
const IN_FLIGHT: Metric<Gauge, 1> = Metric::new(
    "watershed_requests_in_flight",
    &["verb"],
    "Requests whose response headers are not sent yet.",
);
const RESPONSE_BYTES: Metric<Counter, 1> = Metric::new(
    "watershed_response_bytes_total",
    &["source"],
    "Bytes of response bodies sent to clients, after compression, by source. Sessions of exec and \
     port-forward do not count.",
);
const WATCHES: Metric<Gauge, 2> = Metric::new(
    "watershed_watches",
    &["group", "resource"],
    "Open watches that are served from memory.",
);
const EVENTS: Metric<Counter, 2> = Metric::new(
    "watershed_watch_events_total",
    &["group", "resource"],
    "Events, bookmarks and initial objects sent to watches.",
);
const EVENT_BYTES: Metric<Counter, 2> = Metric::new(
    "watershed_watch_event_bytes_total",
    &["group", "resource"],
    "Bytes of events, bookmarks and initial objects sent to watches, after compression.",
);
const ENDED: Metric<Counter, 3> = Metric::new(
    "watershed_watches_ended_total",
    &["group", "resource", "reason"],
    "Watches served from memory that ended, by reason: their own deadline, the client, a missed event \
     (expired), a changed schema (schema-changed), upstream that was not followed for too long (stale), \
     a scope that is not held any more (closed), a right that was taken away (revoked), the end of the \
     proxy (draining), or an object that could not be shown (broken).",
);
const TAKEN_OVER: Metric<Counter, 3> = Metric::new(
    "watershed_forwarded_watches_ended_total",
    &["group", "resource", "reason"],
    "Forwarded watches that were ended because memory can continue them, by the reason for which \
     they were forwarded.",
);
const DOCUMENT_CHECKS: Metric<Counter, 1> = Metric::new(
    "watershed_document_checks_total",
    &["result"],
    "Requests to upstream for discovery, OpenAPI and version documents, by result: unchanged, sent \
     (new or without an ETag) or failed.",
);
const VERIFIED: Metric<Counter, 3> = Metric::new(
    "watershed_verified_answers_total",
    &["group", "resource", "result"],
    "Answers from memory that --verify or --shadow compared with upstream at the same version, by \
     result: same, different, changed (the object or the server is another one by now), expired \
     (upstream no longer has the version), failed, skipped (too long, not sent to its end, or too \
     many at a time).",
);
const SHADOWED: Metric<Counter, 5> = Metric::new(
    "watershed_shadow_answers_total",
    &["verb", "group", "resource", "source", "reason"],
    "Requests that --shadow forwarded, by the source of the answer that they would have had.",
);

/// The result of a comparison of an answer with upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerificationResult {
    Same,
    Different,
    /// The object or the server is another one by now.
    Changed,
    /// Upstream no longer has the version.
    Expired,
    /// Upstream's answer is of no use.
    Failed,
    /// There was no room for the comparison.
    Skipped,
}

impl VerificationResult {
    fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::Changed => "changed",
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// The labels of a request. Only types of the catalog are named: clients cannot invent values.
#[derive(Clone)]
pub(super) struct Labels {
    verb: &'static str,
    of_type: LabelsOfType,
}

impl Labels {
    pub(super) fn new(planned: &RequestPlan, method: &Method) -> Self {
        let of_type = match &planned.resource {
            Some(resource) => type_labels(&resource.gvr),
            None => ["".into(), "".into()],
        };
        let verb = match planned.verb {
            Verb::Other if *method == Method::HEAD => "head",
            verb => verb.as_str(),
        };
        Self { verb, of_type }
    }

    /// Returns the name of the verb.
    pub(super) fn verb(&self) -> &'static str {
        self.verb
    }
}

/// Publishes the bytes that clients were sent until now.
pub fn publish(usage: &Usage) {
    for (source, _, bytes) in usage.by_source() {
        RESPONSE_BYTES.with([source.into()]).absolute(bytes);
    }
}

/// Counts a forwarded watch that ended because memory can continue it.
pub(super) fn taken_over(gvr: &GroupVersionResource, reason: ForwardReason) {
    let [group, resource] = type_labels(gvr);
    TAKEN_OVER
        .with([group, resource, reason.as_str().into()])
        .increment(1);
}

/// Counts a question to upstream for a document.
pub(super) fn document_checked(result: &'static str) {
    DOCUMENT_CHECKS.with([result.into()]).increment(1);
}

/// Counts an answer that was compared with upstream's.
pub(super) fn verified(gvr: &GroupVersionResource, result: VerificationResult) {
    let counted = |result: VerificationResult| {
        let [group, resource] = type_labels(gvr);
        VERIFIED.with([group, resource, result.as_str().into()])
    };
    // Prometheus sees no increase in a counter that begins with one.
    counted(VerificationResult::Different).increment(0);
    counted(result).increment(1);
}

/// Counts a forwarded request that would have had an answer of this source.
pub(super) fn shadowed(labels: &Labels, source: AnswerSource) {
    let [group, resource] = labels.of_type.clone();
    let (source, reason) = (source.as_str().into(), source.reason().into());
    let labels = [labels.verb.into(), group, resource, source, reason];
    SHADOWED.with(labels).increment(1);
}

/// Counts a request that a limit refuses.
pub(super) fn limited(reason: &'static str) {
    LIMITED.with([reason.into()]).increment(1);
}

/// Counts a request that a flag refuses.
pub(super) fn filtered(flag: &'static str) {
    FILTERED.with([flag.into()]).increment(1);
}

/// Returns the gauges of the number of things that are in use, and of the number that all callers may have.
/// Zero stands for no bound, which has none.
pub(super) fn limited_number(limit: &'static str, all: u64) -> [Gauge; 2] {
    let held = IN_USE.with([limit.into()]);
    if all == 0 {
        return [held, Gauge::noop()];
    }
    let bound = LIMIT.with([limit.into()]);
    bound.set(all as f64);
    [held, bound]
}

/// Returns the gauges of the bytes that are in use, and of those that all callers may have.
pub(super) fn limited_bytes(limit: &'static str, all: u64) -> [Gauge; 2] {
    let bound = BYTES_LIMIT.with([limit.into()]);
    bound.set(all as f64);
    [BYTES_IN_USE.with([limit.into()]), bound]
}

/// A request on its way to an answer. If it is dropped before, its client has given it up, or its
/// connection was cut.
pub(super) struct InFlight {
    labels: Labels,
    gauge: Gauge,
    /// Dropping it counts.
    is_awaited: bool,
}

impl InFlight {
    /// Begins a request. Nothing is wrong if a client gives up one that `may_be_silent`: the answer of a
    /// followed log begins with its first line.
    pub(super) fn begin(labels: &Labels, may_be_silent: bool) -> Self {
        let gauge = IN_FLIGHT.with([labels.verb.into()]);
        gauge.increment(1);
        Self {
            labels: labels.clone(),
            gauge,
            is_awaited: !may_be_silent,
        }
    }

    pub(super) fn answered(mut self, source: AnswerSource, code: StatusCode, took: Duration) {
        self.is_awaited = false;
        let verb = self.labels.verb;
        let [group, resource] = self.labels.of_type.clone();
        let code = code.as_str().to_owned();
        let labels = [
            verb.into(),
            group,
            resource,
            source.as_str().into(),
            source.reason().into(),
            code.into(),
        ];
        REQUESTS.with(labels).increment(1);
        let labels = [verb.into(), source.as_str().into()];
        DURATION.with(labels).record(took);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.decrement(1);
        // A request that panics is answered by its connection.
        if self.is_awaited && !std::thread::panicking() {
            let [group, resource] = self.labels.of_type.clone();
            ABORTED
                .with([self.labels.verb.into(), group, resource])
                .increment(1);
        }
    }
}

/// The meters of watches, by type. A type's is kept for good, as the recorder keeps its series.
#[derive(Default)]
pub(super) struct Meters(Mutex<HashMap<LabelsOfType, Arc<TypeMeter>>>);

/// The label values of a type: its group and its name.
type LabelsOfType = [SharedString; 2];

/// Counts what the watches of one type do.
struct TypeMeter {
    watches: Gauge,
    events: Counter,
    bytes: Counter,
    of_type: LabelsOfType,
}

/// Counts what one watch does. Small, as there may be a hundred thousand.
pub(super) struct WatchMeter(Arc<TypeMeter>);

impl Meters {
    pub(super) fn begin(&self, labels: &Labels) -> WatchMeter {
        let mut meters = self.0.lock();
        let meter = meters
            .entry(labels.of_type.clone())
            .or_insert_with_key(|of_type| {
                Arc::new(TypeMeter {
                    watches: WATCHES.with(of_type.clone()),
                    events: EVENTS.with(of_type.clone()),
                    bytes: EVENT_BYTES.with(of_type.clone()),
                    of_type: of_type.clone(),
                })
            });
        meter.watches.increment(1);
        WatchMeter(Arc::clone(meter))
    }
}

impl WatchObserver for WatchMeter {
    fn sent(&mut self, events: usize, bytes: usize) {
        self.0.events.increment(events as u64);
        self.0.bytes.increment(bytes as u64);
    }

    fn ended(&mut self, how: WatchEnding) {
        self.0.watches.decrement(1);
        let [group, resource] = self.0.of_type.clone();
        ENDED
            .with([group, resource, how.as_str().into()])
            .increment(1);
    }
}
