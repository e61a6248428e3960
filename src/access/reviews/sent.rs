//! Counts the outcomes of reviews.
use std::time::Instant;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use serde::de::DeserializeOwned;

use crate::access::error::ReviewError;
use crate::access::metrics;
use crate::access::reviews::queues::LATE;

/// Upstream's answer to a review.
pub(in crate::access) trait ReviewAnswer: DeserializeOwned {
    /// Returns `true` if an authorizer failed, so that there is no decision.
    fn is_undecided(&self) -> bool {
        false
    }
}

// The error of a TokenReview says nothing: it is there for each token that is not valid.
// Source: `pkg/registry/authentication/tokenreview/storage.go`.
impl ReviewAnswer for TokenReview {}
impl ReviewAnswer for SelfSubjectReview {}
impl ReviewAnswer for SelfSubjectAccessReview {}

/// A resource of the API server that answers reviews.
#[derive(Clone, Copy, Debug)]
pub(in crate::access) struct ReviewEndpoint {
    pub(in crate::access) path: &'static str,
    /// The label of these reviews in the metrics.
    pub(in crate::access) kind: &'static str,
}

/// A review on its way. If it is dropped before it ends, nobody waits for it any more.
pub(in crate::access) struct SentReview {
    kind: &'static str,
    /// `None` until the review ends.
    result: Option<&'static str>,
    sent: Instant,
}

impl SentReview {
    /// Begins a review.
    pub(in crate::access) fn begin(endpoint: ReviewEndpoint) -> Self {
        Self {
            kind: endpoint.kind,
            result: None,
            sent: Instant::now(),
        }
    }

    /// Ends the review.
    pub(in crate::access) fn ended<T: ReviewAnswer>(mut self, outcome: &Result<T, ReviewError>) {
        self.result = Some(match outcome {
            Ok(answer) if answer.is_undecided() => "undecided",
            Ok(_) => "answered",
            Err(error) if error.is_unavailable() => "unavailable",
            Err(ReviewError::Refused(_)) => "refused",
            Err(_) => "not-understood",
        });
    }
}

impl Drop for SentReview {
    fn drop(&mut self) {
        let took = self.sent.elapsed();
        let dropped = if took < LATE { "abandoned" } else { "late" };
        metrics::reviewed(self.kind, self.result.unwrap_or(dropped), took);
    }
}
