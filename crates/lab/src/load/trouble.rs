//! Failures of one client.
use std::time::Duration;

use http::StatusCode;

use watershed_connect::ConnectError;
use watershed_protocol::{Encoding, Malformed, read_error};

/// Letters of a server's message that are kept.
const MESSAGE: usize = 200;

/// Reason why a request or a watch failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// No connection, or no credentials.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It ended in the middle.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The server allows no requests on its connection.
    #[error("the server closed a new connection, or allows no requests on it")]
    NoStreams,
    /// A refusal.
    #[error("{status}: {message}")]
    Refused { status: StatusCode, message: String },
    /// The version is too old: 410, as a status or in the watch.
    #[error("410 Gone: the watch could not go on from its version")]
    Expired,
    /// No head in time.
    #[error("no answer within {}s", .0.as_secs())]
    Silent(Duration),
    /// Not what a server of the Kubernetes API sends.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A list without a version.
    #[error("a list in which no resourceVersion was found")]
    NoVersion,
    /// A body that is not gzip.
    #[error("an answer whose gzip is invalid")]
    Gzip(#[source] std::io::Error),
    /// A watch that ended within an event.
    #[error("a watch that ended in the middle of an event")]
    Cut,
    /// The request cannot be sent, or its answer is too large.
    #[error("{0}")]
    Request(String),
}

impl LoadError {
    /// From the body of an answer that is no success.
    pub(super) fn refused(status: StatusCode, body: &[u8]) -> Self {
        if status == StatusCode::GONE {
            return Self::Expired;
        }
        let encoding = if body.starts_with(b"k8s\0") {
            Encoding::Protobuf
        } else {
            Encoding::Json
        };
        let told = read_error(encoding, body).message;
        let text = String::from_utf8_lossy(body);
        let message = if told.is_empty() { text.trim() } else { &told };
        let message = message.chars().take(MESSAGE).collect();
        Self::Refused { status, message }
    }

    /// Returns `true` if the same request will be refused again: it is wrong, or not allowed.
    pub(super) fn is_permanent(&self) -> bool {
        let status = self.status().map(|status| status.as_u16());
        matches!(status, Some(400 | 401 | 403 | 404 | 405 | 406 | 422))
    }

    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Expired => Some(StatusCode::GONE),
            _ => None,
        }
    }
}

/// hyper's own text hides the causes.
pub(super) fn broken(error: hyper::Error) -> LoadError {
    LoadError::Broken(format!("{:#}", anyhow::Error::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_request_itself_are_permanent() {
        let is_permanent = |code| {
            let status = StatusCode::from_u16(code).unwrap();
            LoadError::refused(status, b"no").is_permanent()
        };
        for code in [400, 401, 403, 404, 405, 406, 422] {
            assert!(is_permanent(code), "{code}");
        }
        for code in [408, 409, 410, 429, 500, 503, 504] {
            assert!(!is_permanent(code), "{code}");
        }
    }
}
