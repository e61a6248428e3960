//! Metrics of the audit log.
use crate::metric::{Counter, Declaration, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    EVENTS.declaration(),
    DROPPED.declaration(),
    ROTATIONS_FAILED.declaration(),
];

pub(super) const EVENTS: Metric<Counter> = Metric::new(
    "watershed_audit_events_total",
    &[],
    "Audit events generated. Each counts once, whatever the number of sinks.",
);
pub(super) const DROPPED: Metric<Counter, 1> = Metric::new(
    "watershed_audit_events_dropped_total",
    &["sink"],
    "Audit events lost because a sink's queue was full, or because the sink failed.",
);
pub(super) const ROTATIONS_FAILED: Metric<Counter> = Metric::new(
    "watershed_audit_log_rotation_failures_total",
    &[],
    "Failed attempts to set a full audit log file aside. The file grows beyond its limit meanwhile.",
);
