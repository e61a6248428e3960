//! Continue tokens: the start of the next page of a list.
//!
//! Upstream's own encoding, so that a token from here works there and at every replica.
//! Source: `apiserver/pkg/storage/continue.go` (DecodeContinue, EncodeContinue).
use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::ResourceVersion;

const API_VERSION: &str = "meta.k8s.io/v1";
/// A key and its quotes fit many times over; upstream's keys are below 1 KiB.
const MAX_BYTES: usize = 16 * 1024;

/// A position in a list that was begun at a version.
///
/// ```
/// use watershed_protocol::{ContinueToken, ResourceVersion};
///
/// let token = ContinueToken { version: ResourceVersion(287), after: "shop/web-1".to_owned() };
/// assert_eq!(ContinueToken::decode(&token.encode()), Some(token.clone()));
/// assert_eq!(ContinueToken::decode(&token.encode_as_etcd()), Some(token));
/// assert_eq!(ContinueToken::decode("not a token"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinueToken {
    /// The version of the list's first page, which all its pages share.
    pub version: ResourceVersion,
    /// The key after which the page begins: `namespace/name` for a list over all namespaces, else
    /// `name`.
    pub after: String,
}

#[derive(Deserialize, Serialize)]
struct TokenJson<'a> {
    v: Cow<'a, str>,
    rv: i64,
    start: Cow<'a, str>,
}

impl ContinueToken {
    /// Parses a token. Returns `None` if upstream has to answer the request.
    ///
    /// Upstream answers tokens that it refuses, tokens that ask for the newest state (`rv` below
    /// zero), and tokens that do not begin right after a key.
    pub fn decode(text: &str) -> Option<Self> {
        if text.len() > MAX_BYTES {
            return None;
        }
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let json: TokenJson<'_> = serde_json::from_slice(&decoded).ok()?;
        let version = u64::try_from(json.rv).ok().filter(|&version| version > 0)?;
        // From memory upstream writes the slash after the list's prefix, from etcd it does not.
        let start = json.start.strip_prefix('/').unwrap_or(&json.start);
        let after = start.strip_suffix('\0')?;
        let plain =
            |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        let clean = json.v == API_VERSION && after.split('/').all(plain);
        clean.then(|| Self {
            version: ResourceVersion(version),
            after: after.to_owned(),
        })
    }

    /// Encodes the token as upstream's watch cache does.
    pub fn encode(&self) -> String {
        self.beginning_at(format!("/{}\0", self.after))
    }

    /// Encodes the token as upstream does for types of which it has no watch cache.
    pub fn encode_as_etcd(&self) -> String {
        self.beginning_at(format!("{}\0", self.after))
    }

    fn beginning_at(&self, start: String) -> String {
        let json = TokenJson {
            v: API_VERSION.into(),
            rv: i64::try_from(self.version.0).unwrap_or(i64::MAX),
            start: start.into(),
        };
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&json).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(json: &str) -> Option<ContinueToken> {
        ContinueToken::decode(&BASE64_URL_SAFE_NO_PAD.encode(json))
    }

    #[test]
    fn writes_what_upstream_writes() {
        let token = ContinueToken {
            version: ResourceVersion(287),
            after: "ns/cm-a".into(),
        };
        let json = BASE64_URL_SAFE_NO_PAD.decode(token.encode()).unwrap();
        assert_eq!(
            json,
            br#"{"v":"meta.k8s.io/v1","rv":287,"start":"/ns/cm-a\u0000"}"#
        );
        let json = BASE64_URL_SAFE_NO_PAD
            .decode(token.encode_as_etcd())
            .unwrap();
        assert_eq!(
            json,
            br#"{"v":"meta.k8s.io/v1","rv":287,"start":"ns/cm-a\u0000"}"#
        );
    }

    #[test]
    fn reads_both_of_upstreams_forms() {
        let expected = Some(ContinueToken {
            version: ResourceVersion(5),
            after: "cm-a".into(),
        });
        assert_eq!(
            of(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/cm-a\u0000"}"#),
            expected
        );
        assert_eq!(
            of(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"cm-a\u0000"}"#),
            expected
        );
    }

    #[test]
    fn leaves_everything_else_to_upstream() {
        for json in [
            "",
            "{}",
            r#"{"v":"meta.k8s.io/v1","rv":-1,"start":"cm-a\u0000"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":0,"start":"cm-a\u0000"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#,
            r#"{"v":"meta.k8s.io/v1","rv":5,"start":"\u0000"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":5,"start":"cm-a"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../a\u0000"}"#,
            r#"{"v":"meta.k8s.io/v1","rv":5,"start":"//a\u0000"}"#,
            r#"{"v":"v2","rv":5,"start":"cm-a\u0000"}"#,
        ] {
            assert_eq!(of(json), None, "{json}");
        }
        assert_eq!(ContinueToken::decode("#"), None);
        assert_eq!(ContinueToken::decode(&"A".repeat(MAX_BYTES + 1)), None);
    }

    proptest! {
        #[test]
        fn reads_its_own(version in 1..i64::MAX, after in "[a-z0-9.-]{0,9}x(/[a-z0-9.:-]{0,9}x)?") {
            let token = ContinueToken { version: ResourceVersion(version.unsigned_abs()), after };
            prop_assert_eq!(ContinueToken::decode(&token.encode()), Some(token.clone()));
            prop_assert_eq!(ContinueToken::decode(&token.encode_as_etcd()), Some(token));
        }

        #[test]
        fn never_panics(
            text in any::<String>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..99),
        ) {
            let _ = ContinueToken::decode(&text);
            let _ = ContinueToken::decode(&BASE64_URL_SAFE_NO_PAD.encode(bytes));
        }
    }
}
