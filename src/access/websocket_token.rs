//! Bearer tokens of WebSocket clients, which cannot set headers: browsers.
//!
//! Source: `apiserver/pkg/authentication/request/websocket/protocol.go`.
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, header};

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Returns the token that is named as a subprotocol. `None` if there is not exactly one.
pub(super) fn token(headers: &HeaderMap) -> Option<String> {
    let named = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let named = named.filter_map(|value| value.to_str().ok());
    let mut tokens = named
        .flat_map(|value| value.split(','))
        .filter_map(|protocol| protocol.trim().strip_prefix(PREFIX));
    let (Some(encoded), None) = (tokens.next(), tokens.next()) else {
        return None;
    };
    let token = URL_SAFE_NO_PAD.decode(encoded).ok()?;
    let token = String::from_utf8(token).ok()?;
    (!token.is_empty()).then_some(token)
}

/// Returns `true` if upstream takes a request for the beginning of a WebSocket.
///
/// Source: `apimachinery/pkg/util/httpstream/wsstream/conn.go` (IsWebSocketRequest).
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let is = |name, wanted: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| {
            let mut parts = value.split(',');
            parts.any(|part| part.trim().eq_ignore_ascii_case(wanted))
        })
    };
    is(header::CONNECTION, "upgrade") && is(header::UPGRADE, "websocket")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_in(protocols: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for protocol in protocols {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        }
        token(&headers)
    }

    #[test]
    fn the_only_token_is_taken() {
        let abc = "base64url.bearer.authorization.k8s.io.YWJj";
        let both = format!("v5.channel.k8s.io, {abc}");
        assert_eq!(token_in(&[&both]).as_deref(), Some("abc"));
        assert_eq!(
            token_in(&["v5.channel.k8s.io", abc]).as_deref(),
            Some("abc")
        );
        assert_eq!(token_in(&[abc, abc]), None);
        assert_eq!(token_in(&["v5.channel.k8s.io"]), None);
        assert_eq!(token_in(&["base64url.bearer.authorization.k8s.io.%"]), None);
    }
}
