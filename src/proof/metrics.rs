//! Metrics of proofs.
use std::time::Duration;

use watershed_protocol::GroupVersionResource;

use crate::metric::{Counter, Declaration, Histogram, Metric, type_labels};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    FENCED.declaration(),
    FENCE_DURATION.declaration(),
    FENCE_REQUESTS.declaration(),
    FENCE_ANSWERS.declaration(),
];

const FENCED: Metric<Counter, 3> = Metric::new(
    "watershed_consistent_reads_total",
    &["group", "resource", "outcome"],
    "Consistent reads that waited until memory was shown to be fresh, by what showed it. Those \
     with the outcomes failed, late-for-gets and cheaper-upstream are forwarded.",
);
const FENCE_DURATION: Metric<Histogram, 1> = Metric::new(
    "watershed_consistent_read_wait_duration_seconds",
    &["outcome"],
    "Seconds that consistent reads waited, by what showed that memory was fresh.",
);
const FENCE_REQUESTS: Metric<Counter, 3> = Metric::new(
    "watershed_freshness_checks_total",
    &["group", "resource", "request"],
    "Requests to upstream that show how fresh memory is, by kind.",
);
const FENCE_ANSWERS: Metric<Histogram, 1> = Metric::new(
    "watershed_freshness_check_duration_seconds",
    &["request"],
    "Seconds until upstream's whole answer showed how fresh memory is, by kind of request.",
);

/// Records the wait of a consistent read at the fence; `step` says what let it pass.
pub(super) fn fenced(gvr: &GroupVersionResource, step: &'static str, took: Duration) {
    let [group, resource] = type_labels(gvr);
    FENCED.with([group, resource, step.into()]).increment(1);
    FENCE_DURATION.with([step.into()]).record(took);
}

/// Counts a question to upstream for its version or objects.
pub(super) fn fence_asked(gvr: &GroupVersionResource, request: &'static str) {
    let [group, resource] = type_labels(gvr);
    FENCE_REQUESTS
        .with([group, resource, request.into()])
        .increment(1);
}

/// Records the time of upstream's answer to such a question.
pub(super) fn fence_answered(request: &'static str, took: Duration) {
    FENCE_ANSWERS.with([request.into()]).record(took);
}
