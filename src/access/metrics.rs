//! Metrics of authentication and authorization.
use std::time::Duration;

use super::error::ReviewError;
use crate::metric::{Counter, Declaration, Gauge, Histogram, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    REVIEWS.declaration(),
    REVIEW_DURATION.declaration(),
    REFUSED.declaration(),
    CACHE.declaration(),
    DROPPED.declaration(),
    CHANGES.declaration(),
    FOLLOWED.declaration(),
    RBAC_GRANTS.declaration(),
    WATCH_REVIEWS.declaration(),
    NODE_GRANTS.declaration(),
    FOLLOWED_PODS.declaration(),
];

const REVIEWS: Metric<Counter, 2> = Metric::new(
    "watershed_access_reviews_total",
    &["kind", "result"],
    "TokenReviews, SubjectAccessReviews, SelfSubjectReviews and SelfSubjectRulesReviews sent to \
     upstream, by kind and result: answered, undecided (an authorizer failed), unavailable, refused, \
     not-understood, late (nobody waited any more, after a second or longer), or abandoned (before).",
);
const REVIEW_DURATION: Metric<Histogram, 1> = Metric::new(
    "watershed_access_review_duration_seconds",
    &["kind"],
    "Seconds from a review's dispatch to upstream until it ended, by kind.",
);
const REFUSED: Metric<Counter, 1> = Metric::new(
    "watershed_tokens_refused_on_inspection_total",
    &["reason"],
    "Service account tokens refused without a review, by reason (expired, unknown-key).",
);
const CACHE: Metric<Counter, 1> = Metric::new(
    "watershed_authorization_cache_lookups_total",
    &["result"],
    "Lookups in the cache of authorization decisions, by result (hit, miss).",
);
const DROPPED: Metric<Counter> = Metric::new(
    "watershed_authorization_cache_invalidations_total",
    &[],
    "Cached authorization decisions that were dropped because a change of RBAC, or of the pods \
     that a grant of a node rests on, can affect them.",
);
const CHANGES: Metric<Counter, 1> = Metric::new(
    "watershed_rbac_changes_total",
    &["resource"],
    "Changes of RBAC objects that can change an authorization decision, by resource.",
);
const FOLLOWED: Metric<Gauge> = Metric::new(
    "watershed_rbac_following",
    &[],
    "1 while every change of RBAC arrives that can concern a cached decision. While it is 0, \
     those that it can concern are cached for seconds only.",
);
const RBAC_GRANTS: Metric<Counter, 1> = Metric::new(
    "watershed_rbac_grants_total",
    &["explained"],
    "Reviewed grants by RBAC, by whether the followed objects of RBAC explain them (yes, no). Those \
     that they do not explain are reviewed more often.",
);

const WATCH_REVIEWS: Metric<Counter, 1> = Metric::new(
    "watershed_watch_grant_reviews_total",
    &["cause"],
    "Reviews of the grants of open watches, by cause: the lifetime has ended, or a change of rbac \
     or of pods (--node-grants) concerns the grant. Equal ones share a request to upstream.",
);
const NODE_GRANTS: Metric<Counter, 1> = Metric::new(
    "watershed_node_grants_total",
    &["basis"],
    "Reviewed grants of nodes with --node-grants=follow-pods, by what they rest on: a rule for \
     all nodes, a pod on the node, or unknown. Only the last are reviewed by the clock.",
);
const FOLLOWED_PODS: Metric<Gauge> = Metric::new(
    "watershed_node_pods_following",
    &[],
    "1 while the pods that grants of nodes rest on are followed. While it is 0, these grants are \
     reviewed by the clock.",
);

/// The cause of a review of an open watch's grant.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReviewCause {
    Lifetime,
    Rbac,
    Pods,
}

/// Basis of a node's grant.
#[derive(Clone, Copy, Debug)]
pub(super) enum GrantBasis {
    Rule,
    Pod,
    Unknown,
}

/// Counts a review that was sent to upstream and took so long.
pub(super) fn reviewed(kind: &'static str, result: &'static str, took: Duration) {
    REVIEWS.with([kind.into(), result.into()]).increment(1);
    REVIEW_DURATION.with([kind.into()]).record(took);
}

/// Counts a review that waited too long for its turn, if this is the reason why there is no verdict.
pub(super) fn not_sent(kind: &'static str, error: &ReviewError) {
    if let ReviewError::GivenUp(_) = error {
        REVIEWS
            .with([kind.into(), "unavailable".into()])
            .increment(1);
    }
}

/// Counts a grant by RBAC that upstream gave.
pub(super) fn granted_by_rbac(is_explained: bool) {
    let explained = if is_explained { "yes" } else { "no" };
    RBAC_GRANTS.with([explained.into()]).increment(1);
}

/// Counts a token that was refused without a review.
pub(super) fn refused_on_inspection(reason: &'static str) {
    REFUSED.with([reason.into()]).increment(1);
}

/// Counts a lookup in the cache of decisions.
pub(super) fn remembered(hit: bool) {
    CACHE
        .with([if hit { "hit" } else { "miss" }.into()])
        .increment(1);
}

/// Counts a decision that was dropped because of a change of RBAC.
pub(super) fn dropped() {
    DROPPED.with([]).increment(1);
}

/// Counts a change of an RBAC object.
pub(super) fn changed(resource: &str) {
    CHANGES.with([resource.to_owned().into()]).increment(1);
}

/// Shows whether all changes of RBAC that matter arrive.
pub(super) fn following(all: bool) {
    FOLLOWED.with([]).set(f64::from(u8::from(all)));
}

/// Counts a review of an open watch's grant.
pub(super) fn watch_reviewed(cause: ReviewCause) {
    let cause = match cause {
        ReviewCause::Lifetime => "lifetime",
        ReviewCause::Rbac => "rbac",
        ReviewCause::Pods => "pods",
    };
    WATCH_REVIEWS.with([cause.into()]).increment(1);
}

/// Counts a grant of a node.
pub(super) fn node_granted(basis: GrantBasis) {
    let basis = match basis {
        GrantBasis::Rule => "rule",
        GrantBasis::Pod => "pod",
        GrantBasis::Unknown => "unknown",
    };
    NODE_GRANTS.with([basis.into()]).increment(1);
}

/// Shows whether the pods that grants rest on are followed.
pub(super) fn following_pods(all: bool) {
    FOLLOWED_PODS.with([]).set(f64::from(u8::from(all)));
}
