//! Bearer tokens of WebSocket clients, which cannot set headers: browsers.
//!
//! Source: `apiserver/pkg/authentication/request/websocket/protocol.go`.
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, header};

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Returns the token that is named as a subprotocol. `None` if there is not exactly one.
pub(in crate::access) fn token(headers: &HeaderMap) -> Option<String> {
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
pub(in crate::access) fn is_websocket(headers: &HeaderMap) -> bool {
    let options = headers.get_all(header::CONNECTION).iter();
    let mut options = options.filter_map(|value| value.to_str().ok());
    let is_upgrade = options.any(|value| value.to_ascii_lowercase().contains("upgrade"));
    let protocol = headers.get(header::UPGRADE);
    is_upgrade && protocol.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"))
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
    fn a_websocket_is_told_by_both_headers() {
        let is = |connection: &[&str], upgrade: &str| {
            let mut headers = HeaderMap::new();
            for line in connection {
                headers.append(header::CONNECTION, line.parse().unwrap());
            }
            headers.insert(header::UPGRADE, upgrade.parse().unwrap());
            is_websocket(&headers)
        };
        assert!(is(&["Upgrade"], "websocket"));
        assert!(is(&["keep-alive, upgrade"], "WebSocket"));
        assert!(is(&["keep-alive", "Upgrade"], "websocket"));
        assert!(!is(&["keep-alive"], "websocket"));
        assert!(!is(&["Upgrade"], "SPDY/3.1"));
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
