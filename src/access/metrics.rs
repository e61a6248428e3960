//! Metrics of authentication and authorization.
use super::error::ReviewError;
use crate::metric::{Counter, Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    REVIEWS.declaration(),
    REFUSED.declaration(),
    CACHE.declaration(),
    DROPPED.declaration(),
    CHANGES.declaration(),
    FOLLOWED.declaration(),
];

const REVIEWS: Metric<Counter, 2> = Metric::new(
    "watershed_access_reviews_total",
    &["kind", "result"],
    "TokenReviews, SubjectAccessReviews and SelfSubjectReviews sent to upstream, by kind and \
     result.",
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
    "Cached authorization decisions that were dropped because a change of RBAC can affect them.",
);
const CHANGES: Metric<Counter, 1> = Metric::new(
    "watershed_rbac_changes_total",
    &["resource"],
    "Changes of RBAC objects that can change an authorization decision, by resource.",
);
const FOLLOWED: Metric<Gauge> = Metric::new(
    "watershed_rbac_following",
    &[],
    "1 while every change of RBAC arrives. While it is 0, decisions are cached for seconds only.",
);

/// Counts a review that was sent to upstream.
pub(super) fn reviewed<T>(path: &str, outcome: &Result<T, ReviewError>) {
    let kind = match path.rsplit('/').next() {
        Some("tokenreviews") => "tokenreview",
        Some("selfsubjectreviews") => "selfsubjectreview",
        _ => "subjectaccessreview",
    };
    let result = match outcome {
        Ok(_) => "answered",
        Err(error) if error.is_unavailable() => "unavailable",
        Err(ReviewError::Refused(_)) => "refused",
        Err(_) => "not-understood",
    };
    REVIEWS.with([kind.into(), result.into()]).increment(1);
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

/// Shows whether all changes of RBAC arrive.
pub(super) fn following(all: bool) {
    FOLLOWED.with([]).set(f64::from(u8::from(all)));
}
