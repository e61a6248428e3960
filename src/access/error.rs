//! The error of a review.
use std::time::Duration;

use http::StatusCode;

use crate::upstream::UpstreamError;

/// A failed review: upstream gave no verdict.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The connection failed.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Upstream refused the review.
    #[error("upstream answered {0} to a review{hint}", hint = hint(*.0))]
    Refused(StatusCode),
    /// The answer broke off.
    #[error("upstream broke off in the middle of a review: {0}")]
    Cut(String),
    /// The verdict cannot be read.
    #[error("upstream's review is not understood: {0}")]
    NotUnderstood(String),
    /// An authorizer failed, and no other one granted the access. To the caller's own request
    /// upstream answers 500 then. Source: `apiserver/pkg/endpoints/filters/authorization.go`.
    #[error("upstream could not decide: {0}")]
    Undecided(String),
    /// No verdict arrived in time.
    #[error("upstream did not answer a review within {0:?}")]
    Late(Duration),
    /// Too many reviews, of the same caller or of all, wait for answers.
    #[error("a review was given up after {0:?}, as too many others wait for upstream's answers")]
    GivenUp(Duration),
    /// The caller was lately denied other reads of the type. The request itself costs upstream less than
    /// a review of it.
    #[error("upstream denied the caller other reads of the type; this one was not reviewed")]
    OftenDenied,
    /// Another proxy asks what this one cannot tell.
    #[error("only upstream can answer this review")]
    LeftToUpstream,
    /// Too many tokens from the caller's address were refused.
    #[error("upstream refused too many tokens from this address; this one was not reviewed")]
    TooManyRefusals,
    /// Too many requests with unknown tokens wait for their reviews.
    #[error("too many requests wait for reviews of their tokens; this one was not reviewed")]
    TooManyWaiting,
    /// Too many requests of the caller wait for reviews of the users as whom they want to act.
    #[error("too many requests wait for reviews of impersonation; this one was not reviewed")]
    TooManyImpersonations,
}

impl ReviewError {
    /// Returns `true` if upstream is away or overloaded. Otherwise it answered, and what it would
    /// say to the caller can be had of it.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Upstream(_) | Self::Cut(_) | Self::Late(_) | Self::GivenUp(_) => true,
            Self::Refused(status) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Undecided(_)
            | Self::NotUnderstood(_)
            | Self::OftenDenied
            | Self::LeftToUpstream
            | Self::TooManyRefusals
            | Self::TooManyWaiting
            | Self::TooManyImpersonations => false,
        }
    }

    /// Returns `true` if the same review may succeed later.
    pub(super) fn may_pass(&self) -> bool {
        self.is_unavailable() || matches!(self, Self::Undecided(_))
    }

    /// Returns `true` if upstream knows who sent the review, and refuses it. It would refuse the
    /// same one again.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_)) && !self.is_unavailable() && !self.is_unknown()
    }

    /// Returns `true` if upstream does not know the identity that sent the review.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Refused(StatusCode::UNAUTHORIZED))
    }

    /// The answer to a review has no verdict.
    pub(super) fn without_status() -> Self {
        Self::NotUnderstood("it has no status".to_owned())
    }

    pub(super) fn not_understood(error: impl std::fmt::Display) -> Self {
        Self::NotUnderstood(error.to_string())
    }
}

/// Returns what an operator can do about a refusal.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => ": the proxy's identity needs system:auth-delegator",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_right_is_blamed_on_rights() {
        let forbidden = ReviewError::Refused(StatusCode::FORBIDDEN).to_string();
        assert!(
            forbidden.ends_with("needs system:auth-delegator"),
            "{forbidden}"
        );
        let unready = ReviewError::Refused(StatusCode::SERVICE_UNAVAILABLE).to_string();
        assert_eq!(
            unready,
            "upstream answered 503 Service Unavailable to a review"
        );
    }
}
