//! The status page: scopes, traffic and clients, as HTML and as JSON.
mod chart;
mod figure;
mod page;
mod report;

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};

use super::response::{plain, text_of_type};
use super::state::AdminState;
use crate::body::Body;
use crate::listener::Peer;
use report::{StatusReport, UserNames};

/// Answers `/status` and `/status.json`.
pub(super) fn answer<B>(state: &AdminState, request: &Request<B>, peer: &Peer) -> Response<Body> {
    let names = if state.token.is_some() || is_local(request, peer) {
        UserNames::Shown
    } else {
        UserNames::Hidden
    };
    let report = StatusReport::new(state, names);
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

/// Returns true if the caller is on this machine or in this pod.
///
/// The request must also name localhost or an IP address as its host. This defeats DNS rebinding: a
/// foreign page in a local browser can make its own name resolve to this listener, but then sends
/// that name.
fn is_local<B>(request: &Request<B>, peer: &Peer) -> bool {
    peer.address.ip().to_canonical().is_loopback()
        && requested_host(request).is_some_and(|host| is_localhost_or_address(host.host()))
}

/// Returns the Host header, or the authority of an HTTP/2 request.
fn requested_host<B>(request: &Request<B>) -> Option<Authority> {
    let header = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    match header {
        Some(host) => host.parse().ok(),
        None => request.uri().authority().cloned(),
    }
}

fn is_localhost_or_address(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_are_for_local_callers() {
        for (host, address, local) in [
            ("127.0.0.1:6480", "127.0.0.1:1", true),
            ("localhost:6480", "127.0.0.1:1", true),
            ("[::1]:6480", "[::1]:1", true),
            ("127.0.0.1", "[::ffff:127.0.0.1]:1", true),
            ("evil.example.com:6480", "127.0.0.1:1", false),
            ("localhost.example.com", "127.0.0.1:1", false),
            ("", "127.0.0.1:1", false),
            ("127.0.0.1:6480", "10.0.0.1:1", false),
        ] {
            let request = Request::get("/status")
                .header(header::HOST, host)
                .body(())
                .unwrap();
            let peer = Peer {
                address: address.parse().unwrap(),
                tls: None,
            };
            assert_eq!(is_local(&request, &peer), local, "{host} from {address}");
        }
    }
}
