use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use http::header;
use serde_json::{Value, json};

use super::*;
use crate::access::authenticate::token_issuer::{IssuerQuery, KEYS_PATH};
use crate::test_support::{self, Api, HTTP2, Pki};
use crate::upstream::UpstreamClient;

const ISSUER: &str = "https://issuer.test";
/// Noon of 1 January 2020, in HTTP's form and as seconds since the epoch.
const NOON: (&str, i64) = ("Wed, 01 Jan 2020 12:00:00 GMT", 1_577_880_000);

fn token(header: &Value, claims: &Value) -> String {
    let encode = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}.c2lnbmF0dXJl", encode(header), encode(claims))
}

/// The header of static keys.
const STATIC: &[&str] = &["public, max-age=3600"];

/// Returns an inspection by documents of this issuer without keys, sent at `date`. The keys have
/// these lifetimes, one after the other; the last of them from then on.
async fn inspection(
    issuer: &'static str,
    date: Option<&'static str>,
    lifetimes: &'static [&'static str],
) -> (TokenInspection, Api) {
    let pki = Pki::new();
    let readings = Arc::new(AtomicUsize::new(0));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let is_keys = request.uri().path() == KEYS_PATH;
        let document = json!({"issuer": issuer, "keys": []});
        let mut response = test_support::text(document.to_string());
        if is_keys {
            let headers = response.headers_mut();
            headers.insert(header::DATE, date.unwrap_or("some day").parse().unwrap());
            let reading = readings.fetch_add(1, Ordering::SeqCst);
            if let Some(lifetime) = lifetimes.get(reading).or(lifetimes.last()) {
                headers.insert(header::CACHE_CONTROL, lifetime.parse().unwrap());
            }
        }
        async { response }
    })
    .await;
    let client = UpstreamClient::new(&test_support::upstream_of(&pki, &api).await);
    let issuer = TokenIssuer::new(client, IssuerQuery::KeysAndName);
    (TokenInspection::new(Arc::new(issuer)), api)
}

#[tokio::test]
async fn a_token_has_expired_once_upstreams_clock_is_beyond_all_leeway() {
    let (date, noon) = NOON;
    let (inspection, _api) = inspection(ISSUER, Some(date), STATIC).await;
    let expires = async |at: Option<i64>| {
        let claims = json!({"iss": ISSUER, "exp": at});
        inspection.defect(&token(&json!({}), &claims)).await
    };
    assert_eq!(expires(Some(noon - 131)).await, Some(TokenDefect::Expired));
    assert_eq!(expires(Some(i64::MIN)).await, Some(TokenDefect::Expired));
    for end in [noon - 60, noon, i64::MAX] {
        assert_eq!(expires(Some(end)).await, None, "{end}");
    }
    assert_eq!(expires(None).await, None);
}

#[tokio::test]
async fn nothing_has_expired_while_upstreams_clock_is_unknown() {
    let (inspection, _api) = inspection(ISSUER, None, STATIC).await;
    let claims = json!({"iss": ISSUER, "exp": 1});
    assert_eq!(inspection.defect(&token(&json!({}), &claims)).await, None);
}

#[tokio::test]
async fn unknown_keys_are_refused_only_where_upstream_has_no_others() {
    let cases: [(&'static [&'static str], _); 5] = [
        (STATIC, Some(TokenDefect::UnknownKey)),
        // Those of an external signer are fetched again.
        (&["public, max-age=3600", "public, max-age=3599"], None),
        (&["public, max-age=3601", "public, max-age=3600"], None),
        (&["public, max-age=59"], None),
        (&[], None),
    ];
    let unknown = token(&json!({"kid": "one"}), &json!({"iss": ISSUER}));
    let checks = cases.map(async |(lifetimes, wanted)| {
        let (inspection, _api) = inspection(ISSUER, None, lifetimes).await;
        // One reading does not tell a number on its way down.
        assert_eq!(inspection.defect(&unknown).await, None, "{lifetimes:?}");
        assert_eq!(inspection.defect(&unknown).await, wanted, "{lifetimes:?}");
    });
    join_all(checks).await;
}

#[tokio::test]
async fn tokens_of_the_legacy_issuer_are_reviewed() {
    const LEGACY: &str = "kubernetes/serviceaccount";
    let (inspection, _api) = inspection(LEGACY, Some(NOON.0), STATIC).await;
    let claims = json!({"iss": LEGACY, "exp": 1});
    let legacy = token(&json!({"kid": "one"}), &claims);
    assert_eq!(inspection.defect(&legacy).await, None);
}

#[test]
fn what_upstream_might_read_otherwise_is_no_token() {
    let claims = json!({"iss": ISSUER, "exp": 1});
    let parse = |token: &str| parse::<TokenHeader, UnverifiedClaims>(token);
    assert!(parse(&token(&json!({}), &claims)).is_some());
    let twice = BASE64_URL_SAFE_NO_PAD.encode(r#"{"iss":"a","iss":"b"}"#);
    for odd in [
        String::new(),
        "..".to_owned(),
        format!("e30.{twice}.e30"),
        format!("{}.more", token(&json!({}), &claims)),
        token(&json!({"kid": 1}), &claims),
        token(&json!({}), &json!({"iss": ISSUER, "exp": 1.5})),
        token(&json!([]), &json!({"iss": ISSUER})),
    ] {
        assert!(parse(&odd).is_none(), "{odd}");
    }
}
