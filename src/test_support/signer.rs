//! Signs tokens as an API server does.
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

/// A key that signs tokens.
pub(crate) struct Signer {
    key: EncodingKey,
    name: &'static str,
}

impl Signer {
    pub(crate) fn new(name: &'static str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self {
            key: EncodingKey::from_ec_der(&pair.serialize_der()),
            name,
        }
    }

    /// Returns the key's public part.
    pub(crate) fn public(&self) -> Jwk {
        let mut key = Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap();
        key.common.key_id = Some(self.name.to_owned());
        key
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = Header {
            kid: Some(self.name.to_owned()),
            ..Header::new(Algorithm::ES256)
        };
        encode(&header, claims, &self.key).unwrap()
    }
}

/// Returns the claims of a token that is bound to a pod.
pub(crate) fn claims() -> Value {
    let now = get_current_timestamp();
    json!({
        "iss": "https://issuer.test", "aud": ["https://issuer.test"],
        "sub": "system:serviceaccount:n:builder",
        "nbf": now - 10, "iat": now - 10, "exp": now + 600, "jti": "j",
        "kubernetes.io": {
            "namespace": "n", "serviceaccount": {"name": "builder", "uid": "sa-1"},
            "pod": {"name": "p", "uid": "pod-1"}, "node": {"name": "node", "uid": "node-1"},
            "warnafter": now,
        },
    })
}

/// Returns the same claims with another value at a path.
pub(crate) fn claims_with(path: &str, value: Value) -> Value {
    let mut claims = claims();
    *claims.pointer_mut(path).unwrap() = value;
    claims
}
