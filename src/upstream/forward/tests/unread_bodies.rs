//! Requests that are answered before their body has arrived.
use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::client::SendRequest;
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::*;
use super::proxied;
use crate::body::MAX_UNREAD;
use crate::test_support::{Api, HTTP1, HTTP2, Proxy, Settings, soon, text};

/// An upstream that reads no body, and a proxy in front of it.
async fn refusing(settings: Settings) -> (Api, Proxy) {
    proxied(settings, |_, _| async {
        let mut refusal = text("there is no such type\n");
        *refusal.status_mut() = StatusCode::NOT_FOUND;
        refusal
    })
    .await
}

/// Sends a request whose body does not end, and reads the answer to its end.
async fn refused(sender: &SendRequest<Bytes>) -> h2::SendStream<Bytes> {
    let request = Request::post("https://localhost/").body(()).unwrap();
    let mut sender = soon(sender.clone().ready()).await.unwrap();
    let (answer, mut stream) = sender.send_request(request, false).unwrap();
    stream
        .send_data(Bytes::from_static(b"kind: "), false)
        .unwrap();
    let answer = soon(answer).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    let mut body = answer.into_body();
    while let Some(data) = soon(body.data()).await {
        data.unwrap();
    }
    stream
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_body_does_not_reset_the_stream() {
    for settings in [HTTP2, HTTP1] {
        let (_api, proxy) = refusing(settings).await;
        let (sender, driver) = h2::client::handshake(proxy.connect(b"h2").await)
            .await
            .unwrap();
        tokio::spawn(driver);
        let mut stream = refused(&sender).await;
        // The next answer comes behind whatever there is about this stream.
        let mut long = refused(&sender).await;
        assert!(reset_of(&mut stream).now_or_never().is_none());
        stream.send_data(Bytes::from_static(b"Pod"), true).unwrap();
        refused(&sender).await;
        assert!(reset_of(&mut stream).now_or_never().is_none());

        let rest = Bytes::from(vec![b'x'; MAX_UNREAD as usize + 1]);
        long.send_data(rest, false).unwrap();
        let reason = soon(reset_of(&mut long)).await.unwrap();
        assert_eq!(reason, h2::Reason::NO_ERROR, "it is not read for ever");
    }
}

/// Waits until the other side resets a stream.
async fn reset_of(stream: &mut h2::SendStream<Bytes>) -> Result<h2::Reason, h2::Error> {
    std::future::poll_fn(|context| stream.poll_reset(context)).await
}

#[tokio::test]
async fn an_http1_connection_goes_on_behind_an_answer_before_the_end_of_the_body() {
    for settings in [HTTP2, HTTP1] {
        let (_api, proxy) = refusing(settings).await;
        let mut client = proxy.connect(b"http/1.1").await;
        for _ in 0..3 {
            let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nkind: ";
            client.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"there is no such type\n") {
                let read = soon(client.read_buf(&mut answer)).await.unwrap();
                assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
            }
            assert!(answer.starts_with(b"HTTP/1.1 404 "));
            client.write_all(b"Pod").await.unwrap();
        }
    }
}
