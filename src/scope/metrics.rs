//! Metrics of scopes: what upstream sends for them.
use watershed_protocol::GroupVersionResource;

use crate::metric::{Counter, Declaration, Metric, SharedString, type_labels};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    STOPPED.declaration(),
    LOST.declaration(),
    UPSTREAM_LISTS.declaration(),
    RELISTS.declaration(),
    UPSTREAM_EVENTS.declaration(),
    UPSTREAM_RESUMES.declaration(),
    UPSTREAM_OVERDUE.declaration(),
    SELF_CHECKS.declaration(),
    QUARANTINES.declaration(),
    ROLLBACKS.declaration(),
    RELEASE_CHANGES.declaration(),
    CHECKPOINT_WRITES.declaration(),
    CHECKPOINT_READS.declaration(),
    REPLICA_STATES.declaration(),
    FALLBACKS.declaration(),
    REDERIVATIONS.declaration(),
];

pub(super) const STOPPED: Metric<Counter, 3> = Metric::new(
    "watershed_scopes_stopped_total",
    &["group", "resource", "reason"],
    "Scopes that were closed or given up, by reason: vanished (upstream has no such type), forbidden (the \
     proxy may not list and watch it), unauthorized (upstream does not accept the proxy's credentials), \
     not-acceptable (the type has no such representation), not-understood, does-not-fit (into memory), closed \
     (not needed, or changed), failed (a defect of the proxy).",
);
/// The reasons for which a type is lost.
pub(super) const LOSSES: [&str; 3] = ["forbidden", "unauthorized", "not-understood"];
pub(super) const LOST: Metric<Counter, 3> = Metric::new(
    "watershed_scopes_lost_total",
    &["group", "resource", "reason"],
    "Scopes that were served from memory until upstream refused to let the proxy follow them, by reason: \
     forbidden (a right was taken away), unauthorized (its credentials are not accepted any more), \
     not-understood (something else answers in upstream's place).",
);
pub(super) const UPSTREAM_LISTS: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_lists_total",
    &["group", "resource"],
    "Lists of scopes at upstream: the first one, one after each loss of history, and one of some \
     objects for each check of how upstream prints them.",
);
pub(super) const RELISTS: Metric<Counter, 2> = Metric::new(
    "watershed_scope_relists_total",
    &["group", "resource"],
    "Lists of scopes at upstream that took the place of what was held.",
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
pub(super) const UPSTREAM_OVERDUE: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_watches_overdue_total",
    &["group", "resource"],
    "Upstream watches that were opened again, as they stayed open and did not bring what upstream \
     had.",
);
pub(super) const SELF_CHECKS: Metric<Counter, 3> = Metric::new(
    "watershed_self_checks_total",
    &["group", "resource", "result"],
    "Comparisons of a part of a scope with upstream, at the same resourceVersion where upstream has it, by \
     result: same, objects (other names or versions), bytes (an object is printed differently), expired \
     (upstream no longer has the version), behind (upstream has events that may still come), failed.",
);
pub(super) const QUARANTINES: Metric<Counter, 3> = Metric::new(
    "watershed_scope_quarantines_total",
    &["group", "resource", "reason"],
    "Scopes whose objects differed from upstream's and that were listed again, by reason: objects \
     or bytes.",
);
pub(super) const ROLLBACKS: Metric<Counter, 1> = Metric::new(
    "watershed_upstream_rollbacks_total",
    &["evidence"],
    "Times that upstream turned out to have another history, as after a restore of etcd, by \
     evidence: a version that went back, an event that is not in the history, or another cluster.",
);

pub(super) const RELEASE_CHANGES: Metric<Counter, 3> = Metric::new(
    "watershed_scope_release_changes_total",
    &["group", "resource", "result"],
    "Scopes whose watch continued at a server of another Kubernetes release, by result: same (no \
     object is printed differently), reprinted (some are), relisted (the wire format differs).",
);

const CHECKPOINT_WRITES: Metric<Counter, 1> = Metric::new(
    "watershed_checkpoint_writes_total",
    &["result"],
    "Checkpoints of scopes (--checkpoint-dir), by result: written, too-large (beyond \
     --checkpoint-max-mib), failed, in-use (another process writes to the folder), \
     unverified (the upstream cluster cannot be identified).",
);
const CHECKPOINT_READS: Metric<Counter, 1> = Metric::new(
    "watershed_checkpoint_reads_total",
    &["result"],
    "Scopes that began with a checkpoint, by result: restored (without a list), and those that were \
     listed: not-continued (upstream has lost that history), outdated, damaged, foreign (of another \
     cluster, other addresses or another user), unverified, no-memory, slow (the disk did not give \
     it in time).",
);

const REPLICA_STATES: Metric<Counter, 1> = Metric::new(
    "watershed_replica_states_total",
    &["result"],
    "Scopes for which another replica was asked (--state-from), by result: restored (without a \
     list), and those that were listed: not-held (no replica that was asked had the state), \
     busy (states of other types were being sent or taken), unreachable, late (it came too slowly), \
     refused (the proxy may not list the type, or the server is no replica), \
     not-continued (upstream has lost that history), ahead (it is of another history), outdated, \
     damaged, foreign (of another cluster), unverified, no-memory.",
);

/// Counts an attempt to write a checkpoint.
pub(super) fn checkpoint_written(result: &'static str) {
    CHECKPOINT_WRITES.with([result.into()]).increment(1);
}

/// Counts a checkpoint that was found.
pub(super) fn checkpoint_read(result: &'static str) {
    CHECKPOINT_READS.with([result.into()]).increment(1);
}

/// Counts a scope for which another replica was asked.
pub(super) fn replica_state(result: &'static str) {
    REPLICA_STATES.with([result.into()]).increment(1);
}

pub(super) const FALLBACKS: Metric<Counter, 3> = Metric::new(
    "watershed_scope_json_fallbacks_total",
    &["group", "resource", "reason"],
    "Scopes in JSON that are no longer derived from protobuf, and have a list and watch of their \
     own, by reason: difference or form (upstream prints the type differently), unknown-release \
     (it is not known how upstream's release prints), unexplained (upstream has fields that are \
     not known), not-streamed (upstream does not stream initial events), unchecked \
     (upstream's JSON could not be compared), source (the scope in protobuf cannot be used).",
);

pub(super) const REDERIVATIONS: Metric<Counter, 3> = Metric::new(
    "watershed_scope_json_rederivations_total",
    &["group", "resource", "result"],
    "Comparisons of scopes in JSON that have a list and watch of their own with the type's scope in \
     protobuf, by result: derived (they are derived from it again), or why not, as the reasons of \
     watershed_scope_json_fallbacks_total.",
);

/// Returns a type's series of a metric.
pub(super) fn of_type(metric: &Metric<Counter, 2>, gvr: &GroupVersionResource) -> Counter {
    metric.with(type_labels(gvr))
}

/// Registers the losses of a type that is served from now on. An increase from nothing would not be seen.
pub(super) fn may_be_lost(gvr: &GroupVersionResource) {
    for reason in LOSSES {
        LOST.with(with_type(gvr, reason)).increment(0);
    }
}

/// Returns the label values of a type, with one more.
pub(super) fn with_type(gvr: &GroupVersionResource, label: &'static str) -> [SharedString; 3] {
    let [group, resource] = type_labels(gvr);
    [group, resource, label.into()]
}
