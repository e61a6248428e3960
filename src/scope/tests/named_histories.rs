//! Watches of another proxy, which names the histories that it tells.
use super::*;
use crate::headers::{HISTORY, VIA};

/// The last event of both proxies.
const EVENT: &str = concat!(
    r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","#,
    r#""metadata":{"name":"a","namespace":"n","resourceVersion":"9"}}}"#,
    "\n"
);
const EXPIRED: &str = concat!(
    r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"#,
    r#""status":"Failure","reason":"Expired","code":410}}"#,
    "\n"
);

/// The second proxy repeats the last event once, and has dropped it the next time.
#[tokio::test]
async fn the_name_of_a_history_counts_once_an_event_has_proven_it() {
    let pki = Pki::new();
    let (watches, lists) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (watched, listed) = (Arc::clone(&watches), Arc::clone(&lists));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.starts_with("watch=1");
        let (name, body) = if is_watch {
            let number = watched.fetch_add(1, Ordering::SeqCst);
            let (name, frames, is_last) = match number {
                0 => ("a-0", vec![mark(), EVENT], false),
                1 => ("a-1", vec![EVENT], false),
                2 => ("a-1", vec![EXPIRED], false),
                _ => ("a-1", vec![], true),
            };
            let frames = stream::iter(frames.into_iter().map(|frame| Ok(Bytes::from(frame))));
            let body = if is_last {
                streamed(frames.chain(stream::pending()))
            } else {
                streamed(frames)
            };
            (name, body)
        } else {
            listed.fetch_add(
                usize::from(request.uri().path() != "/version"),
                Ordering::SeqCst,
            );
            ("", empty_list(9))
        };
        async move {
            let response = Response::builder()
                .header("content-type", "application/json")
                .header(HISTORY, name)
                .header(VIA, "0123456789abcdef");
            response.body(body).unwrap()
        }
    })
    .await;
    let (_scopes, scope) = open_pods(&pki, &api).await;
    let is_open = || watches.load(Ordering::SeqCst) > 3 && scope.upstream.is_following();
    eventually(is_open).await;
    assert_eq!(lists.load(Ordering::SeqCst), 0, "the name is a proof");
    assert_eq!(scope.reader.event_version(), ResourceVersion(9));
}
