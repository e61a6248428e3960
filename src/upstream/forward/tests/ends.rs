//! Requests and answers that break off.
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use super::super::*;
use super::{BOTH, ask, proxied};
use crate::fairness::{CallerKey, ShareLimits, Shares};
use crate::test_support::{
    Api, HTTP2, Pki, eventually, get, hanging, read, soon, streamed, text, upstream_of,
};

#[tokio::test]
async fn a_cut_answer_is_a_cut_for_the_client() {
    for (http2, settings) in BOTH {
        let (api, proxy) = proxied(settings, |_, _| async { Response::new(hanging()) }).await;
        let mut answer = ask(&proxy, http2, get("/long")).await.unwrap();
        let first = soon(answer.frame()).await.unwrap().unwrap();
        assert_eq!(first.data_ref().unwrap(), "open\n");
        api.cut();
        assert!(
            read(answer).await.is_err(),
            "client {http2}, upstream {}",
            settings.http2
        );
    }
}

#[tokio::test]
async fn an_upstream_that_dies_before_it_answers_is_named_in_the_error() {
    let begun = Arc::new(AtomicUsize::new(0));
    let beginning = Arc::clone(&begun);
    let (api, proxy) = proxied(HTTP2, move |_, _| {
        beginning.fetch_add(1, Ordering::AcqRel);
        std::future::pending()
    })
    .await;
    let asking = tokio::spawn(async move {
        ask(
            &proxy,
            true,
            Request::post("/").body(body::empty()).unwrap(),
        )
        .await
    });
    eventually(|| begun.load(Ordering::Acquire) == 1).await;
    api.cut();
    let answer = soon(asking).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert!(
        read(answer)
            .await
            .unwrap()
            .contains("broke off before answering")
    );
}

#[tokio::test]
async fn a_request_cut_by_its_client_is_not_completed() {
    let (told, mut outcome) = mpsc::channel(4);
    let (_api, proxy) = proxied(HTTP2, move |request, _| {
        let told = told.clone();
        async move {
            let mut body = request.into_body();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            told.send(Ok(first)).await.unwrap();
            let end = body.frame().await.map(|frame| frame.map(|_| ()));
            told.send(Err(format!("{end:?}"))).await.unwrap();
            text("")
        }
    })
    .await;
    // A client that resets its stream as if all were well.
    let (sender, driver) = h2::client::handshake(proxy.connect(b"h2").await)
        .await
        .unwrap();
    tokio::spawn(driver);
    let request = Request::patch("https://localhost/").body(()).unwrap();
    let (_answer, mut stream) = sender
        .ready()
        .await
        .unwrap()
        .send_request(request, false)
        .unwrap();
    stream
        .send_data(Bytes::from_static(b"kind: Pod\n"), false)
        .unwrap();
    assert_eq!(soon(outcome.recv()).await.unwrap().unwrap(), "kind: Pod\n");
    stream.send_reset(h2::Reason::NO_ERROR);
    // Upstream either sees an error or its handler is dropped with the stream; never an end.
    match soon(outcome.recv()).await {
        None => {}
        Some(end) => {
            let end = end.unwrap_err();
            assert!(end.starts_with("Some(Err("), "{end}");
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_request() {
    struct Ended(Arc<AtomicUsize>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    for (http2, settings) in BOTH {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (beginning, ending) = (Arc::clone(&begun), Arc::clone(&ended));
        let (_api, proxy) = proxied(settings, move |request, _| {
            beginning.fetch_add(1, Ordering::AcqRel);
            let guard = Ended(Arc::clone(&ending));
            async move {
                if request.uri().path() == "/silent" {
                    std::future::pending::<()>().await;
                }
                let first = futures_util::stream::iter([Ok(Bytes::from_static(b"open\n"))]);
                let rest = futures_util::stream::pending();
                Response::new(streamed(first.chain(rest).inspect(move |_| {
                    let _held = &guard;
                })))
            }
        })
        .await;
        let mut answer = ask(&proxy, http2, get("/long")).await.unwrap();
        soon(answer.frame()).await.unwrap().unwrap();
        drop(answer);
        eventually(|| ended.load(Ordering::Acquire) == 1).await;

        let asking = tokio::spawn(async move {
            let _ = ask(&proxy, http2, get("/silent")).await;
            drop(proxy);
        });
        eventually(|| begun.load(Ordering::Acquire) == 2).await;
        assert_eq!(ended.load(Ordering::Acquire), 1);
        asking.abort();
        eventually(|| ended.load(Ordering::Acquire) == 2).await;
    }
}

#[tokio::test]
async fn a_share_is_held_until_its_answer_has_ended() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { Response::new(hanging()) }).await;
    let forwarder = Forwarder::new(&upstream_of(&pki, &api).await);
    let limits = ShareLimits { all: 0, each: 1 };
    let shares = Shares::new(limits, crate::metric::Gauge::noop());
    let take = || shares.take(CallerKey::user("ann"), 1);
    let options = ForwardOptions {
        class: ConnectionClass::LongForward,
        identity: ForwardIdentity::Caller,
        share: take(),
    };
    let request = get("/api/v1/pods?watch=1").map(|_| body::empty());
    let answer = forwarder.forward_body(request, options).await.unwrap();
    assert!(take().is_none(), "the answer goes on");
    drop(answer);
    assert!(take().is_some());
}
