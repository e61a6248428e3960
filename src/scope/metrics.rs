//! Metrics of scopes: what upstream sends for them.
use watershed_protocol::GroupVersionResource;

use crate::metric::{Counter, Declaration, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    STOPPED.declaration(),
    UPSTREAM_LISTS.declaration(),
    UPSTREAM_EVENTS.declaration(),
    UPSTREAM_RESUMES.declaration(),
    ROLLBACKS.declaration(),
];

pub(super) const STOPPED: Metric<Counter, 3> = Metric::new(
    "watershed_scopes_stopped_total",
    &["group", "resource", "reason"],
    "Scopes that were closed or given up, by reason. With the reason forbidden the proxy may not \
     list and watch the type.",
);
pub(super) const UPSTREAM_LISTS: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_lists_total",
    &["group", "resource"],
    "Lists of scopes at upstream: the first one, and one after each loss of history.",
);
pub(super) const UPSTREAM_EVENTS: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_events_total",
    &["group", "resource"],
    "Watch events received from upstream.",
);
pub(super) const UPSTREAM_RESUMES: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_resumes_total",
    &["group", "resource"],
    "Interrupted upstream watches that resumed without a new list.",
);
pub(super) const ROLLBACKS: Metric<Counter, 1> = Metric::new(
    "watershed_upstream_rollbacks_total",
    &["evidence"],
    "Times that upstream turned out to have another history, as after a restore of etcd, by \
     evidence: a version that went back, an event that is not in the history, or another cluster.",
);

/// Returns a type's series of a metric.
pub(super) fn of_type(metric: &Metric<Counter, 2>, gvr: &GroupVersionResource) -> Counter {
    metric.with([gvr.group.clone().into(), gvr.resource.clone().into()])
}
