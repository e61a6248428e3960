//! Which header fields end at this proxy (RFC 9110, section 7.6.1).
//!
//! `X-Forwarded-*` and `Via` are not added: API servers don't look at them, except for
//! `X-Forwarded-*` as a caller sent them in the answers of `pods/proxy`, which pass untouched.

use http::header::{
    CONNECTION, COOKIE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

use super::error::UpstreamError;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Never meant for the next hop, named in `Connection` or not.
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

/// Fields a client may not have removed by naming them in `Connection`. Each says who asks or what
/// is asked for; without it, the same request would mean something else at upstream than it does to
/// those who looked at it here. `Impersonate-User`, stripped, makes an admin out of a tenant.
const PROTECTED: [&str; 6] = [
    "authorization",
    "audit-id",
    "cookie",
    "host",
    "range",
    "expect",
];
const PROTECTED_PREFIXES: [&str; 6] = [
    "impersonate-",
    "x-remote-",
    "content-",
    "accept",
    "if-",
    "x-forwarded-",
];

/// Takes the fields of the client's hop out of a request.
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

/// Takes the fields of upstream's hop out of an answer.
pub(super) fn clean_response(headers: &mut HeaderMap) {
    for name in named(headers) {
        headers.remove(&name);
    }
    remove_always(headers);
}

/// The protocol a client wants to change to, if it is one to be spoken with upstream.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(UPGRADE)?;
    let named = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    // HTTP/2 without TLS would be spoken past the proxy, unseen.
    let h2c = tokens(headers, &UPGRADE).any(|token| token.to_ascii_lowercase().starts_with("h2"));
    (named && !h2c).then(|| wanted.clone())
}

/// Says on an HTTP/1.1 message that it is about a change of protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

fn remove_always(headers: &mut HeaderMap) {
    for name in &ALWAYS {
        headers.remove(name);
    }
}

/// The fields that `Connection` names.
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

/// HTTP/2 splits cookies into fields for compression; HTTP/1 knows only one field (RFC 9113,
/// 8.2.3).
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
    fn what_belongs_to_the_hop_goes_and_the_rest_stays() {
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
    fn who_asks_cannot_be_stripped() {
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
    fn answers_lose_their_hop() {
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
        let h2c = headers(&[
            ("connection", "upgrade, http2-settings"),
            ("upgrade", "h2c"),
        ]);
        assert_eq!(upgrade(&h2c), None);
    }

    #[test]
    fn split_cookies_are_joined() {
        let mut request = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        clean_request(&mut request).unwrap();
        assert_eq!(request, headers(&[("cookie", "a=1; b=2")]));
    }
}
