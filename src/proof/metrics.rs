//! Metrics of proofs.
use std::time::Duration;

use watershed_protocol::GroupVersionResource;

use crate::metric::{Counter, Declaration, Histogram, Metric, type_labels};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    CONSISTENT_READS.declaration(),
    CONSISTENT_READ_WAITS.declaration(),
    FRESHNESS_CHECKS.declaration(),
    FRESHNESS_CHECK_TIMES.declaration(),
];

const CONSISTENT_READS: Metric<Counter, 3> = Metric::new(
    "watershed_consistent_reads_total",
    &["group", "resource", "outcome"],
    "Consistent reads that waited until memory was shown to be fresh, by what showed it. Those \
     with the outcomes failed, late-for-gets and cheaper-upstream are forwarded.",
);
const CONSISTENT_READ_WAITS: Metric<Histogram, 1> = Metric::new(
    "watershed_consistent_read_wait_duration_seconds",
    &["outcome"],
    "Seconds that consistent reads waited, by what showed that memory was fresh.",
);
const FRESHNESS_CHECKS: Metric<Counter, 3> = Metric::new(
    "watershed_freshness_checks_total",
    &["group", "resource", "request"],
    "Requests to upstream that show how fresh memory is, by kind.",
);
const FRESHNESS_CHECK_TIMES: Metric<Histogram, 1> = Metric::new(
    "watershed_freshness_check_duration_seconds",
    &["request"],
    "Seconds until upstream's whole answer showed how fresh memory is, by kind of request.",
);

/// Records the wait of a consistent read; `outcome` says what ended it.
pub(super) fn waited(gvr: &GroupVersionResource, outcome: &'static str, took: Duration) {
    let [group, resource] = type_labels(gvr);
    CONSISTENT_READS
        .with([group, resource, outcome.into()])
        .increment(1);
    CONSISTENT_READ_WAITS.with([outcome.into()]).record(took);
}

/// Counts a question to upstream for its version or objects.
pub(super) fn asked(gvr: &GroupVersionResource, request: &'static str) {
    let [group, resource] = type_labels(gvr);
    FRESHNESS_CHECKS
        .with([group, resource, request.into()])
        .increment(1);
}

/// Records the time of upstream's answer to such a question.
pub(super) fn answered(request: &'static str, took: Duration) {
    FRESHNESS_CHECK_TIMES.with([request.into()]).record(took);
}
