//! What is counted of the audit log. The names stand here and nowhere else.
use metrics::describe_counter;

/// Events that were to be logged.
pub const EVENTS: &str = "watershed_audit_events_total";
/// Events that did not get to a sink.
pub const DROPPED: &str = "watershed_audit_events_dropped_total";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    describe_counter!(
        EVENTS,
        "Audit events made, each counted once, whatever number of sinks there is."
    );
    describe_counter!(
        DROPPED,
        "Audit events lost to a sink: its queue was full, or it could not be written or reached."
    );
}
