//! Tunnels.
use std::time::Duration;

use http::StatusCode;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::*;
use super::{ask, proxied, upgrade};
use crate::test_support::{Api, HTTP2, Proxy, read, soon, text};

/// Returns an answer that switches to the protocol of a tunnel.
fn switching() -> Response<Body> {
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .body(body::empty())
        .unwrap()
}

#[tokio::test]
async fn each_direction_of_a_tunnel_ends_on_its_own() {
    let (_api, proxy) = proxied(HTTP2, |mut request, _| async move {
        assert_eq!(request.version(), Version::HTTP_11);
        assert_eq!(request.headers()["upgrade"], "SPDY/3.1");
        let version = request.headers()["x-stream-protocol-version"].clone();
        tokio::spawn(async move {
            let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            io.write_all(b"ready\n").await.unwrap();
            let mut input = Vec::new();
            // The output of `sort` comes after the input's end.
            io.read_to_end(&mut input).await.unwrap();
            input.reverse();
            io.write_all(&input).await.unwrap();
            io.shutdown().await.unwrap();
        });
        let mut answer = switching();
        answer
            .headers_mut()
            .insert("x-stream-protocol-version", version);
        answer
    })
    .await;
    let mut answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(answer.headers()["upgrade"], "SPDY/3.1");
    assert_eq!(
        answer.headers()["x-stream-protocol-version"],
        "v4.channel.k8s.io"
    );
    let mut io = TokioIo::new(soon(hyper::upgrade::on(&mut answer)).await.unwrap());
    let mut ready = [0; 6];
    soon(io.read_exact(&mut ready)).await.unwrap();
    let input: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    io.write_all(&input).await.unwrap();
    io.shutdown().await.unwrap();
    let mut output = Vec::new();
    soon(io.read_to_end(&mut output)).await.unwrap();
    output.reverse();
    assert_eq!(output, input);
}

#[tokio::test]
async fn a_refused_upgrade_is_an_answer() {
    let (_api, proxy) = proxied(HTTP2, |_, _| async {
        let mut answer = text("no such pod");
        *answer.status_mut() = StatusCode::NOT_FOUND;
        answer
    })
    .await;
    let answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(read(answer).await.unwrap(), "no such pod");
}

#[tokio::test]
async fn a_tunnel_is_cut_with_either_end() {
    let (told, mut outcome) = mpsc::channel(4);
    let (api, proxy) = proxied(HTTP2, move |mut request, _| {
        let told = told.clone();
        async move {
            tokio::spawn(async move {
                let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                let mut byte = [0];
                let _ = io.read(&mut byte).await;
                told.send(()).await.unwrap();
            });
            switching()
        }
    })
    .await;
    let mut answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    let io = soon(hyper::upgrade::on(&mut answer)).await.unwrap();
    drop(io);
    soon(outcome.recv()).await.unwrap();
    drop(api);
}

/// Opens a tunnel whose upstream writes `ready`, ends its side if it is told to, and goes on reading.
async fn opened(ends: bool) -> (Api, Proxy, TokioIo<Upgraded>) {
    let (api, proxy) = proxied(HTTP2, move |mut request, _| async move {
        tokio::spawn(async move {
            let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            io.write_all(b"ready").await.unwrap();
            if ends {
                io.shutdown().await.unwrap();
            }
            let _ = io.read_to_end(&mut Vec::new()).await;
        });
        switching()
    })
    .await;
    let mut answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    let mut io = TokioIo::new(soon(hyper::upgrade::on(&mut answer)).await.unwrap());
    let mut ready = [0; 5];
    soon(io.read_exact(&mut ready)).await.unwrap();
    assert_eq!(proxy.forwarder.tunnels(), 1);
    (api, proxy, io)
}

#[tokio::test]
async fn a_client_that_keeps_its_side_open_does_not_keep_the_tunnel() {
    let (_api, proxy, mut io) = opened(true).await;
    let mut rest = Vec::new();
    soon(io.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
    // The time that the client has passes as soon as nothing else happens.
    tokio::time::pause();
    let ended = timeout(Duration::from_mins(1), proxy.forwarder.tunnels_ended()).await;
    assert!(
        ended.is_ok(),
        "{} tunnels are open",
        proxy.forwarder.tunnels()
    );
}

#[tokio::test]
async fn tunnels_that_are_cut_end() {
    let (_api, proxy, mut io) = opened(false).await;
    proxy.forwarder.cut_tunnels();
    soon(proxy.forwarder.tunnels_ended()).await;
    // Whether it is an end or an error depends on what was under way.
    let _ = soon(io.read_to_end(&mut Vec::new())).await;
}
