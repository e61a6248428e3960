//! The one place in `serve` where errors become responses.
use http::{HeaderValue, Response, StatusCode, header};
use watershed_protocol::Status;

use super::response::{Answer, from_memory};
use crate::body::{Body, full};
use crate::headers;
use crate::listener::LastOfConnection;
use crate::serve::limits::exceeded::LimitExceeded;
use crate::serve::metrics;
use crate::serve::plan::refusal_form::RefusalForm;
use crate::serve::source::AnswerSource;
use crate::serve::unanswered::Refusal;
use crate::upstream::{ChainError, UpstreamError};

/// Returns the answer to a request that is refused.
pub(in crate::serve) fn refused(refusal: Refusal, form: RefusalForm) -> Answer {
    match refusal {
        Refusal::Status(source, refusal) => {
            let mut response = status(&refusal, form, &[]);
            if refusal.code == 401 {
                response.extensions_mut().insert(LastOfConnection);
            }
            if source == AnswerSource::Access && refusal.code != 401 {
                forbid_sniffing(&mut response);
            }
            Answer::new(source, response)
        }
        Refusal::Limit(exceeded) => over_the_limit(exceeded),
    }
}

/// Returns a response with a Status as its body, and with the Warning headers of the type.
pub(super) fn status(
    status: &Status,
    form: RefusalForm,
    warnings: &[HeaderValue],
) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = from_memory(
        code,
        form.encoding.content_type(),
        full(form.body(status)),
        warnings,
    );
    // For the audit log.
    response.extensions_mut().insert(status.clone());
    if let Some(seconds) = status.retry_after() {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Sets the header that upstream sends with refusals of the caller.
///
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/errors.go` (Forbidden,
/// RespondWithError).
fn forbid_sniffing(response: &mut Response<Body>) {
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
}

/// Returns the response to a request that a flag of single-identity mode refuses.
pub(in crate::serve) fn filtered(flag: &str) -> Response<Body> {
    let message = format!("the proxy does not accept such requests ({flag})");
    let refusal = Status::new(403, "Forbidden", message);
    let mut response = early_refusal(AnswerSource::Access, &refusal);
    forbid_sniffing(&mut response);
    response
}

/// Returns the response to a request that another proxy must not have sent here.
pub(in crate::serve) fn from_a_loop(error: &ChainError) -> Response<Body> {
    let refusal = match error {
        ChainError::Loop { .. } | ChainError::TooLong => {
            Status::new(508, "LoopDetected", error.to_string())
        }
        ChainError::Malformed => Status::bad_request(error.to_string()),
    };
    early_refusal(AnswerSource::Loop, &refusal)
}

/// Returns the response to a request that is refused before it is looked at.
fn early_refusal(source: AnswerSource, refusal: &Status) -> Response<Body> {
    let mut response = status(refusal, RefusalForm::default(), &[]);
    let headers = response.headers_mut();
    headers.insert(headers::SOURCE, source.header());
    response
}

/// Returns the response to a request that could not be forwarded, or was not answered. A safe one
/// only reads.
pub(in crate::serve) fn not_forwarded(
    error: &UpstreamError,
    is_safe: bool,
    form: RefusalForm,
) -> Response<Body> {
    let refusal = if error.is_refused() {
        Status::bad_request(error.to_string())
    } else if error.may_be_done() && !is_safe {
        // Clients send a request again after a 503, and client-go any request whose answer has
        // Retry-After (`rest/with_retry.go`, checkWait). Of an API server that dies they see a broken
        // connection, which they report for writes. 502 is the closest to it.
        let message = format!("the API server may have done this or not: {error}");
        Status::new(502, "InternalError", message)
    } else if error.is_given_up() {
        // Clients would send it again after a 503. Of an API server they see the end of the stream.
        let message = format!("the API server gave up on the request: {error}");
        Status::new(504, "Timeout", message)
    } else {
        let failure = match error {
            UpstreamError::EndedUnsent { .. } => "did not process the request",
            _ => "could not be reached",
        };
        let message = format!("the API server {failure}: {error}");
        Status::service_unavailable(message, 1)
    };
    status(&refusal, form, &[])
}

/// Returns the answer to a request that exceeds a limit.
///
/// Source of 429: `apiserver/pkg/server/filters/priority-and-fairness.go` (tooManyRequests). It is
/// plain text, not a Status. Of 431: Go's `net/http/server.go` (serve).
pub(in crate::serve) fn over_the_limit(exceeded: LimitExceeded) -> Answer {
    metrics::limited(exceeded.as_str());
    let (code, text) = match exceeded {
        LimitExceeded::HeaderBytes => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "431 Request Header Fields Too Large",
        ),
        _ => (
            StatusCode::TOO_MANY_REQUESTS,
            "Too many requests, please try again later.\n",
        ),
    };
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if code == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    forbid_sniffing(&mut response);
    Answer::new(AnswerSource::Limit, response)
}
