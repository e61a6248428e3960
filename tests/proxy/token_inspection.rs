//! Service account tokens that upstream would refuse, and that it is not asked about.
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

use watershed_lab::sim::SimulatedServer;

use crate::support::client::{Answer, Endpoint, Protocol};
use crate::support::{Fixture, eventually, small, unless_stalled};

const ISSUER: &str = "https://issuer.test";
const LIST: &str = "/api/v1/pods?resourceVersion=0";
const KEYS: &str = "/openid/v1/jwks";

/// Returns a second since the epoch, counted from now.
fn at(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + seconds
}

/// Returns a token that nobody has signed. No two are alike.
fn token(issuer: &str, key: &str, expires: i64) -> String {
    let encode = |part: Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let id = format!("{:032x}", fastrand::u128(..));
    let header = encode(json!({"alg": "RS256", "kid": key}));
    let claims = encode(json!({"iss": issuer, "exp": expires, "jti": id}));
    format!("{header}.{claims}.{}", BASE64_URL_SAFE_NO_PAD.encode(id))
}

/// Publishes the issuer and keys of these names.
fn publish(upstream: &SimulatedServer, keys: &[&str]) {
    let issuer = json!({"issuer": ISSUER}).to_string();
    upstream.publish("/.well-known/openid-configuration", Some(&issuer));
    let keys = keys.iter().map(|name| {
        json!({"use": "sig", "kty": "RSA", "kid": name, "alg": "RS256", "n": "uw", "e": "AQAB"})
    });
    let keys = json!({"keys": keys.collect::<Vec<_>>()}).to_string();
    upstream.publish(KEYS, Some(&keys));
}

async fn start(refuse_invalid: bool) -> Fixture {
    let fixture = Fixture::build(
        small(),
        |upstream| publish(upstream, &["one"]),
        |config| config.access.authentication.refuse_invalid = refuse_invalid,
    );
    let fixture = fixture.await;
    fixture.proxied.get(Protocol::Http2, LIST).await;
    fixture
}

/// Returns the numbers of reviews and of readings of the keys since the last call.
fn asked(upstream: &SimulatedServer) -> (usize, usize) {
    let recorded = upstream.take_recorded();
    let reviews = recorded
        .iter()
        .filter(|head| head.method == Method::POST && head.target.ends_with("/tokenreviews"));
    let keys = recorded.iter().filter(|head| head.target == KEYS);
    (reviews.count(), keys.count())
}

/// Checks that a token is refused with upstream's own words. Fails if a review is late.
async fn is_refused(fixture: &Fixture, token: &str) -> Result<(), String> {
    let (proxied, direct) = (
        fixture.proxied.as_user(token),
        fixture.direct.as_user(token),
    );
    let refused = unless_unavailable(proxied.get(Protocol::Http2, LIST).await)?;
    let wanted = direct.get(Protocol::Http2, LIST).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert_eq!(refused.status, wanted.status);
    assert_eq!(refused.body, wanted.body);
    assert_eq!(
        refused.header("content-type"),
        wanted.header("content-type")
    );
    Ok(())
}

/// Returns an answer, unless a review was late.
fn unless_unavailable(answer: Answer) -> Result<Answer, String> {
    if answer.status == StatusCode::SERVICE_UNAVAILABLE {
        return Err(format!("{answer:?}"));
    }
    Ok(answer)
}

/// Returns the status of a list. Fails if a review is late.
async fn status(to: &Endpoint, token: &str) -> Result<StatusCode, String> {
    let answer = to.as_user(token).get(Protocol::Http2, LIST).await;
    unless_unavailable(answer).map(|answer| answer.status)
}

/// Checks the status of a list, again if a review is late.
async fn has_status(what: &str, to: &Endpoint, token: &str, wanted: StatusCode) {
    unless_stalled(what, async || {
        assert_eq!(status(to, token).await?, wanted, "{what}");
        Ok(())
    })
    .await;
}

/// Sends invalid tokens, and checks what upstream is asked. Fails if an answer of upstream is late: a
/// late review is sent again, and a token is reviewed whose key could not be read in time.
async fn cost_no_review(fixture: &Fixture, refuse_invalid: bool) -> Result<(), String> {
    const EACH: usize = 50;
    asked(&fixture.upstream);
    let began = std::time::Instant::now();
    for _ in 0..EACH {
        is_refused(fixture, &token(ISSUER, "one", at(-600))).await?;
    }
    let unknown = (0..EACH).map(|_| token(ISSUER, "two", at(600)));
    let unknown = unknown.map(async |token| status(&fixture.proxied, &token).await);
    // Not all at once: on a busy machine, handshakes would keep requests from coming in time.
    let statuses = stream::iter(unknown).buffered(10);
    let statuses: Vec<_> = statuses.collect().await;
    let statuses: Vec<_> = statuses.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(statuses, [StatusCode::UNAUTHORIZED; EACH]);
    let (reviews, keys) = asked(&fixture.upstream);
    let (expected, readings) = if refuse_invalid {
        let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
        (0, 2..=seconds + 2)
    } else {
        (2 * EACH, 0..=0)
    };
    if reviews == expected && readings.contains(&keys) {
        return Ok(());
    }
    Err(format!("{reviews} reviews, {keys} readings of the keys"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_have_expired_or_name_an_unknown_key_cost_no_review() {
    for refuse_invalid in [false, true] {
        unless_stalled("invalid tokens", async || {
            let fixture = start(refuse_invalid).await;
            let outcome = cost_no_review(&fixture, refuse_invalid).await;
            fixture.stop().await;
            outcome
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_upstream_may_accept_are_reviewed() {
    let fixture = start(true).await;
    let access = fixture.upstream.access();
    for (what, accepted) in [
        ("a valid token", token(ISSUER, "one", at(600))),
        (
            "one within upstream's leeway",
            token(ISSUER, "one", at(-30)),
        ),
        (
            "one of another issuer",
            token("https://other.test", "two", at(-600)),
        ),
        ("one of any key", token(ISSUER, "", at(600))),
        ("one in two parts", "e30.e30".to_owned()),
        ("one without an issuer", "e30.e30.e30".to_owned()),
        ("another text", "some-token".to_owned()),
    ] {
        access.add_user(&accepted, "viewer", &[]);
        has_status(what, &fixture.proxied, &accepted, StatusCode::OK).await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_counts_at_once_and_missing_keys_refuse_nobody() {
    let fixture = start(true).await;
    unless_stalled("an unknown key", async || {
        is_refused(&fixture, &token(ISSUER, "two", at(600))).await
    })
    .await;
    publish(&fixture.upstream, &["one", "two"]);
    let access = fixture.upstream.access();
    let rotated = token(ISSUER, "two", at(600));
    access.add_user(&rotated, "viewer", &[]);
    has_status("a new key", &fixture.proxied, &rotated, StatusCode::OK).await;

    fixture.upstream.publish(KEYS, None);
    let third = token(ISSUER, "three", at(600));
    access.add_user(&third, "viewer", &[]);
    has_status("no keys", &fixture.proxied, &third, StatusCode::OK).await;
    unless_stalled("a token is reviewed", async || {
        asked(&fixture.upstream);
        is_refused(&fixture, &token(ISSUER, "three", at(600))).await?;
        match asked(&fixture.upstream).0 {
            1 => Ok(()),
            reviews => Err(format!("{reviews} reviews")),
        }
    })
    .await;
    // What fails is tried again.
    publish(&fixture.upstream, &["one"]);
    eventually("keys to be read again", async || {
        asked(&fixture.upstream);
        let status = status(&fixture.proxied, &token(ISSUER, "four", at(600))).await;
        match (status, asked(&fixture.upstream)) {
            (Ok(StatusCode::UNAUTHORIZED), (0, _)) => Ok(()),
            (status, (reviews, _)) => Err(format!("{status:?}, {reviews} reviews")),
        }
    })
    .await;
    fixture.stop().await;
}
