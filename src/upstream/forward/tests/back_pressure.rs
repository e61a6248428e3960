//! Senders stop while nobody reads.
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use super::super::*;
use super::{ask, proxied};
use crate::test_support::{HTTP2, get, read, soon, streamed, text};

#[tokio::test]
async fn a_client_that_does_not_read_stops_only_its_own_answer() {
    const CHUNK: usize = 64 * 1024;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let (api, proxy) = proxied(HTTP2, move |request, _| {
        let counter = Arc::clone(&counter);
        async move {
            if request.uri().path() == "/long/read" {
                return text("x".repeat(8 * 1024 * 1024));
            }
            Response::new(streamed(futures_util::stream::repeat_with(move || {
                counter.fetch_add(CHUNK, Ordering::AcqRel);
                Ok(Bytes::from(vec![0; CHUNK]))
            })))
        }
    })
    .await;
    let mut lying = Vec::new();
    for _ in 0..10 {
        lying.push(ask(&proxy, true, get("/long/unread")).await.unwrap());
        lying.push(ask(&proxy, false, get("/long/unread")).await.unwrap());
    }
    for http2 in [true, false] {
        let answer = ask(&proxy, http2, get("/long/read")).await.unwrap();
        assert_eq!(read(answer).await.unwrap().len(), 8 * 1024 * 1024);
    }
    assert_eq!(api.accepted(), 1, "all of it on one upstream connection");

    // It stops: two looks in a row see the same.
    let mut before = usize::MAX;
    soon(async {
        while before != sent.load(Ordering::Acquire) {
            before = sent.load(Ordering::Acquire);
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    })
    .await;
    // Windows and buffers of four hops and the kernel's sockets.
    assert!(before < lying.len() * 16 * 1024 * 1024, "{before}");
    drop(lying);
}

#[tokio::test]
async fn an_upload_that_upstream_does_not_read_stops_its_sender() {
    let (_api, proxy) = proxied(HTTP2, |request, _| async move {
        let _unread = request.into_body();
        std::future::pending().await
    })
    .await;
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|chunk| (Ok(chunk), receiver))
    });
    let request = Request::post("https://localhost/")
        .body(streamed(stream))
        .unwrap();
    let mut client = proxy.http2().await;
    let asking = tokio::spawn(async move { client.send_request(request).await });
    let mut sent = 0;
    let mut sender = PollSender::new(sender);
    loop {
        let reserved = std::future::poll_fn(|cx| sender.poll_reserve(cx));
        match tokio::time::timeout(std::time::Duration::from_secs(1), reserved).await {
            Ok(Ok(())) => sender.send_item(Bytes::from(vec![0; 64 * 1024])).unwrap(),
            Ok(Err(_)) => panic!("the request ended"),
            Err(_stalled) => break,
        }
        sent += 64 * 1024;
        assert!(
            sent < 64 * 1024 * 1024,
            "nobody reads it, and it still goes"
        );
    }
    asking.abort();
}
