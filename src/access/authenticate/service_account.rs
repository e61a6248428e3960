//! Local validation of service account tokens that upstream has accepted before.
//!
//! A token never changes. It ends with its expiry, with the key that signed it, or with an object
//! that it is bound to. This module checks all three. The user of a token always comes from
//! upstream's review, never from the token itself.
//!
//! Source: `pkg/serviceaccount/{jwt,claims}.go`.
use std::sync::Arc;

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;

use super::token_issuer::TokenIssuer;
use crate::access::identity::Identity;

/// The accepted algorithms: those that upstream signs with, and others for the same keys.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
];

/// The objects that tokens can be bound to.
pub trait BoundObjects: Send + Sync {
    /// Returns `true` if an object of the core group exists with this unique id and is not being
    /// deleted. `resource` is its plural name. Returns `None` if the proxy does not know.
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Option<bool>;
}

/// Validates tokens that upstream has accepted before.
pub(in crate::access) struct ServiceAccounts {
    issuer: Arc<TokenIssuer>,
    audiences: Vec<String>,
    objects: Arc<dyn BoundObjects>,
}

impl ServiceAccounts {
    pub(in crate::access) fn new(
        issuer: Arc<TokenIssuer>,
        audiences: Vec<String>,
        objects: Arc<dyn BoundObjects>,
    ) -> Self {
        Self {
            issuer,
            audiences,
            objects,
        }
    }

    /// Returns `true` if a token that upstream accepted as one of `identity` is certainly valid
    /// still. If not, upstream has to review it.
    pub(in crate::access) async fn is_still_valid(&self, token: &str, identity: &Identity) -> bool {
        if !identity.user.starts_with("system:serviceaccount:") {
            return false;
        }
        let Some(documents) = self.issuer.documents().await else {
            return false;
        };
        let Some(claims) = verified(token, &documents.keys, &self.audiences) else {
            return false;
        };
        // The proxy's own clock may be slow.
        let has_ended = documents
            .passed_second()
            .is_some_and(|now| claims.exp <= now);
        claims.sub == identity.user && !has_ended && self.are_present(&claims.binding)
    }

    /// Returns `true` if all objects that a token is bound to exist.
    fn are_present(&self, binding: &TokenBinding) -> bool {
        let TokenBinding {
            namespace,
            serviceaccount,
            pod,
            secret,
            node,
            ..
        } = binding;
        let inside = Some(&**namespace);
        // A pod's token names its node, too, but ends with the pod.
        let node = node.as_ref().filter(|_| pod.is_none());
        self.is_present("serviceaccounts", inside, Some(serviceaccount))
            && self.is_present("pods", inside, pod.as_ref())
            && self.is_present("secrets", inside, secret.as_ref())
            && self.is_present("nodes", None, node)
    }

    /// Returns `true` if an object exists. Without an object there is nothing to miss.
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        object: Option<&BoundObject>,
    ) -> bool {
        object.is_none_or(|BoundObject { name, uid }| {
            self.objects.is_present(resource, namespace, name, uid) == Some(true)
        })
    }
}

#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    binding: TokenBinding,
}

/// The objects that a token is bound to. A token with unknown members is left to upstream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBinding {
    namespace: String,
    serviceaccount: BoundObject,
    pod: Option<BoundObject>,
    secret: Option<BoundObject>,
    node: Option<BoundObject>,
    /// The end of the time for which clients should keep a token. Upstream counts the clients that
    /// keep it longer.
    #[serde(rename = "warnafter")]
    _warn_after: Option<serde_json::Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoundObject {
    name: String,
    uid: String,
}

/// Returns the claims of a token that one of the keys signed and that has not expired.
fn verified(token: &str, keys: &JwkSet, audiences: &[String]) -> Option<Claims> {
    let header = decode_header(token).ok()?;
    if !ALGORITHMS.contains(&header.alg) {
        return None;
    }
    let key = DecodingKey::from_jwk(keys.find(&header.kid?)?).ok()?;
    let mut validation = Validation::new(header.alg);
    validation.leeway = 0;
    validation.validate_nbf = true;
    // Without chosen audiences, upstream's review has checked the token for upstream's own.
    validation.validate_aud = !audiences.is_empty();
    if validation.validate_aud {
        validation.set_audience(audiences);
    }
    decode::<Claims>(token, &key, &validation)
        .ok()
        .map(|data| data.claims)
}

#[cfg(test)]
mod tests;
