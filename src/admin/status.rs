//! The status page: what is held, what is saved, and for whom. As HTML for people, and the same as
//! JSON.
mod chart;
mod figure;
mod page;
mod report;

use http::{HeaderValue, Request, Response, StatusCode, header};

use super::{State, text};
use crate::body::Body;
use crate::listener::Peer;
use report::{Report, Users};

/// `/status`, or `/status.json`.
pub(super) fn answer<B>(state: &State, request: &Request<B>, peer: &Peer) -> Response<Body> {
    let users = if state.token.is_some() || is_at_home(request, peer) {
        Users::Shown
    } else {
        Users::Hidden
    };
    let report = Report::of(state, users);
    let query = request.uri().query().unwrap_or_default();
    let json = request.uri().path() == "/status.json"
        || query.split('&').any(|pair| pair == "format=json");
    let mut response = if json {
        match serde_json::to_string_pretty(&report) {
            Ok(json) => text(StatusCode::OK, "application/json", json + "\n"),
            Err(error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                super::PLAIN,
                format!("{error}\n"),
            ),
        }
    } else {
        text(
            StatusCode::OK,
            "text/html; charset=utf-8",
            page::render(&report, &state.history.rates()),
        )
    };
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&page::SECURITY_POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    response
}

/// Whether somebody on this machine, or in this pod, asks, and no page from elsewhere in their
/// browser: such a page can make its own name lead here, but not a number.
fn is_at_home<B>(request: &Request<B>, peer: &Peer) -> bool {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host
        .or_else(|| request.uri().authority().map(http::uri::Authority::as_str))
        .unwrap_or_default();
    let named: Option<http::uri::Authority> = host.parse().ok();
    let name = named.as_ref().map_or("", http::uri::Authority::host);
    let number = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<std::net::IpAddr>()
        .is_ok();
    peer.address.ip().to_canonical().is_loopback()
        && (number || name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_users_are_for_those_at_home() {
        for (host, address, home) in [
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
            assert_eq!(is_at_home(&request, &peer), home, "{host} from {address}");
        }
    }
}
