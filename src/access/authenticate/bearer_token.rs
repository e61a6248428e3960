//! The bearer token among the headers of a request.
use http::{HeaderMap, header};

use crate::access::impersonate;

/// Length limit of a reviewed token. Requests with a longer one are forwarded.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// Returns the bearer token that upstream would read, whatever else the headers contain.
/// Source: `apiserver/pkg/authentication/request/bearertoken/bearertoken.go`.
pub(in crate::access) fn any_bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut words = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split(' ');
    let (scheme, token) = (words.next()?, words.next()?);
    let is_usable = scheme.eq_ignore_ascii_case("bearer")
        && !token.is_empty()
        && token.len() <= MAX_TOKEN_BYTES;
    is_usable.then_some(token)
}

/// Returns the bearer token if it is the only credential and unambiguous. All other credentials
/// (impersonation, several headers) are left to upstream.
pub(in crate::access) fn only_bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    if impersonate::is_requested(headers) {
        return None;
    }
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    // Upstream has rules for further spaces. They are not repeated here, so upstream decides.
    let is_plain =
        !token.is_empty() && token.len() <= MAX_TOKEN_BYTES && !token.contains([' ', '\t']);
    (scheme.eq_ignore_ascii_case("bearer") && is_plain).then_some(token)
}

/// Returns `true` if upstream would consider the request anonymous.
pub(in crate::access) fn has_no_credentials(headers: &HeaderMap) -> bool {
    !headers.contains_key(header::AUTHORIZATION) && !impersonate::is_requested(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(pairs: &[(&'static str, &'static str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        only_bearer_token(&headers).map(str::to_owned)
    }

    #[test]
    fn only_a_single_plain_bearer_token_is_taken() {
        assert_eq!(
            token(&[("authorization", "Bearer abc")]),
            Some("abc".into())
        );
        assert_eq!(
            token(&[("authorization", "bearer abc")]),
            Some("abc".into())
        );
        assert_eq!(token(&[("authorization", "Bearer  abc")]), None);
        assert_eq!(token(&[("authorization", "Bearer\tabc")]), None);
        assert_eq!(token(&[("authorization", "Bearer abc\t")]), None);
        assert_eq!(token(&[("authorization", "Basic abc")]), None);
        assert_eq!(token(&[("authorization", "Bearer")]), None);
        assert_eq!(token(&[("authorization", "Bearer a b")]), None);
        assert_eq!(
            token(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]),
            None
        );
        assert_eq!(
            token(&[("authorization", "Bearer a"), ("impersonate-user", "b")]),
            None
        );
        assert_eq!(
            token(&[("authorization", "Bearer a"), ("Impersonate-Extra-X", "b")]),
            None
        );
    }
}
