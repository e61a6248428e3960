//! Removes the header fields that are for one hop only (RFC 9110, section 7.6.1).
//!
//! `X-Forwarded-Proto`, `-Host` and `Via` are not added, because API servers ignore them. The
//! exception is `pods/proxy`, whose answers use those of the caller, which pass unchanged.
//! `X-Forwarded-For` is the business of whoever forwards.

use http::header::{
    CONNECTION, COOKIE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

use super::error::UpstreamError;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Fields that are never for the next hop, named in `Connection` or not.
const ALWAYS: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
    HTTP2_SETTINGS,
];

/// Fields that a client must not name in `Connection`, which would remove them.
///
/// Each identifies the caller or the subject of the request. Without it, upstream would take the
/// request for another one than the proxy has checked: without `Impersonate-User`, a tenant would
/// become the admin that impersonates them.
const PROTECTED: [&str; 7] = [
    "authorization",
    "audit-id",
    "cookie",
    "host",
    "range",
    "expect",
    "x-real-ip",
];
const PROTECTED_PREFIXES: [&str; 6] = [
    "impersonate-",
    "x-remote-",
    "content-",
    "accept",
    "if-",
    "x-forwarded-",
];

/// Removes the fields of the client's hop from a request.
pub(super) fn clean_request(headers: &mut HeaderMap) -> Result<(), UpstreamError> {
    for name in named(headers) {
        if is_protected(&name) {
            return Err(UpstreamError::Refused {
                reason: format!(
                    "the Connection header names {name}, which is not of this connection"
                ),
            });
        }
        if name != TE {
            headers.remove(&name);
        }
    }
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    headers.remove(TE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    remove_always(headers);
    join_cookies(headers);
    Ok(())
}

/// Removes the fields of upstream's hop from an answer.
pub(super) fn clean_response(headers: &mut HeaderMap) {
    for name in named(headers) {
        headers.remove(&name);
    }
    remove_always(headers);
}

/// Returns the protocol that a client wants to change to, unless it is HTTP, or no text.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(UPGRADE)?;
    let named = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    // Requests of HTTP in the tunnel would bypass the proxy.
    let is_http = |token: &str| {
        let token = token.to_ascii_lowercase();
        token.starts_with("h2") || token.starts_with("http")
    };
    let may_be_http = tokens(headers, &UPGRADE).any(is_http)
        || headers
            .get_all(UPGRADE)
            .iter()
            .any(|value| value.to_str().is_err());
    (named && !may_be_http).then(|| wanted.clone())
}

/// Marks an HTTP/1.1 message as one that changes the protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

fn remove_always(headers: &mut HeaderMap) {
    for name in &ALWAYS {
        headers.remove(name);
    }
}

/// Returns the fields that `Connection` names.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        .collect()
}

fn is_protected(name: &HeaderName) -> bool {
    let name = name.as_str();
    PROTECTED.contains(&name)
        || PROTECTED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

/// Joins all cookies in one field.
///
/// HTTP/2 splits them for compression, and HTTP/1 allows only one field (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<_> = headers
        .get_all(COOKIE)
        .into_iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if all.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn hop_by_hop_fields_are_removed_and_others_stay() {
        let mut request = headers(&[
            ("connection", "keep-alive, X-Mine"),
            ("connection", "te"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("proxy-authorization", "Basic eDp5"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
            ("authorization", "Bearer t"),
            ("impersonate-user", "jane"),
            ("trailer", "x-sum"),
            ("expect", "100-continue"),
        ]);
        clean_request(&mut request).unwrap();
        let rest = headers(&[
            ("te", "trailers"),
            ("authorization", "Bearer t"),
            ("impersonate-user", "jane"),
            ("trailer", "x-sum"),
            ("expect", "100-continue"),
        ]);
        assert_eq!(request, rest);
    }

    #[test]
    fn connection_cannot_name_protected_fields() {
        for name in [
            "Authorization",
            "IMPERSONATE-USER",
            "impersonate-extra-scopes",
            "Audit-ID",
            "x-remote-group",
            "Accept",
            "content-type",
        ] {
            let mut request = headers(&[("connection", &format!("close, {name}"))]);
            let error = clean_request(&mut request).unwrap_err();
            assert!(error.is_refused(), "{name}: {error}");
        }
    }

    #[test]
    fn hop_by_hop_fields_of_answers_are_removed() {
        let mut answer = headers(&[
            ("connection", "close"),
            ("content-type", "text/plain"),
            ("audit-id", "a"),
        ]);
        clean_response(&mut answer);
        assert_eq!(
            answer,
            headers(&[("content-type", "text/plain"), ("audit-id", "a")])
        );
    }

    #[test]
    fn upgrades_are_recognised() {
        let spdy = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(upgrade(&spdy).unwrap(), "SPDY/3.1");
        let unnamed = headers(&[("upgrade", "websocket")]);
        assert_eq!(upgrade(&unnamed), None);
        for http in ["h2c", "websocket, H2C", "HTTP/2.0", "h2c, \u{80}", "\u{80}"] {
            let asked = headers(&[("connection", "upgrade, http2-settings"), ("upgrade", http)]);
            assert_eq!(upgrade(&asked), None, "{http}");
        }
    }

    #[test]
    fn split_cookies_are_joined() {
        let mut request = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        clean_request(&mut request).unwrap();
        assert_eq!(request, headers(&[("cookie", "a=1; b=2")]));
    }
}
