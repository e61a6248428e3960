//! Refusal of service account tokens without a review, where upstream would certainly refuse them.
//!
//! Upstream verifies tokens of its own issuer with the keys that it publishes, and refuses those
//! that have expired. Tokens of other issuers are for its other authenticators, and are reviewed.
//! Nothing is accepted here, so no signature is verified.
//!
//! Source: `pkg/serviceaccount/{jwt,claims}.go`.
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::token_issuer::{IssuerDocuments, TokenIssuer};

/// Seconds by which upstream lets a token outlive its expiry: the leeway of go-jose, and its own
/// cache of accepted tokens, which is set to ten seconds.
const UPSTREAM_LEEWAY: i64 = 60 + 10;
/// Seconds by which the clocks of upstream's servers may differ.
const CLOCK_SKEW: i64 = 60;

/// Finds tokens that upstream would refuse.
pub(in crate::access) struct TokenInspection {
    issuer: Arc<TokenIssuer>,
}

/// Reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum TokenDefect {
    /// It has expired.
    Expired,
    /// Upstream does not have the key that it names.
    UnknownKey,
}

#[derive(Debug, Deserialize)]
struct TokenHeader {
    kid: Option<String>,
}

/// The claims of a token that nobody has verified.
#[derive(Debug, Deserialize)]
struct UnverifiedClaims {
    iss: String,
    exp: Option<i64>,
}

impl TokenInspection {
    pub(in crate::access) fn new(issuer: Arc<TokenIssuer>) -> Self {
        Self { issuer }
    }

    /// Returns why upstream would certainly refuse a token, or `None` if that is not known.
    pub(in crate::access) async fn defect(&self, token: &str) -> Option<TokenDefect> {
        let (header, claims): (TokenHeader, UnverifiedClaims) = parse(token)?;
        let arrived = Instant::now();
        let documents = self.issuer.documents().await?;
        if !documents.is_named(&claims.iss) {
            return None;
        }
        if has_expired(&claims, &documents) {
            return Some(TokenDefect::Expired);
        }
        // Without a key's name, upstream tries all its keys.
        let key = header.kid.filter(|key| !key.is_empty())?;
        if documents.keys.find(&key).is_some() {
            return None;
        }
        // The key may be new.
        let documents = self.issuer.documents_since(arrived).await?;
        let is_unknown = documents.is_named(&claims.iss)
            && documents.has_all_keys()
            && documents.keys.find(&key).is_none();
        is_unknown.then_some(TokenDefect::UnknownKey)
    }
}

impl TokenDefect {
    pub(in crate::access) fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::UnknownKey => "unknown-key",
        }
    }
}

fn has_expired(claims: &UnverifiedClaims, documents: &IssuerDocuments) -> bool {
    let (Some(end), Some(now)) = (claims.exp, documents.passed_second()) else {
        return false;
    };
    end.saturating_add(UPSTREAM_LEEWAY + CLOCK_SKEW) < now
}

/// Reads the header and the claims of a JSON Web Token as upstream writes it. Nothing is verified. Returns
/// `None` for anything else.
pub(super) fn parse<H, C>(token: &str) -> Option<(H, C)>
where
    H: DeserializeOwned,
    C: DeserializeOwned,
{
    let mut parts = token.splitn(4, '.');
    let (header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some((decode(header)?, decode(claims)?))
}

fn decode<T: DeserializeOwned>(part: &str) -> Option<T> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests;
