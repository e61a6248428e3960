use parking_lot::Mutex;

use super::*;
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
        let issuer = TokenIssuer::new(client.clone(), query);
        let documents = issuer.documents().await.unwrap();
        assert!(!documents.is_named("no name"));
        let mut asked = std::mem::take(&mut *asked.lock());
        asked.sort_unstable();
        assert_eq!(asked, paths);
    }
}
