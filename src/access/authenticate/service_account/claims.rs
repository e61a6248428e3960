//! The claims of upstream's tokens, and the users that they describe.
//!
//! Source: `pkg/serviceaccount/{jwt,claims}.go`, `apiserver/pkg/authentication/serviceaccount/util.go`.
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;

use crate::access::identity::Identity;
use crate::access::token_attribute::{CREDENTIAL_ID, NODE_NAME, NODE_UID, POD_NAME, POD_UID};

/// The accepted algorithms: those that upstream signs with, and others for the same keys.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
];
const ALL_ACCOUNTS: &str = "system:serviceaccounts";

/// The claims of a token. One with unknown members is left to upstream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claims {
    pub(super) iss: String,
    pub(super) aud: Vec<String>,
    pub(super) sub: String,
    pub(super) exp: i64,
    pub(super) jti: Option<String>,
    #[serde(rename = "kubernetes.io")]
    pub(super) binding: TokenBinding,
    // Named, because unknown members are refused. The time before which a token is not valid is compared
    // where the signature is verified.
    #[serde(rename = "nbf")]
    _not_before: Option<serde_json::Number>,
    #[serde(rename = "iat")]
    _issued_at: Option<serde_json::Number>,
}

/// The objects that a token is bound to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenBinding {
    pub(super) namespace: String,
    pub(super) serviceaccount: BoundObject,
    pub(super) pod: Option<BoundObject>,
    pub(super) secret: Option<BoundObject>,
    pub(super) node: Option<BoundObject>,
    /// The end of the time for which clients should keep a token. Upstream counts the clients that
    /// keep it longer.
    #[serde(rename = "warnafter")]
    _warn_after: Option<serde_json::Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoundObject {
    pub(super) name: String,
    pub(super) uid: String,
}

/// The header of a token that names its key.
pub(super) struct SigningKey {
    pub(super) algorithm: Algorithm,
    pub(super) id: String,
}

impl SigningKey {
    /// Reads a token's header. Nothing is verified by it.
    pub(super) fn of(token: &str) -> Option<Self> {
        let Header { alg, kid, .. } = decode_header(token).ok()?;
        let is_accepted = ALGORITHMS.contains(&alg);
        is_accepted.then_some(Self {
            algorithm: alg,
            id: kid?,
        })
    }
}

impl Claims {
    /// Returns the claims of a token that the named key signed, if it is one of these, and that is valid by
    /// the proxy's own clock.
    pub(super) fn verified(
        token: &str,
        named: &SigningKey,
        keys: &JwkSet,
        audiences: &[String],
    ) -> Option<Self> {
        let key = DecodingKey::from_jwk(keys.find(&named.id)?).ok()?;
        let mut validation = Validation::new(named.algorithm);
        validation.leeway = 0;
        validation.validate_nbf = true;
        // Without chosen audiences, upstream's reviews check them for upstream's own.
        validation.validate_aud = !audiences.is_empty();
        if validation.validate_aud {
            validation.set_audience(audiences);
        }
        let claims = decode::<Self>(token, &key, &validation).ok()?.claims;
        let binding = &claims.binding;
        (claims.sub == binding.user_name()).then_some(claims)
    }

    /// Returns the user that upstream makes of these claims.
    pub(super) fn user(&self) -> Identity {
        let TokenBinding {
            namespace,
            serviceaccount,
            pod,
            node,
            ..
        } = &self.binding;
        // Upstream has no attribute for an empty one.
        let jti = self.jti.as_ref().filter(|jti| !jti.is_empty());
        let credential = jti.map(|jti| format!("JTI={jti}"));
        let name = |object: &Option<BoundObject>| object.as_ref().map(|it| it.name.clone());
        let uid = |object: &Option<BoundObject>| object.as_ref().map(|it| it.uid.clone());
        let extra = [
            (CREDENTIAL_ID, credential),
            (NODE_NAME, name(node)),
            (NODE_UID, uid(node)),
            (POD_NAME, name(pod)),
            (POD_UID, uid(pod)),
        ];
        let extra = extra.into_iter();
        let user = Identity {
            user: self.sub.clone(),
            uid: Some(serviceaccount.uid.clone()),
            groups: vec![
                ALL_ACCOUNTS.to_owned(),
                format!("{ALL_ACCOUNTS}:{namespace}"),
            ],
            extra: extra
                .filter_map(|(key, value)| Some((key.to_owned(), vec![value?])))
                .collect(),
        };
        user.with_implicit_group()
    }
}

impl TokenBinding {
    fn user_name(&self) -> String {
        format!(
            "system:serviceaccount:{}:{}",
            self.namespace, self.serviceaccount.name
        )
    }
}

#[cfg(test)]
mod tests;
