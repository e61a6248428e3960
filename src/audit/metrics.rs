//! Metrics of the audit log.
use crate::metric::{Counter, Declaration, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[EVENTS.declaration(), DROPPED.declaration()];

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
