//! The one place where refusals become responses.
use http::{HeaderValue, Response, StatusCode, header};

use super::from_memory;
use crate::body::{Body, full};
use crate::upstream::UpstreamError;
use watershed_protocol::{Encoding, Status};

/// A Status as the response's body, with the Warning headers of the type.
pub(super) fn status(
    status: &Status,
    encoding: Encoding,
    warnings: &[HeaderValue],
) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = from_memory(
        code,
        encoding.content_type(false),
        full(status.encode(encoding)),
        warnings,
    );
    // For the audit log.
    response.extensions_mut().insert(status.clone());
    let headers = response.headers_mut();
    if code == StatusCode::FORBIDDEN {
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
    }
    if let Some(seconds) = status.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Whether a response was made here and not upstream.
pub(super) fn is_own(response: &Response<Body>) -> bool {
    response.extensions().get::<Status>().is_some()
}

/// A watch that comes while the process ends would end with it. As an API server does, it is sent
/// to another one.
/// Source: `apiserver/pkg/server/filters/watch_termination.go`, `waitgroup.go`.
pub(super) fn ending(encoding: Encoding) -> Response<Body> {
    status(
        &Status::service_unavailable("the proxy is shutting down", 1),
        encoding,
        &[],
    )
}

/// A request that could not be forwarded.
pub(super) fn unreachable(error: &UpstreamError, encoding: Encoding) -> Response<Body> {
    if error.is_refused() {
        return status(&Status::bad_request(error.to_string()), encoding, &[]);
    }
    let message = format!("the API server could not be reached: {error}");
    status(&Status::service_unavailable(message, 1), encoding, &[])
}
