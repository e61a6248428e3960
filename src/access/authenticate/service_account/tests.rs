use jsonwebtoken::get_current_timestamp;
use jsonwebtoken::jwk::JwkSet;
use serde_json::{Value, json};

use super::*;
use crate::access::authenticate::token_issuer::{IssuerQuery, KEYS_PATH};
use crate::test_support::{self, Api, HTTP2, Pki, Signer, claims, claims_with, upstream_of};
use crate::upstream::UpstreamClient;

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
    let pki = Pki::new();
    let set = serde_json::to_string(&JwkSet {
        keys: vec![signer.public()],
    })
    .unwrap();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let set = set.clone();
        async move {
            let is_keys = request.uri().path() == KEYS_PATH;
            let mut answer = test_support::text(if is_keys { set } else { "{}".to_owned() });
            let now = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(ahead);
            let date = now.strftime("%a, %d %b %Y %T GMT").to_string();
            answer.headers_mut().insert("date", date.parse().unwrap());
            answer
        }
    })
    .await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let accounts = ServiceAccounts::new(
        Arc::new(TokenIssuer::new(client, IssuerQuery::Keys)),
        Vec::new(),
        Arc::new(ExistingObjects(existing.to_vec())),
        Duration::from_mins(1),
    );
    let Some(signed) = accounts.read(&signer.sign(claims), 0).await else {
        return false;
    };
    accounts.note_accepted(&signed, &signed.claims.user(), Instant::now());
    let accepted = accounts.is_still_valid(&signed, &signed.claims.user());
    assert_eq!(accounts.user(&signed).is_some(), accepted);
    accepted
}

#[tokio::test]
async fn a_token_ends_when_upstreams_clock_says_so() {
    let existing = ["serviceaccounts n builder sa-1", "pods n p pod-1"];
    assert!(is_valid_at(300, &existing, &claims()).await);
    assert!(
        !is_valid_at(900, &existing, &claims()).await,
        "it has expired there"
    );
    let ended = claims_with("/exp", json!(get_current_timestamp() - 1));
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
            &claims_with("/sub", json!("system:serviceaccount:n:other"))
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
        claims_with("/kubernetes.io", bound)
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
