//! Decides whether a request is sent again on another connection.

use http::{Method, Request};
use http_body::Body as _;
use hyper::client::conn::TrySendError;

use crate::body::{self, Body};
use crate::upstream::error::{http2_error, is_given_up};
use crate::upstream::repeat::{self, Repeatable};

/// An attempt without an answer, with the request to send again, if it may be sent again.
pub(super) enum FailedAttempt {
    /// Upstream has not processed the request. `None` if too much of its body was sent to be kept.
    Unprocessed(Option<Request<Body>>),
    /// Upstream may have processed it.
    Unknown(Option<Request<Body>>),
}

/// Decides whether a request is sent again.
pub(super) struct ResendPolicy {
    /// `true` for reads without a body.
    pub(super) is_read: bool,
    /// The chunks sent so far, if the request has a body.
    kept: Option<Repeatable>,
    /// `true` once a pooled connection died before the answer.
    died: bool,
}

impl ResendPolicy {
    /// Prepares the request's body for being sent more than once.
    pub(super) fn new(request: &mut Request<Body>) -> Self {
        let bodyless = request.body().is_end_stream();
        let is_read = bodyless
            && matches!(
                *request.method(),
                Method::GET | Method::HEAD | Method::OPTIONS
            );
        let mut kept = None;
        if !bodyless {
            let body = std::mem::replace(request.body_mut(), body::empty());
            let (repeatable, body) = Repeatable::begin(body);
            kept = Some(repeatable);
            *request.body_mut() = body;
        } else if !is_read {
            *request.body_mut() = repeat::open_end();
        }
        Self {
            is_read,
            kept,
            died: false,
        }
    }

    /// Copies the request, with an empty body.
    pub(super) fn copy(&self, request: &Request<Body>) -> Request<Body> {
        let body = if self.is_read {
            body::empty()
        } else {
            repeat::open_end()
        };
        let mut copy = Request::new(body);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    }

    /// Returns what an error means for the request.
    pub(super) fn after(
        &mut self,
        error: &mut TrySendError<Request<Body>>,
        again: Request<Body>,
        is_pooled: bool,
    ) -> FailedAttempt {
        if let Some(unsent) = error.take_message() {
            return FailedAttempt::Unprocessed(Some(unsent));
        }
        if is_unprocessed(error.error()) {
            return FailedAttempt::Unprocessed(match &mut self.kept {
                Some(kept) => kept.again().map(|body| again.map(|_| body)),
                None => Some(again),
            });
        }
        // An API server resets the stream of a request that has taken too long. Another one would
        // take as long again.
        if is_given_up(error.error()) {
            return FailedAttempt::Unknown(None);
        }
        // Only once: this very request may be what crashes upstream.
        if self.is_read && is_pooled && !self.died {
            self.died = true;
            return FailedAttempt::Unknown(Some(again));
        }
        FailedAttempt::Unknown(None)
    }
}

/// Returns `true` if upstream did not process the request: it refused the stream or sent GOAWAY.
///
/// With a GOAWAY, h2 fails only streams above the last one it names. RFC 9113, 6.8: upstream has
/// not acted on those. An API server sends GOAWAY with each answer to an unknown caller, while
/// requests of others are on the connection.
/// Source: `apiserver/pkg/endpoints/filters/authentication.go`.
fn is_unprocessed(error: &hyper::Error) -> bool {
    http2_error(error).is_some_and(|error| {
        error.is_remote()
            && (error.reason() == Some(h2::Reason::REFUSED_STREAM) || error.is_go_away())
    })
}
