//! Errors on the way to the API server, in words for the operator.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{Response, StatusCode, header};
use http_body_util::LengthLimitError;
use tokio::time::timeout;

use watershed_connect::{Address, ConnectError};

use crate::body::BoxError;

/// Longest pause that upstream may ask for with `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

/// Reason why a request got no answer from upstream.
///
/// Cheap to clone: everyone who waited for a failed connection gets the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection, or no credentials.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The HTTP handshake failed.
    #[error(
        "HTTP handshake with the API server at {address} failed: {}",
        with_causes(source)
    )]
    Handshake {
        /// The address of the server.
        address: Address,
        /// The error of hyper.
        source: Arc<hyper::Error>,
    },
    /// The server allows no HTTP/2 stream.
    #[error("the API server at {address} allows no HTTP/2 streams")]
    NoStreams {
        /// The address of the server.
        address: Address,
    },
    /// The server ended connections without processing the request, which is not sent again.
    #[error("the API server at {address} closes connections without a look at the request")]
    EndedUnsent {
        /// The address of the last one.
        address: Address,
    },
    /// The connection broke before the answer came.
    #[error(
        "the API server at {address} broke off before answering: {}",
        with_causes(source)
    )]
    Closed {
        /// The address of the server.
        address: Address,
        /// The error of hyper.
        source: Arc<hyper::Error>,
    },
    /// The answer broke off.
    #[error("the API server at {address} broke off in the middle of an answer: {reason}")]
    Cut {
        /// The address of the server.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// More connections than a class may have, or all classes together.
    #[error("all connections to the API server are busy")]
    Exhausted,
    /// This process is about to end.
    #[error("the proxy is shutting down")]
    Ending,
    /// A malformed request, one that tries to trick the proxy, or one whose body broke off. It is not
    /// forwarded, or not to its end.
    #[error("{reason}")]
    Refused {
        /// The reason, for the sender.
        reason: String,
    },
}

/// Returns `true` if upstream ended a request without an answer, and its connection goes on.
///
/// Source: `apiserver/pkg/server/filters/timeout.go` (a panic with `http.ErrAbortHandler`, which Go's
/// `net/http` answers over HTTP/2 with RST_STREAM).
pub(super) fn is_given_up(error: &hyper::Error) -> bool {
    http2_error(error).is_some_and(|error| error.is_remote() && error.is_reset())
}

/// Returns the error of HTTP/2 that led to this one, if one did.
pub(super) fn http2_error(error: &hyper::Error) -> Option<&h2::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns the text of an error and of what led to it. hyper's own text does not name that.
fn with_causes(error: &hyper::Error) -> String {
    let causes = causes(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", causes.collect::<String>())
}

fn causes(error: &hyper::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

impl UpstreamError {
    /// A request whose URL cannot be one of upstream's.
    pub(super) fn refused_url(error: &http::Error) -> Self {
        Self::Refused {
            reason: format!("the URL cannot be forwarded: {error}"),
        }
    }

    /// Returns `true` if upstream ended the request without an answer, as it does with one that has
    /// taken too long.
    pub fn is_given_up(&self) -> bool {
        matches!(self, Self::Closed { source, .. } if is_given_up(source))
    }

    /// Returns `true` if the caller's request is at fault and was not forwarded to its end.
    ///
    /// Such a request is answered with 400.
    pub fn is_refused(&self) -> bool {
        matches!(self, UpstreamError::Refused { .. })
    }

    /// Returns `true` if the server may have done what the request asks for.
    pub fn may_be_done(&self) -> bool {
        matches!(
            self,
            UpstreamError::Closed { .. } | UpstreamError::Cut { .. }
        )
    }
}

/// Reason why a question to upstream got no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// No answer came.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Upstream refused.
    #[error("upstream answered {status}{}", asked_pause(*retry_after))]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// The time after which it may be asked again, from `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The answer broke off.
    #[error("the answer broke off: {0}")]
    Cut(BoxError),
    /// The answer lists more objects than are read.
    #[error("more objects than expected")]
    TooManyObjects,
    /// The answer is a list of the type, in another wire format than the known one.
    #[error("the list has another format than the known one")]
    OtherFormat,
    /// The answer is too long, or has an unexpected form.
    #[error("the answer is unusable: {0}")]
    Unusable(String),
}

impl AnswerError {
    /// Returns the error of an answer whose status is not the expected one.
    pub fn refused<B>(answer: &Response<B>) -> Self {
        let seconds = answer.headers().get(header::RETRY_AFTER);
        let seconds = seconds.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        Self::Refused {
            status: answer.status(),
            retry_after: seconds.map(Duration::from_secs),
        }
    }

    /// Returns the error of a body that was not read to its end within its limit.
    pub fn of_body(error: BoxError) -> Self {
        match error.downcast::<UpstreamError>() {
            Ok(error) => Self::Upstream(*error),
            Err(error) if error.is::<LengthLimitError>() => Self::Unusable(error.to_string()),
            Err(error) => Self::Cut(error),
        }
    }

    /// Returns the status of a refusal.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns `true` if upstream refused, and the same question will probably be refused again.
    pub fn is_lasting_refusal(&self) -> bool {
        self.status().is_some_and(|status| {
            status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS
        })
    }

    /// Returns the time for which upstream asks not to be asked, a minute at most; zero if it did
    /// not say.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after, .. } => {
                retry_after.unwrap_or_default().min(MAX_RETRY_AFTER)
            }
            _ => Duration::ZERO,
        }
    }
}

/// Waits for the answer to a question, for as long as `limit`.
///
/// Not an `async fn`, which would hold the question twice.
pub fn in_time<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, AnswerError>>,
) -> impl Future<Output = Result<T, AnswerError>> {
    timeout(limit, asked).map(move |answer| answer.unwrap_or(Err(AnswerError::Late(limit))))
}

fn asked_pause(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |pause| {
        format!(", and asks to wait {} s", pause.as_secs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{body, test_support};
    use futures_util::stream;

    #[test]
    fn a_refusal_tells_when_upstream_may_be_asked_again() {
        let refused = |retry_after: Option<&str>| {
            let mut answer = Response::new(());
            *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            if let Some(value) = retry_after {
                let value = value.parse().unwrap();
                answer.headers_mut().insert(header::RETRY_AFTER, value);
            }
            AnswerError::refused(&answer).to_string()
        };
        let plain = "upstream answered 429 Too Many Requests";
        assert_eq!(refused(None), plain);
        assert_eq!(refused(Some("7")), format!("{plain}, and asks to wait 7 s"));
        // Kubernetes sends seconds only.
        assert_eq!(refused(Some("Wed, 21 Oct 2026 07:28:00 GMT")), plain);
    }

    #[tokio::test]
    async fn a_long_body_is_unusable_and_one_that_breaks_off_is_cut() {
        let long = body::whole(body::full("long"), 3).await.unwrap_err();
        assert!(matches!(
            AnswerError::of_body(long),
            AnswerError::Unusable(_)
        ));
        let broken = test_support::streamed(stream::iter([Err(BoxError::from("reset"))]));
        let cut = body::whole(broken, 3).await.unwrap_err();
        assert!(matches!(AnswerError::of_body(cut), AnswerError::Cut(_)));
    }
}
