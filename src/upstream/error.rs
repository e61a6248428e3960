//! What can go wrong on the way to the API server, in words for the operator.

use std::sync::Arc;

use http::StatusCode;

use watershed_connect::{Address, ConnectError};

/// Why a request got no answer from upstream. Cheap to clone: one failed connection attempt is
/// the answer to everyone who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection, or no credentials.
    #[error(transparent)]
    Connect(#[from] ConnectError),
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
pub enum AnswerError {
    /// It could not be asked.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// It refused.
    #[error("upstream answered {0}")]
    Status(StatusCode),
    /// Its answer ended early, came late, or is not what was asked for.
    #[error("the answer is of no use: {0}")]
    Unusable(String),
}
