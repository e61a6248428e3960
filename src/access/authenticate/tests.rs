use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use jsonwebtoken::jwk::JwkSet;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::access::authenticate::known_tokens::ACCEPTED_TTL;
use crate::access::authenticate::service_account::{BoundObjects, ServiceAccounts};
use crate::access::authenticate::token_issuer::{IssuerQuery, KEYS_PATH, TokenIssuer};
use crate::access::reviews::sending::{JSON, identity};
use crate::body::Body;
use crate::test_support::{
    Api, HTTP2, Pki, SOON, Signer, claims, claims_with, eventually, read, text, typed, upstream_of,
};

const BEARER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Every object exists.
struct AllObjects;

impl BoundObjects for AllObjects {
    fn is_present(&self, _: &str, _: Option<&str>, _: &str, _: &str) -> Option<bool> {
        Some(true)
    }
}

/// An API server that reviews tokens.
#[derive(Default)]
struct Reviewer {
    /// The accepted forms of each review that was asked for.
    asked: Mutex<Vec<String>>,
    refused: Mutex<HashSet<String>>,
    /// Answers reviews in the short form with this status.
    only_json: bool,
    /// The next answer waits for this.
    held: Mutex<Option<Arc<Notify>>>,
}

impl Reviewer {
    fn count(&self) -> usize {
        self.asked.lock().len()
    }

    async fn review(&self, request: Request<Incoming>) -> Response<Body> {
        let accepted = request.headers()[header::ACCEPT].to_str().unwrap();
        self.asked.lock().push(accepted.to_owned());
        if self.only_json && accepted != JSON {
            return typed(406, "text/plain", "");
        }
        let held = self.held.lock().take();
        if let Some(held) = held {
            held.notified().await;
        }
        let review: Value =
            serde_json::from_str(&read(request.into_body()).await.unwrap()).unwrap();
        let token = review["spec"]["token"].as_str().unwrap();
        if self.refused.lock().contains(token) {
            return text(json!({"status": {"authenticated": false}}).to_string());
        }
        text(json!({"status": {"authenticated": true, "user": user_of(token)}}).to_string())
    }
}

/// Returns the user that upstream makes of a token.
fn user_of(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap();
    let claims: Value = serde_json::from_slice(&payload).unwrap();
    let bound = &claims["kubernetes.io"];
    let attribute = |name: &str| format!("authentication.kubernetes.io/{name}");
    let id = format!("JTI={}", claims["jti"].as_str().unwrap());
    json!({
        "username": claims["sub"],
        "uid": bound["serviceaccount"]["uid"],
        "groups": ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"],
        "extra": {
            attribute("credential-id"): [id],
            attribute("node-name"): [bound["node"]["name"]],
            attribute("node-uid"): [bound["node"]["uid"]],
            attribute("pod-name"): [bound["pod"]["name"]],
            attribute("pod-uid"): [bound["pod"]["uid"]],
        },
    })
}

struct Setup {
    authenticator: Arc<Authenticator>,
    reviewer: Arc<Reviewer>,
    signer: Signer,
    _api: Api,
}

impl Setup {
    async fn new(reviewer: Reviewer, validates: bool) -> Self {
        Self::lasting(Duration::ZERO, reviewer, validates).await
    }

    /// Has reviews count for this time.
    async fn lasting(token_ttl: Duration, reviewer: Reviewer, validates: bool) -> Self {
        let (signer, reviewer) = (Signer::new("one"), Arc::new(reviewer));
        let keys = JwkSet {
            keys: vec![signer.public()],
        };
        let keys = serde_json::to_string(&keys).unwrap();
        let pki = Pki::new();
        let serving = Arc::clone(&reviewer);
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let (keys, reviewer) = (keys.clone(), Arc::clone(&serving));
            async move {
                if request.uri().path() == KEYS_PATH {
                    text(keys)
                } else {
                    reviewer.review(request).await
                }
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let issuer = Arc::new(TokenIssuer::new(client.clone(), IssuerQuery::Keys));
        let service_accounts = validates
            .then(|| ServiceAccounts::new(issuer, Vec::new(), Arc::new(AllObjects), ACCEPTED_TTL));
        let config = AuthenticationConfig {
            token_ttl,
            ..AuthenticationConfig::default()
        };
        let checks = LocalChecks {
            inspection: None,
            service_accounts,
        };
        let (timeline, queues) = (Timeline::default(), ReviewQueues::default());
        Self {
            authenticator: Arc::new(Authenticator::new(client, config, checks, timeline, queues)),
            reviewer,
            signer,
            _api: api,
        }
    }

    /// Returns a token of another pod of the same account.
    fn token(&self, number: usize) -> String {
        let mut claims = claims_with("/jti", json!(format!("j-{number}")));
        let pod = json!({"name": format!("p-{number}"), "uid": format!("pod-{number}")});
        claims["kubernetes.io"]["pod"] = pod;
        self.signer.sign(&claims)
    }

    /// Returns the user of a token and the number of reviews that it took.
    async fn identify(&self, token: &str) -> (Option<Arc<Identity>>, usize) {
        let before = self.reviewer.count();
        let headers = bearing(token);
        let identified = self.authenticator.authenticate(&headers, BEARER);
        let user = match identified.await.unwrap() {
            Authenticated::Known(user) => Some(user),
            Authenticated::Refused => None,
            Authenticated::Unknown => panic!("{token} is not seen"),
        };
        (user, self.reviewer.count() - before)
    }

    /// Notes that upstream refused a token with a forwarded request.
    async fn refuse(&self, token: &str) {
        let credential = self.authenticator.credential(&bearing(token)).unwrap();
        self.authenticator.note_refused(&credential, BEARER).await;
    }
}

fn bearing(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(header::AUTHORIZATION, value)])
}

fn expected(token: &str) -> Option<Arc<Identity>> {
    identity(serde_json::from_value(user_of(token)).unwrap()).map(Arc::new)
}

#[tokio::test]
async fn one_review_tells_the_users_of_all_tokens_of_its_kind() {
    let setup = Setup::new(Reviewer::default(), true).await;
    for number in 0..4 {
        let token = setup.token(number);
        let reviews = usize::from(number == 0);
        assert_eq!(setup.identify(&token).await, (expected(&token), reviews));
    }
    let of_others = setup
        .signer
        .sign(&claims_with("/aud", json!(["https://vault.test"])));
    assert_eq!(setup.identify(&of_others).await.1, 1);
    let impostor = Signer::new("one").sign(&claims());
    assert_eq!(setup.identify(&impostor).await.1, 1);
}

#[tokio::test]
async fn a_refused_token_is_not_accepted_by_the_reviews_of_others() {
    let setup = Setup::new(Reviewer::default(), true).await;
    let [one, other] = [0, 1].map(|number| setup.token(number));
    assert_eq!(setup.identify(&one).await.1, 1);
    assert_eq!(setup.identify(&other).await.1, 0);
    setup.refuse(&other).await;
    setup.reviewer.refused.lock().insert(other.clone());
    assert_eq!(setup.identify(&other).await, (None, 1));
    // What was checked here may not be why it was refused.
    assert_eq!(setup.identify(&setup.token(2)).await.1, 1);
    assert_eq!(setup.identify(&setup.token(3)).await.1, 0);
    tokio::time::sleep(REFUSED_TTL).await;
    assert_eq!(setup.identify(&other).await, (None, 1));
    setup.reviewer.refused.lock().clear();
    tokio::time::sleep(REFUSED_TTL).await;
    assert_eq!(setup.identify(&other).await, (expected(&other), 1));
    assert_eq!(setup.identify(&other).await.1, 0);
}

#[tokio::test]
async fn a_refusal_that_the_token_explains_ends_no_kind() {
    let setup = Setup::new(Reviewer::default(), true).await;
    assert_eq!(setup.identify(&setup.token(0)).await.1, 1);
    let ended = setup.signer.sign(&claims_with("/exp", json!(1)));
    setup.reviewer.refused.lock().insert(ended.clone());
    assert_eq!(setup.identify(&ended).await, (None, 1));
    setup.refuse(&ended).await;
    assert_eq!(setup.identify(&setup.token(1)).await.1, 0);
}

#[tokio::test]
async fn a_token_that_is_refused_again_says_nothing_of_its_kind() {
    let setup = Setup::new(Reviewer::default(), true).await;
    let [first, stale, next, last] = [0, 1, 2, 3].map(|number| setup.token(number));
    assert_eq!(setup.identify(&first).await.1, 1);
    assert_eq!(setup.identify(&stale).await.1, 0);
    setup.refuse(&stale).await;
    assert_eq!(setup.identify(&next).await.1, 1, "its kind is reviewed");
    setup.refuse(&stale).await;
    assert_eq!(setup.identify(&last).await, (expected(&last), 0));
}

#[tokio::test]
async fn tokens_that_are_checked_here_are_looked_at_again_after_ten_seconds() {
    for (validates, wanted) in [(true, Duration::from_secs(10)), (false, ACCEPTED_TTL)] {
        let setup = Setup::lasting(ACCEPTED_TTL, Reviewer::default(), validates).await;
        for number in 0..2 {
            let token = setup.token(number);
            let credential = setup.authenticator.credential(&bearing(&token)).unwrap();
            let asker = Asker::Bearer(BEARER);
            let presented = PresentedToken::new(credential, &token, asker);
            let found = setup.authenticator.reviewer.find_out(presented);
            let found = found.await.unwrap();
            let expiry = TokenExpiry {
                reviewed: ACCEPTED_TTL,
            };
            let ttl = expiry.expire_after_create(&credential, &found, std::time::Instant::now());
            assert_eq!((found.user(), ttl), (expected(&token), Some(wanted)));
        }
    }
}

#[tokio::test]
async fn a_bearer_of_many_bad_tokens_has_none_validated() {
    let setup = Setup::new(Reviewer::default(), true).await;
    let [known, unknown] = [0, 1].map(|number| setup.token(number));
    setup.identify(&known).await;
    while setup.authenticator.may_try(BEARER) {
        setup.authenticator.reviewer.refusals.count(BEARER, false);
    }
    assert_eq!(setup.identify(&known).await, (expected(&known), 0));
    let headers = bearing(&unknown);
    let refused = setup.authenticator.authenticate(&headers, BEARER);
    let error = refused.await.unwrap_err();
    assert!(matches!(*error, ReviewError::TooManyRefusals), "{error}");
}

#[tokio::test]
async fn a_proxy_that_asks_gets_the_users_of_known_kinds() {
    let setup = Setup::new(Reviewer::default(), true).await;
    assert!(setup.authenticator.answers_proxies());
    let proxy = Identity::anonymous();
    for number in 0..4 {
        let token = setup.token(number);
        let user = setup.authenticator.user_for_proxy(&token, &proxy).await;
        assert_eq!(user.unwrap(), expected(&token));
    }
    // Upstream's own word is wanted, not another proxy's.
    assert_eq!(*setup.reviewer.asked.lock(), [JSON]);
    // Upstream has judged this one otherwise, or is the only one that can.
    let refused = setup.token(4);
    setup.refuse(&refused).await;
    for token in [&*refused, "opaque"] {
        let user = setup.authenticator.user_for_proxy(token, &proxy).await;
        let error = user.unwrap_err();
        assert!(matches!(error, ReviewError::LeftToUpstream), "{error}");
        assert!(!error.is_unavailable(), "the proxy is to ask upstream");
    }
    assert_eq!(setup.reviewer.count(), 1);
}

#[tokio::test]
async fn a_proxy_without_local_validation_asks_the_one_in_front_of_it() {
    let reviewer = Reviewer {
        only_json: true,
        ..Reviewer::default()
    };
    let setup = Setup::new(reviewer, false).await;
    assert!(!setup.authenticator.answers_proxies());
    let token = setup.token(0);
    assert_eq!(setup.identify(&token).await, (expected(&token), 2));
    setup.refuse(&token).await;
    assert_eq!(setup.identify(&token).await, (expected(&token), 1));
    let asked = setup.reviewer.asked.lock().clone();
    assert!(asked[0].starts_with("application/vnd.watershed.verdict+json"));
    assert_eq!(
        asked[1..],
        [JSON, JSON],
        "upstream's own word about a refused token"
    );
}

#[tokio::test]
async fn one_review_serves_the_tokens_of_a_kind_that_arrive_together() {
    // Tokens wait for another one's review for a second. On a machine that stalls this begins again.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let setup = Setup::new(Reviewer::default(), true).await;
        let tokens: Vec<_> = (0..50).map(|number| setup.token(number)).collect();
        let users = tokens.iter().map(|token| setup.identify(token));
        let begun = Instant::now();
        for (user, _) in futures_util::future::join_all(users).await {
            assert!(user.is_some());
        }
        if begun.elapsed() < Duration::from_secs(1) {
            assert_eq!(setup.reviewer.count(), 1);
            return;
        }
    }
    panic!("this machine is too slow");
}

#[tokio::test]
async fn a_token_that_was_refused_during_its_review_is_reviewed_again() {
    let setup = Setup::lasting(ACCEPTED_TTL, Reviewer::default(), false).await;
    let (token, answer) = (setup.token(0), Arc::new(Notify::new()));
    *setup.reviewer.held.lock() = Some(Arc::clone(&answer));
    let refused = async {
        eventually(|| setup.reviewer.count() == 1).await;
        setup.refuse(&token).await;
        answer.notify_one();
    };
    let ((user, _), ()) = tokio::join!(setup.identify(&token), refused);
    assert!(user.is_some());
    for reviews in [1, 0] {
        assert_eq!(setup.identify(&token).await, (expected(&token), reviews));
    }
}

#[tokio::test]
async fn a_token_that_upstream_accepts_does_not_wait_among_unknown_ones() {
    let setup = Setup::new(Reviewer::default(), false).await;
    let token = setup.token(0);
    // As many reviews as one address may have.
    let queues = &setup.authenticator.reviewer.queues;
    let unknown = (0..16).map(|_| queues.of_unknown_token(BEARER));
    let _places = futures_util::future::join_all(unknown).await;
    let known = async {
        // The review of the unknown token begins meanwhile.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let credential = setup.authenticator.credential(&bearing(&token)).unwrap();
        setup.authenticator.note_accepted(&credential);
        timeout(SOON, setup.identify(&token)).await
    };
    tokio::select! {
        _ = setup.identify(&token) => panic!("all places are taken"),
        identified = known => assert_eq!(identified.unwrap(), (expected(&token), 1)),
    }
}
