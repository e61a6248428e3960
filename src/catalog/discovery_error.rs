//! Errors of reading discovery, and what an operator can do about them.
use http::StatusCode;
use jiff::Timestamp;

use crate::upstream::{Upstream, UpstreamError};
use watershed_connect::{ConnectError, one_line};

/// Discovery could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// Upstream could not be asked.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Upstream does not know who asks.
    #[error(
        "upstream answered 401 Unauthorized to {path}: it does not know the proxy's credentials, \
         or they have expired"
    )]
    Unknown {
        /// The document asked for.
        path: String,
    },
    /// Upstream refused.
    #[error("upstream answered {status} to {path}{hint}", hint = hint(*status))]
    Refused {
        /// The document asked for.
        path: String,
        /// The answer.
        status: StatusCode,
    },
    /// The answer is not what discovery looks like.
    #[error("upstream's answer to {path} is not understood: {why}")]
    NotUnderstood {
        /// The document asked for.
        path: String,
        /// The reason.
        why: String,
    },
}

impl DiscoveryError {
    /// Returns `true` if upstream would most likely answer the same again: the proxy may not read
    /// the document, or there is none.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: StatusCode::FORBIDDEN | StatusCode::NOT_FOUND,
                ..
            }
        )
    }

    /// Returns what an operator can do about it.
    pub fn advice(&self, upstream: &Upstream) -> String {
        let source = upstream.source();
        match self {
            Self::Unknown { .. } => {}
            Self::Upstream(UpstreamError::Connect(
                ConnectError::Connect { .. } | ConnectError::ConnectTimeout { .. },
            )) => {
                return format!(
                    "check that the API server is running, and that it is the one that --server or \
                     {source} names"
                );
            }
            _ => return "check --kubeconfig, --server and the proxy's permissions".to_owned(),
        }
        let now = Timestamp::now();
        match upstream.certificate().filter(|valid| !valid.is_valid(now)) {
            Some(expired) => {
                format!(
                    "the client certificate of {source}: {}",
                    expired.describe(now)
                )
            }
            None => format!("check the user's part of {source}"),
        }
    }

    /// Logs it, as the proxy cannot become ready.
    pub fn report(&self, upstream: &Upstream) {
        tracing::error!(
            error = one_line(self),
            advice = self.advice(upstream),
            "cannot read upstream's discovery: not ready, trying again; requests are forwarded"
        );
    }
}

/// Returns what an operator can do about a refusal.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => ": the proxy's identity needs the ClusterRole system:discovery",
        StatusCode::LOOP_DETECTED => {
            ": upstream is a watershed proxy that leads back to a proxy on the way"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_right_is_blamed_on_rights() {
        let refused = |status| DiscoveryError::Refused {
            path: "/api".to_owned(),
            status,
        };
        let forbidden = refused(StatusCode::FORBIDDEN).to_string();
        assert!(
            forbidden.ends_with("the ClusterRole system:discovery"),
            "{forbidden}"
        );
        assert_eq!(
            refused(StatusCode::SERVICE_UNAVAILABLE).to_string(),
            "upstream answered 503 Service Unavailable to /api"
        );
    }
}
