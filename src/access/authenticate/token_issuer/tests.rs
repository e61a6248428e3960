use parking_lot::Mutex;
use tokio::sync::Notify;

use super::*;
use crate::headers::VIA;
use crate::test_support::{self, Api, HTTP2, Pki};

#[tokio::test]
async fn the_name_is_read_only_where_it_is_needed_and_the_keys_do_without_it() {
    let pki = Pki::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let path = request.uri().path().to_owned();
        let document = if path == KEYS_PATH {
            r#"{"keys":[]}"#
        } else {
            "no name"
        };
        log.lock().push(path);
        async move { test_support::text(document.to_owned()) }
    })
    .await;
    let client = UpstreamClient::new(&test_support::upstream_of(&pki, &api).await);
    for (query, paths) in [
        (IssuerQuery::Keys, &[KEYS_PATH][..]),
        (IssuerQuery::KeysAndName, &[ISSUER_PATH, KEYS_PATH]),
    ] {
        let issuer = Arc::new(TokenIssuer::new(client.clone(), query));
        let documents = issuer.documents().await.unwrap();
        assert!(!documents.is_named("no name"));
        let mut asked = std::mem::take(&mut *asked.lock());
        asked.sort_unstable();
        assert_eq!(asked, paths);
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_while_the_keys_are_read_keeps_nobody_else_from_them() {
    let pki = Pki::new();
    let (asked, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (is_asked, may_answer) = (Arc::clone(&asked), Arc::clone(&answered));
    let api = Api::start(&pki, HTTP2, move |_, _| {
        let (is_asked, may_answer) = (Arc::clone(&is_asked), Arc::clone(&may_answer));
        async move {
            is_asked.notify_one();
            may_answer.notified().await;
            test_support::text(r#"{"keys":[]}"#.to_owned())
        }
    })
    .await;
    let client = UpstreamClient::new(&test_support::upstream_of(&pki, &api).await);
    let issuer = Arc::new(TokenIssuer::new(client, IssuerQuery::Keys));
    tokio::select! {
        _ = issuer.documents() => panic!("upstream has not answered"),
        () = asked.notified() => {}
    }
    answered.notify_one();
    assert!(issuer.documents().await.is_some());
}

#[tokio::test]
async fn keys_of_files_count_for_longer_while_their_server_is_connected() {
    let pki = Pki::new();
    let [minutes, hour] = [Duration::from_mins(5), Duration::from_hours(1)];
    for (lifetime, via, is_kept) in [
        (STATIC_KEYS, None, true),
        (STATIC_KEYS, Some("another"), false),
        ("public, max-age=60", None, false),
    ] {
        let api = Api::start(&pki, HTTP2, move |_, _| {
            let mut answer = test_support::text(r#"{"keys":[]}"#);
            let headers = answer.headers_mut();
            headers.insert(header::CACHE_CONTROL, lifetime.parse().unwrap());
            if let Some(via) = via {
                headers.insert(VIA, via.parse().unwrap());
            }
            async move { answer }
        })
        .await;
        let client = UpstreamClient::new(&test_support::upstream_of(&pki, &api).await);
        let issuer = Arc::new(TokenIssuer::new(client, IssuerQuery::Keys));
        // Once, it may be a number on its way down.
        let documents = issuer.documents().await.unwrap();
        assert!(documents.are_current(Duration::ZERO) && !documents.are_current(minutes));
        let documents = issuer.documents_since(Instant::now()).await.unwrap();
        assert_eq!(
            documents.are_current(minutes),
            is_kept,
            "{lifetime} {via:?}"
        );
        assert!(!documents.are_current(hour));
        api.cut();
        test_support::eventually(|| !documents.are_current(minutes)).await;
    }
}
