use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

use super::*;
use crate::access::authenticate::token_issuer::{IssuerQuery, KEYS_PATH};
use crate::upstream::UpstreamClient;

struct Signer {
    key: EncodingKey,
    kid: &'static str,
}

impl Signer {
    fn new(kid: &'static str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self {
            key: EncodingKey::from_ec_der(&pair.serialize_der()),
            kid,
        }
    }

    fn public(&self) -> Jwk {
        let mut key = Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap();
        key.common.key_id = Some(self.kid.to_owned());
        key
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header {
            kid: Some(self.kid.to_owned()),
            ..Header::new(Algorithm::ES256)
        };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn claims() -> Value {
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

fn with(path: &str, value: Value) -> Value {
    let mut claims = claims();
    *claims.pointer_mut(path).unwrap() = value;
    claims
}

#[test]
fn only_unexpired_tokens_of_a_current_key_are_valid() {
    let (signer, other) = (Signer::new("one"), Signer::new("two"));
    let keys = JwkSet {
        keys: vec![signer.public()],
    };
    let impostor = Signer::new("one");
    let now = get_current_timestamp();
    assert!(verified(&signer.sign(&claims()), &keys, &[]).is_some());
    for (what, token) in [
        ("expired", signer.sign(&with("/exp", json!(now - 1)))),
        ("not valid yet", signer.sign(&with("/nbf", json!(now + 60)))),
        ("signed with a key that is gone", other.sign(&claims())),
        (
            "signed with another key of that name",
            impostor.sign(&claims()),
        ),
        (
            "bound to an object of an unknown kind",
            signer.sign(&with(
                "/kubernetes.io",
                json!({
                    "namespace": "n", "serviceaccount": {"name": "builder", "uid": "sa-1"},
                    "moon": {"name": "m", "uid": "1"},
                }),
            )),
        ),
        ("without an expiry", {
            let mut claims = claims();
            claims.as_object_mut().unwrap().remove("exp");
            signer.sign(&claims)
        }),
        ("no token", "a.b.c".to_owned()),
        ("unsigned", {
            let signed = signer.sign(&claims());
            let payload = signed.split('.').nth(1).unwrap();
            format!("eyJhbGciOiJub25lIiwia2lkIjoib25lIn0.{payload}.")
        }),
        ("signed with the public key as a secret", {
            let header = Header {
                kid: Some("one".to_owned()),
                ..Header::new(Algorithm::HS256)
            };
            encode(&header, &claims(), &EncodingKey::from_secret(b"public")).unwrap()
        }),
    ] {
        assert!(verified(&token, &keys, &[]).is_none(), "{what}");
    }
    assert!(
        verified(
            &signer.sign(&claims()),
            &keys,
            &["https://issuer.test".to_owned()]
        )
        .is_some()
    );
    assert!(
        verified(
            &signer.sign(&claims()),
            &keys,
            &["https://other.test".to_owned()]
        )
        .is_none()
    );
}

/// Existing objects, as plural name, namespace, name and unique id.
struct ExistingObjects(Vec<&'static str>);

impl BoundObjects for ExistingObjects {
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Option<bool> {
        let asked = format!("{resource} {} {name} {uid}", namespace.unwrap_or("-"));
        // Secrets are not cached.
        (resource != "secrets").then(|| self.0.contains(&&*asked))
    }
}

async fn is_valid(existing: &[&'static str], claims: &Value) -> bool {
    is_valid_at(0, existing, claims).await
}

/// Returns what [`is_valid`] does where upstream's clock is `ahead` by so many seconds.
async fn is_valid_at(ahead: i64, existing: &[&'static str], claims: &Value) -> bool {
    let signer = Signer::new("one");
    let pki = crate::test_support::Pki::new();
    let set = serde_json::to_string(&JwkSet {
        keys: vec![signer.public()],
    })
    .unwrap();
    let api =
        crate::test_support::Api::start(&pki, crate::test_support::HTTP2, move |request, _| {
            let set = set.clone();
            async move {
                let is_keys = request.uri().path() == KEYS_PATH;
                let mut answer =
                    crate::test_support::text(if is_keys { set } else { "{}".to_owned() });
                let now = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(ahead);
                let date = now.strftime("%a, %d %b %Y %T GMT").to_string();
                answer.headers_mut().insert("date", date.parse().unwrap());
                answer
            }
        })
        .await;
    let client = UpstreamClient::new(&crate::test_support::upstream_of(&pki, &api).await);
    let objects = ExistingObjects(existing.to_vec());
    let accounts = ServiceAccounts::new(
        Arc::new(TokenIssuer::new(client, IssuerQuery::Keys)),
        Vec::new(),
        Arc::new(objects),
    );
    let identity = Identity {
        user: "system:serviceaccount:n:builder".to_owned(),
        uid: None,
        groups: Vec::new(),
        extra: Vec::new(),
    };
    accounts
        .is_still_valid(&signer.sign(claims), &identity)
        .await
}

#[tokio::test]
async fn a_token_ends_when_upstreams_clock_says_so() {
    let existing = ["serviceaccounts n builder sa-1", "pods n p pod-1"];
    assert!(is_valid_at(300, &existing, &claims()).await);
    assert!(
        !is_valid_at(900, &existing, &claims()).await,
        "it has expired there"
    );
    let ended = with("/exp", json!(get_current_timestamp() - 1));
    assert!(
        !is_valid_at(-900, &existing, &ended).await,
        "it has expired here"
    );
}

#[tokio::test]
async fn a_token_ends_with_the_objects_it_is_bound_to() {
    const ACCOUNT: &str = "serviceaccounts n builder sa-1";
    assert!(is_valid(&[ACCOUNT, "pods n p pod-1"], &claims()).await);
    assert!(!is_valid(&[ACCOUNT], &claims()).await, "the pod is gone");
    assert!(
        !is_valid(&[ACCOUNT, "pods n p pod-2"], &claims()).await,
        "another pod of the name"
    );
    assert!(
        !is_valid(&["pods n p pod-1"], &claims()).await,
        "the account is gone"
    );
    assert!(
        !is_valid(
            &[ACCOUNT, "pods n p pod-1"],
            &with("/sub", json!("system:serviceaccount:n:other"))
        )
        .await
    );
    let bound = |to: Value| {
        let mut bound =
            json!({"namespace": "n", "serviceaccount": {"name": "builder", "uid": "sa-1"}});
        bound
            .as_object_mut()
            .unwrap()
            .extend(to.as_object().unwrap().clone());
        with("/kubernetes.io", bound)
    };
    assert!(is_valid(&[ACCOUNT], &bound(json!({}))).await);
    let node = bound(json!({"node": {"name": "node", "uid": "node-1"}}));
    assert!(is_valid(&[ACCOUNT, "nodes - node node-1"], &node).await);
    assert!(!is_valid(&[ACCOUNT], &node).await, "the node is gone");
    assert!(
        !is_valid(
            &[ACCOUNT],
            &bound(json!({"secret": {"name": "s", "uid": "1"}}))
        )
        .await,
        "the proxy does not cache secrets"
    );
}
