//! Errors of one attempt to follow upstream.

use std::time::Duration;

use http::StatusCode;
use watershed_connect::ConnectError;
use watershed_protocol::{GunzipError, Malformed, ResourceVersion};

use super::change::Stopped;
use crate::budget::DoesNotFit;
use crate::upstream::UpstreamError;
use crate::upstream::stream::StreamError;

/// Reason why an attempt failed. The reflector retries after all of these but [`Stopped`].
#[derive(Debug, thiserror::Error)]
pub(super) enum ReflectorError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the stream broke: {0}")]
    Broken(String),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The stream had no bookmark yet: it may be dead, or upstream may send none while nothing changes.
    #[error("no bookmark yet after {0:?}")]
    Quiet(Duration),
    #[error("upstream answered {0}: {1}")]
    Status(StatusCode, String),
    /// The watch brought an ERROR event that is neither an expired version nor a request to wait.
    #[error("the watch ended with an error: {0}: {1}")]
    Watch(StatusCode, String),
    /// It ended before it brought anything, or before the last event came again.
    #[error("the watch ended as soon as it began")]
    Brief,
    /// The watch began with a bookmark of a version before the last event.
    #[error("the event at {event} is not there yet")]
    Behind { event: ResourceVersion },
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The requested version is too old for this server.
    #[error("the version expired: {0}")]
    Expired(String),
    #[error("this server does not stream initial events")]
    NoInitialEvents,
    /// The objects are not printed as those of a built-in type.
    #[error("the format is not the expected one: {0}")]
    OtherFormat(Malformed),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The meaning of a failure for the next attempt.
pub(super) enum Fault<'a> {
    /// A server does not have the version any more, as it says in this answer.
    Expired(&'a str),
    /// An answer cannot be read.
    Unreadable,
    /// Nothing came, which may be the nature of the type.
    Quiet,
    /// A server refused.
    Refused,
    /// A server failed, or was silent.
    Unanswered,
    /// Nothing about a server.
    Other,
}

impl ReflectorError {
    /// Returns the meaning of the failure.
    pub(super) fn fault(&self) -> Fault<'_> {
        match self {
            Self::Expired(answer) => Fault::Expired(answer),
            Self::Malformed(_) => Fault::Unreadable,
            Self::Quiet(_) => Fault::Quiet,
            Self::Stopped(_) => Fault::Refused,
            Self::Silent(_)
            | Self::Broken(_)
            | Self::Brief
            | Self::Behind { .. }
            | Self::Watch(..) => Fault::Unanswered,
            Self::Status(status, _) if status.is_server_error() => Fault::Unanswered,
            Self::Status(..) | Self::Upstream(_) | Self::NoInitialEvents | Self::OtherFormat(_) => {
                Fault::Other
            }
        }
    }

    /// Returns `true` if no connection could be made.
    pub(super) fn is_failed_connection(&self) -> bool {
        matches!(
            self,
            Self::Upstream(UpstreamError::Connect(
                ConnectError::Connect { .. } | ConnectError::ConnectTimeout { .. },
            ))
        )
    }

    /// Returns `true` if upstream may fail like this at one version, and not at others.
    pub(super) fn may_concern_the_version(&self) -> bool {
        match self {
            Self::Watch(..) | Self::Brief | Self::Behind { .. } => true,
            Self::Status(code, _) => *code != StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }
}

impl From<DoesNotFit> for ReflectorError {
    fn from(error: DoesNotFit) -> Self {
        Self::Stopped(error.into())
    }
}

impl From<GunzipError> for ReflectorError {
    fn from(error: GunzipError) -> Self {
        match error {
            GunzipError::TooLarge(_) => Self::Broken(error.to_string()),
            GunzipError::Malformed(error) => Self::Malformed(error),
        }
    }
}

impl From<StreamError> for ReflectorError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Brief => Self::Brief,
            StreamError::Broken(how) => Self::Broken(how),
            StreamError::Silent(silence) => Self::Silent(silence),
            StreamError::Malformed(error) => Self::Malformed(error),
        }
    }
}
