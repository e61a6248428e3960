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
    let after = |minutes| Instant::now() + Duration::from_mins(minutes);
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
        assert!(documents.are_current(Instant::now()) && !documents.are_current(after(2)));
        let documents = issuer.documents_since(Instant::now()).await.unwrap();
        assert!(!documents.are_current(after(20)));
        let is_current = documents.are_current(after(5));
        assert_eq!(is_current, is_kept, "{lifetime} {via:?}");
        api.cut();
        let is_connected = || {
            documents
                .server
                .as_ref()
                .is_some_and(ServedBy::is_connected)
        };
        test_support::eventually(|| !is_connected()).await;
        // They bridge the loss of the connection.
        assert!(documents.are_current(Instant::now()) && !documents.are_current(after(7)));
    }
}
