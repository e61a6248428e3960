//! Requests and answers pass as they are.
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::*;
use super::{BOTH, ask, proxied};
use crate::test_support::{Api, HTTP2, Pki, Proxy, get, kubeconfig, read, soon, text};

#[tokio::test]
async fn bodies_and_targets_pass_as_they_are() {
    for (http2, settings) in BOTH {
        let (_api, proxy) = proxied(settings, |request, _| async move {
            let target = request.uri().path_and_query().unwrap().to_string();
            let method = request.method().clone();
            if method == Method::HEAD {
                // hyper's HTTP/2 server would send the body.
                return Response::builder()
                    .header("content-length", 8)
                    .body(body::empty())
                    .unwrap();
            }
            text(format!(
                "{method} {target} {}",
                read(request.into_body()).await.unwrap().len()
            ))
        })
        .await;
        let target = "/api/v1/namespaces/a%2Fb/pods?labelSelector=x%20in%20(a,b)&fieldManager=";
        for (body, length) in [
            (body::full(vec![b'x'; 3_000_000]), 3_000_000),
            (body::empty(), 0),
        ] {
            let request = Request::patch(target)
                .header("host", "localhost")
                .body(body)
                .unwrap();
            let answer = ask(&proxy, http2, request).await.unwrap();
            assert_eq!(
                read(answer).await.unwrap(),
                format!("PATCH {target} {length}")
            );
        }
        let request = Request::head("/")
            .header("host", "localhost")
            .body(body::empty())
            .unwrap();
        let answer = ask(&proxy, http2, request).await.unwrap();
        assert_eq!(answer.headers()["content-length"], "8");
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let (_api, proxy) = proxied(HTTP2, |request, _| async move {
        let collected = request.into_body().collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        let back = http_body_util::Full::new(collected.to_bytes()).map_err(|never| match never {});
        Response::new(
            back.with_trailers(std::future::ready(trailers.map(Ok)))
                .boxed_unsync(),
        )
    })
    .await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "42".parse().unwrap());
    let body = http_body_util::Full::new(Bytes::from_static(b"there and back"))
        .map_err(|never| match never {})
        .with_trailers(std::future::ready(Some(Ok(trailers))));
    let request = Request::post("/").body(body.boxed_unsync()).unwrap();
    let collected = soon(ask(&proxy, true, request).await.unwrap().collect())
        .await
        .unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "42");
    assert_eq!(collected.to_bytes(), "there and back");
}

#[tokio::test]
async fn expect_100_continue_works() {
    let (_api, proxy) = proxied(HTTP2, |request, _| async move {
        text(read(request.into_body()).await.unwrap().to_uppercase())
    })
    .await;
    let mut tls = proxy.connect(b"http/1.1").await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\
        Connection: close\r\n\r\n";
    tls.write_all(head.as_bytes()).await.unwrap();
    let mut interim = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    soon(tls.read_exact(&mut interim)).await.unwrap();
    assert_eq!(interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    tls.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    soon(tls.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("HELLO"),
        "{answer}"
    );
}

#[tokio::test]
async fn connect_is_refused() {
    let (api, proxy) = proxied(HTTP2, |_, _| async { text("reached") }).await;
    let request = Request::connect("localhost:443")
        .body(body::empty())
        .unwrap();
    let answer = soon(proxy.http1().await.send_request(request))
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert_eq!(api.accepted(), 0);
}

#[test]
fn dot_segments_are_found_in_every_spelling() {
    for path in [
        "/a/../b",
        "/..",
        "/a/./b",
        "/%2e%2E/b",
        "/a/.%2e",
        "/a%2f..%2fb",
        "/a\\..\\b",
        "/a/..%5Cb",
    ] {
        assert!(has_dot_segments(path), "{path}");
    }
    for path in ["/", "/a/b", "/a/...", "/a/.b", "/a/b..", "/a/%2e%2e%2e"] {
        assert!(!has_dot_segments(path), "{path}");
    }
}

#[tokio::test]
async fn a_url_that_leaves_no_room_for_the_base_path_does_not_leave_it() {
    const BASE: &str = "/k8s/clusters/c-m-1x2y3z4w";
    // `http` takes no more than 65,534 bytes.
    let padded = |length: usize| format!("/v3/users?pad={}", "a".repeat(length - 14));
    for (http2, settings) in BOTH {
        let pki = Pki::new();
        let api = Api::start(&pki, settings, |request, _| async move {
            text(request.uri().path().to_owned())
        })
        .await;
        let (_dir, options) = kubeconfig(&pki, &format!("{}{BASE}", api.url()));
        let proxy = Proxy::start(&Upstream::load(&options).await.unwrap()).await;
        for (length, status) in [
            (10_000, StatusCode::OK),
            (65_534 - BASE.len() + 1, StatusCode::BAD_REQUEST),
            // The HTTP/2 client's own URL has a host.
            (65_534 - "https://localhost".len(), StatusCode::BAD_REQUEST),
        ] {
            let answer = ask(&proxy, http2, get(&padded(length))).await.unwrap();
            assert_eq!(answer.status(), status, "{length}");
            let seen = read(answer).await.unwrap();
            let expected = format!("{BASE}/v3/users");
            assert_eq!(seen == expected, status == StatusCode::OK, "{seen}");
        }
    }
}
