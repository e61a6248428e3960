//! The status page: scopes, traffic and clients, as HTML and as JSON.
mod chart;
mod figure;
mod page;
mod report;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};

use super::response::{plain, text_of_type};
use super::state::AdminState;
use crate::body::Body;
use report::StatusReport;

/// Answers `/status` and `/status.json`.
pub(super) fn answer<B>(state: &AdminState, request: &Request<B>) -> Response<Body> {
    let report = StatusReport::new(state);
    let mut response = if wants_json(request) {
        match serde_json::to_string_pretty(&report) {
            Ok(json) => text_of_type(StatusCode::OK, "application/json", json + "\n"),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    } else {
        let html = page::render(&report, &state.history.recent());
        text_of_type(StatusCode::OK, "text/html; charset=utf-8", html)
    };
    add_security_headers(response.headers_mut());
    response
}

fn wants_json<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.uri().path() == "/status.json" || query.split('&').any(|pair| pair == "format=json")
}

fn add_security_headers(headers: &mut HeaderMap) {
    if let Ok(policy) = HeaderValue::from_str(&page::SECURITY_POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
