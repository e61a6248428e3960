use jsonwebtoken::{EncodingKey, encode, get_current_timestamp};
use serde_json::{Value, json};

use super::*;
use crate::test_support::{Signer, claims, claims_with};

#[test]
fn only_unexpired_tokens_of_a_current_key_are_valid() {
    let (signer, other) = (Signer::new("one"), Signer::new("two"));
    let keys = JwkSet {
        keys: vec![signer.public()],
    };
    let verified = |token: &str, audiences: &[String]| {
        let key = SigningKey::of(token)?;
        Claims::verified(token, &key, &keys, audiences)
    };
    let impostor = Signer::new("one");
    let now = get_current_timestamp();
    assert!(verified(&signer.sign(&claims()), &[]).is_some());
    for (what, token) in [
        ("expired", signer.sign(&claims_with("/exp", json!(now - 1)))),
        (
            "not valid yet",
            signer.sign(&claims_with("/nbf", json!(now + 60))),
        ),
        ("signed with a key that is gone", other.sign(&claims())),
        (
            "signed with another key of that name",
            impostor.sign(&claims()),
        ),
        (
            "bound to an object of an unknown kind",
            signer.sign(&claims_with(
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
        ("with a claim that is not known", {
            let mut claims = claims();
            claims["scopes"] = json!(["read"]);
            signer.sign(&claims)
        }),
        (
            "for another account than it is bound to",
            signer.sign(&claims_with("/sub", json!("system:serviceaccount:n:root"))),
        ),
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
        assert!(verified(&token, &[]).is_none(), "{what}");
    }
    assert!(verified(&signer.sign(&claims()), &["https://issuer.test".to_owned()]).is_some());
    assert!(verified(&signer.sign(&claims()), &["https://other.test".to_owned()]).is_none());
}

fn read(claims: Value) -> Claims {
    serde_json::from_value(claims).unwrap()
}

#[test]
fn the_user_of_a_token_has_the_attributes_of_what_it_is_bound_to() {
    let user = read(claims()).user();
    assert_eq!(user.user, "system:serviceaccount:n:builder");
    assert_eq!(user.uid.as_deref(), Some("sa-1"));
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:n",
        "system:authenticated",
    ];
    assert_eq!(user.groups, groups);
    let extra = |user: &Identity| {
        let extra = user.extra.iter();
        extra
            .map(|(key, values)| {
                format!("{} {}", key.rsplit('/').next().unwrap(), values.join(" "))
            })
            .collect::<Vec<_>>()
    };
    let all = [
        "credential-id JTI=j",
        "node-name node",
        "node-uid node-1",
        "pod-name p",
        "pod-uid pod-1",
    ];
    assert_eq!(extra(&user), all);
    let account = json!({"namespace": "n", "serviceaccount": {"name": "builder", "uid": "sa-1"}});
    let mut unbound = claims_with("/kubernetes.io", account);
    unbound["jti"] = json!("");
    assert_eq!(read(unbound.clone()).user().extra, []);
    unbound.as_object_mut().unwrap().remove("jti");
    assert_eq!(read(unbound).user().extra, []);
}
