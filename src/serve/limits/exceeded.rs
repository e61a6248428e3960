//! The limits that requests can exceed.
use crate::access::ReviewError;

/// The limit that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum LimitExceeded {
    InFlight,
    Rate,
    /// The head of a request whose caller is unknown is too large.
    HeaderBytes,
    /// An unknown caller would make upstream receive far more than it sends.
    Amplification,
    /// Upstream refused too many tokens from the caller's address.
    RefusedTokens,
    /// Too many requests with unknown tokens wait for reviews.
    UnknownReviews,
    /// Too many requests of one user wait for reviews of impersonation.
    ImpersonationReviews,
    /// Forwarded requests of one caller.
    Forwarded,
    /// Those of them whose answers pods, services and nodes write.
    Relayed,
    /// Sessions of exec, attach and port-forward of one caller.
    Tunnels,
    /// Forwarded requests of unknown callers from one address.
    UnknownForwarded,
    /// Upgrades of unknown callers from one address.
    UnknownTunnels,
    /// Open watches of one user.
    Watches,
    /// The selectors of one user's open watches, and their audit records.
    SelectorBytes,
    /// Lists of one user that look at objects one by one.
    Scans,
    /// The memory of one caller's requests, and of answers that it has not taken.
    Memory,
    /// The same of an unknown caller.
    UnknownMemory,
}

impl LimitExceeded {
    /// Returns the limit because of which a review was not sent; `None` if it failed otherwise.
    pub(in crate::serve) fn of_review(error: &ReviewError) -> Option<Self> {
        match error {
            ReviewError::TooManyRefusals => Some(Self::RefusedTokens),
            ReviewError::TooManyWaiting => Some(Self::UnknownReviews),
            ReviewError::TooManyImpersonations => Some(Self::ImpersonationReviews),
            _ => None,
        }
    }

    /// Returns the metric label.
    pub(in crate::serve) fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in-flight",
            Self::Rate => "rate",
            Self::HeaderBytes => "header-bytes",
            Self::Amplification => "amplification",
            Self::RefusedTokens => "refused-tokens",
            Self::UnknownReviews => "unknown-reviews",
            Self::ImpersonationReviews => "impersonation-reviews",
            Self::Forwarded => "forwarded-requests",
            Self::Relayed => "relayed-requests",
            Self::Tunnels => "tunnels",
            Self::UnknownForwarded => "unknown-forwarded-requests",
            Self::UnknownTunnels => "unknown-tunnels",
            Self::Watches => "watches",
            Self::SelectorBytes => "selector-bytes",
            Self::Scans => "scans",
            Self::Memory => "request-memory",
            Self::UnknownMemory => "unknown-request-memory",
        }
    }
}
