//! Responses of the admin listener.
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::body::{Body, full};

/// Returns a response with plain text.
pub(super) fn plain(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    text_of_type(status, "text/plain; charset=utf-8", text.into())
}

/// Returns a response with text of a content type.
pub(super) fn text_of_type(
    status: StatusCode,
    content_type: &'static str,
    text: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // Some texts show the configuration, which needs credentials where these are set.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}
