//! What is counted of requests and watches. The names stand here and nowhere else.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use metrics::{
    Counter, Gauge, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use parking_lot::Mutex;

use super::decide::Planned;
use super::source::AnswerSource;
use super::usage::Usage;
use crate::catalog::ResourceType;
use crate::watcher::{WatchEnding, WatchObserver};
use watershed_protocol::{GroupVersionResource, Verb};

/// Every answered request.
pub const REQUESTS: &str = "watershed_requests_total";
/// From the request's arrival to the response's headers.
pub const DURATION: &str = "watershed_request_duration_seconds";
/// Requests refused as their caller asked for too much.
pub const LIMITED: &str = "watershed_requests_limited_total";
/// Requests whose response headers are not sent yet.
pub const IN_FLIGHT: &str = "watershed_requests_in_flight";
/// Bytes of answers.
pub const RESPONSE_BYTES: &str = "watershed_response_bytes_total";
/// Watches served from memory now.
pub const WATCHES: &str = "watershed_watches";
/// Events, bookmarks and initial objects handed to clients.
pub const EVENTS: &str = "watershed_watch_events_total";
/// Their bytes, as compressed as they are sent.
pub const EVENT_BYTES: &str = "watershed_watch_event_bytes_total";
/// Watches that ended, and how.
pub const ENDED: &str = "watershed_watches_ended_total";

/// Consistent reads that asked for a proof, and what gave it.
pub const FENCED: &str = "watershed_fence_reads_total";
/// How long they waited for it.
pub const FENCE_DURATION: &str = "watershed_fence_duration_seconds";
/// What upstream was asked for these proofs.
pub const FENCE_REQUESTS: &str = "watershed_fence_upstream_requests_total";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    describe_counter!(
        REQUESTS,
        "Requests answered, by verb, resource, source, reason for forwarding and code."
    );
    describe_histogram!(
        DURATION,
        "Seconds from a request's arrival to the headers of its response."
    );
    describe_counter!(
        LIMITED,
        "Requests refused with 429 as their caller asked for too much, by which limit."
    );
    describe_gauge!(
        IN_FLIGHT,
        "Requests whose response headers are not sent yet."
    );
    describe_counter!(
        RESPONSE_BYTES,
        "Bytes of the bodies of answers that clients were sent, as compressed as they are sent, by source. Sessions of exec and port-forward are not in it."
    );
    describe_gauge!(WATCHES, "Watches that are served from memory now.");
    describe_counter!(
        EVENTS,
        "Events, bookmarks and initial objects handed to watching clients."
    );
    describe_counter!(
        EVENT_BYTES,
        "Bytes of events, bookmarks and initial objects handed to watching clients, after compression."
    );
    describe_counter!(
        FENCED,
        "Consistent reads that waited for memory to be shown new enough, by what showed it; failed ones are forwarded."
    );
    describe_histogram!(
        FENCE_DURATION,
        "Seconds that consistent reads waited, by what showed memory new enough."
    );
    describe_counter!(
        FENCE_REQUESTS,
        "Requests to upstream that show how new memory is, by kind."
    );
    describe_counter!(
        ENDED,
        "Watches served from memory that ended, by how they did."
    );
}

/// The labels of a request. Only types of the catalog are named: clients cannot invent values.
#[derive(Clone)]
pub(super) struct Labels {
    verb: &'static str,
    group: Arc<str>,
    resource: Arc<str>,
}

impl Labels {
    pub(super) fn new(planned: &Planned, method: &Method) -> Self {
        let none = || Arc::from("");
        let (group, resource) = match &planned.resource {
            Some(resource) => (
                Arc::clone(&resource.gvr.group),
                Arc::clone(&resource.gvr.resource),
            ),
            None => (none(), none()),
        };
        let verb = match planned.verb {
            Verb::Other if *method == Method::HEAD => "head",
            verb => verb.as_str(),
        };
        Self {
            verb,
            group,
            resource,
        }
    }
}

/// Shows what clients were sent until now.
pub fn publish(usage: &Usage) {
    for (source, _, bytes) in usage.by_source() {
        counter!(RESPONSE_BYTES, "source" => source).absolute(bytes);
    }
}

/// A consistent read waited at the fence; `step` says what let it pass.
pub(super) fn fenced(gvr: &GroupVersionResource, step: &'static str, took: Duration) {
    counter!(FENCED, "group" => Arc::clone(&gvr.group), "resource" => Arc::clone(&gvr.resource), "step" => step)
        .increment(1);
    histogram!(FENCE_DURATION, "step" => step).record(took);
}

/// Upstream is asked where it is.
pub(super) fn fence_asked(gvr: &GroupVersionResource, request: &'static str) {
    counter!(FENCE_REQUESTS, "group" => Arc::clone(&gvr.group), "resource" => Arc::clone(&gvr.resource),
        "request" => request)
    .increment(1);
}

/// A caller asked for too much.
pub(super) fn limited(reason: &'static str) {
    counter!(LIMITED, "reason" => reason).increment(1);
}

/// A request on its way to an answer.
pub(super) struct InFlight {
    labels: Labels,
    gauge: Gauge,
}

impl InFlight {
    pub(super) fn begin(labels: &Labels) -> Self {
        let gauge = gauge!(IN_FLIGHT, "verb" => labels.verb);
        gauge.increment(1);
        Self {
            labels: labels.clone(),
            gauge,
        }
    }

    pub(super) fn answered(self, source: AnswerSource, code: StatusCode, took: Duration) {
        let Labels {
            verb,
            group,
            resource,
        } = &self.labels;
        counter!(REQUESTS, "verb" => *verb, "group" => Arc::clone(group), "resource" => Arc::clone(resource),
            "source" => source.as_str(), "reason" => source.reason(), "code" => code.as_str().to_owned())
        .increment(1);
        histogram!(DURATION, "verb" => *verb, "source" => source.as_str()).record(took);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.decrement(1);
    }
}

/// The meters of watches, by type. A type's is kept for good, as the recorder keeps its series.
#[derive(Default)]
pub(super) struct Meters(Mutex<HashMap<GroupResource, Arc<TypeMeter>>>);

/// The labels of a type.
type GroupResource = (Arc<str>, Arc<str>);

/// Counts what the watches of one type do.
struct TypeMeter {
    watches: Gauge,
    events: Counter,
    bytes: Counter,
    resource: Arc<str>,
    group: Arc<str>,
}

/// Counts what one watch does. Small, as there may be a hundred thousand.
pub(super) struct WatchMeter(Arc<TypeMeter>);

impl Meters {
    pub(super) fn begin(&self, labels: &Labels, resource: &ResourceType) -> WatchMeter {
        let key = (
            Arc::clone(&labels.group),
            Arc::clone(&resource.gvr.resource),
        );
        let mut meters = self.0.lock();
        let meter = meters.entry(key).or_insert_with_key(|(group, resource)| {
            let group = || Arc::clone(group);
            let name = || Arc::clone(resource);
            Arc::new(TypeMeter {
                watches: gauge!(WATCHES, "group" => group(), "resource" => name()),
                events: counter!(EVENTS, "group" => group(), "resource" => name()),
                bytes: counter!(EVENT_BYTES, "group" => group(), "resource" => name()),
                resource: name(),
                group: group(),
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
        let TypeMeter {
            watches,
            group,
            resource,
            ..
        } = &*self.0;
        watches.decrement(1);
        counter!(ENDED, "group" => Arc::clone(group), "resource" => Arc::clone(resource), "how" => how.as_str())
            .increment(1);
    }
}
