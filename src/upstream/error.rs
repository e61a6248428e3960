//! What can go wrong on the way to the API server, in words for the operator.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::address::Address;

/// Why a request got no answer from upstream. Cheap to clone: one failed connection attempt is
/// the answer to everyone who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No TCP connection.
    #[error("cannot connect to the API server at {address}: {source}")]
    Connect {
        /// Where.
        address: Address,
        /// The system's words.
        source: Arc<io::Error>,
    },
    /// No connection in time.
    #[error("the API server at {address} did not accept a connection within {}s (a firewall, or a dead host?)", after.as_secs())]
    ConnectTimeout {
        /// Where.
        address: Address,
        /// How long it was waited for.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error(
        "no TLS with the API server at {address}: {source} (certificate-authority and tls-server-name in the kubeconfig decide what is trusted)"
    )]
    Tls {
        /// Where.
        address: Address,
        /// The handshake's words.
        source: Arc<io::Error>,
    },
    /// TLS stands, and no HTTP.
    #[error("no HTTP with the API server at {address}: {source}")]
    Handshake {
        /// Where.
        address: Address,
        /// hyper's words.
        source: Arc<hyper::Error>,
    },
    /// HTTP/2, but not one stream.
    #[error("the API server at {address} allows no HTTP/2 streams")]
    NoStreams {
        /// Where.
        address: Address,
    },
    /// The connection broke before the answer came.
    #[error("the API server at {address} broke off before answering: {source}")]
    Closed {
        /// Where.
        address: Address,
        /// hyper's words.
        source: Arc<hyper::Error>,
    },
    /// The answer broke off in the middle.
    #[error("the API server at {address} broke off in the middle of an answer: {reason}")]
    Cut {
        /// Where.
        address: Address,
        /// How.
        reason: String,
    },
    /// More connections than a class may have.
    #[error("all {limit} connections to the API server are busy")]
    Exhausted {
        /// How many there may be.
        limit: usize,
    },
    /// This process is about to end.
    #[error("the proxy is shutting down")]
    Ending,
    /// The proxy's own token could not be had.
    #[error("no credentials for the API server: {0} (the user's part of the kubeconfig)")]
    Credentials(String),
    /// A request that is not sent on, as it is malformed or tries to trick the proxy.
    #[error("{reason}")]
    Refused {
        /// What is wrong with it, for its sender.
        reason: String,
    },
}

impl UpstreamError {
    /// Whether this never left the proxy because the caller's request is at fault: a 400, where
    /// everything else is a bad gateway.
    pub fn is_refused(&self) -> bool {
        matches!(self, UpstreamError::Refused { .. })
    }

    /// Whether upstream can't have seen the request.
    pub fn is_unsent(&self) -> bool {
        !matches!(
            self,
            UpstreamError::Closed { .. } | UpstreamError::Cut { .. }
        )
    }
}

/// Upstream was asked, and its answer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// It could not be asked.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// It refused.
    #[error("upstream answered {0}")]
    Status(StatusCode),
    /// Its answer ended early, came late, or is not what was asked for.
    #[error("the answer is of no use: {0}")]
    Useless(String),
}

/// An error with all its causes on one line; hyper's own text hides them. What several of them say
/// is said once, and of a text of several lines, which shows the place in a YAML file, the first
/// line is taken.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut told = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        let words = words.lines().next().unwrap_or_default();
        if !told.contains(words) {
            told = if told.is_empty() {
                words.to_owned()
            } else {
                format!("{told}: {words}")
            };
        }
        next = error.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_on_one_line() {
        let error = anyhow::anyhow!("no such file\n --> there")
            .context("cannot read a: no such file")
            .context("--b");
        assert_eq!(one_line(error.as_ref()), "--b: cannot read a: no such file");
    }
}
