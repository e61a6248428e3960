//! What is counted of the questions to upstream. The names stand here and nowhere else.
use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::review::ReviewError;

/// Reviews that upstream was asked for, and what came of them.
pub const REVIEWS: &str = "watershed_access_reviews_total";
/// Questions of authorization, and whether a verdict was remembered.
pub const CACHE: &str = "watershed_authorization_cache_total";
/// Remembered verdicts that a change of RBAC made useless.
pub const DROPPED: &str = "watershed_authorization_dropped_total";
/// Changes of RBAC that can change a verdict.
pub const CHANGES: &str = "watershed_rbac_changes_total";
/// Whether all changes of RBAC arrive.
pub const FOLLOWED: &str = "watershed_rbac_followed";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    describe_counter!(
        REVIEWS,
        "Reviews of tokens, accesses and the proxy itself that upstream was asked for, by kind and result."
    );
    describe_counter!(
        CACHE,
        "Questions whether a caller may read, by whether the verdict was remembered (hit, miss)."
    );
    describe_counter!(
        DROPPED,
        "Remembered verdicts that were dropped because a change of RBAC can affect them."
    );
    describe_counter!(
        CHANGES,
        "Changes of RBAC objects that can change a verdict, by resource."
    );
    describe_gauge!(
        FOLLOWED,
        "1 while every change of RBAC arrives; while it is 0, verdicts are remembered for seconds only."
    );
}

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
    counter!(REVIEWS, "kind" => kind, "result" => result).increment(1);
}

pub(super) fn remembered(hit: bool) {
    counter!(CACHE, "result" => if hit { "hit" } else { "miss" }).increment(1);
}

pub(super) fn dropped() {
    counter!(DROPPED).increment(1);
}

pub(super) fn changed(resource: &str) {
    counter!(CHANGES, "resource" => resource.to_owned()).increment(1);
}

pub(super) fn following(all: bool) {
    gauge!(FOLLOWED).set(f64::from(u8::from(all)));
}
