//! Truncated and malformed request bodies. Upstream has to see a truncated body as truncated,
//! because half a document is often a valid document.
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use watershed_lab::sim::SimulatedServer;
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Endpoint, Protocol, whole};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, small};

const PATH: &str = "/api/v1/namespaces/default/configmaps";

fn configmap(name: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","namespace":"default"}},"data":{{"key":"value"}}}}"#)
}

/// Returns the names of upstream's config maps.
fn stored(upstream: &SimulatedServer) -> Vec<String> {
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    upstream.state().snapshot(&configmaps).into_keys().collect()
}

/// Returns the head of a POST with the given framing headers.
fn head(framing: &str) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer admin-token\r\n\
         Content-Type: application/json\r\n{framing}\r\n\r\n"
    )
}

fn with_length(name: &str, more: usize) -> String {
    let body = configmap(name);
    head(&format!("Content-Length: {}", body.len() + more)) + &body
}

fn chunked(name: &str, end: &str) -> String {
    let body = configmap(name);
    head("Transfer-Encoding: chunked") + &format!("{:x}\r\n{body}\r\n{end}", body.len())
}

/// Sends bytes and closes the connection, with a TLS close_notify or without.
async fn send_and_leave(endpoint: &Endpoint, bytes: &str, goodbye: bool) {
    let mut stream = endpoint.tls(Protocol::Http1).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // The proxy has time to forward the bytes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    if goodbye {
        stream.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_body_never_arrives_as_a_complete_one() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let beside = Follower::start(&connection, Interest::All, Opening::List);
    beside.synced().await;

    for goodbye in [false, true] {
        for bytes in [
            with_length("cut-length", 1),
            with_length("cut-length-early", 100_000),
            chunked("cut-chunks", ""),
            chunked("cut-last-chunk", "0\r\n"),
            chunked("cut-in-chunk", "ff\r\n{"),
            chunked("bad-chunk", "zz\r\n"),
        ] {
            send_and_leave(&fixture.proxied, &bytes, goodbye).await;
        }
    }
    // HTTP/2: a failed body resets its stream, and a broken connection ends it.
    let document = Bytes::from(configmap("cut-stream"));
    let failing = StreamBody::new(stream::iter([
        Ok(Frame::data(document.clone())),
        Err(std::io::Error::other("the sender gives up")),
    ]));
    let request = Request::post(PATH).body(failing.boxed_unsync()).unwrap();
    assert!(
        connection.read(request).await.is_err(),
        "no answer to half a request"
    );
    let doomed = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let stuck = stream::iter([Ok(Frame::data(document))]);
    let stuck = StreamBody::new(futures_util::StreamExt::chain(stuck, stream::pending()));
    let request = Request::post(PATH).body(stuck.boxed_unsync()).unwrap();
    tokio::select! {
        _ = doomed.read(request) => panic!("no answer to half a request"),
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
    }
    drop(doomed);
    reset_without_error(&fixture.proxied, "cut-by-reset").await;

    // The proxy still works: the same documents arrive when they are complete.
    assert_eq!(
        stored(&fixture.upstream),
        [""; 0],
        "half a request became a whole one"
    );
    history.writes(20).await;
    beside.judge_undisturbed(&history).await;
    let answer = fixture
        .proxied
        .raw(with_length("whole-length", 0).as_bytes(), |text| {
            text.contains("}\n")
        })
        .await;
    assert!(answer.text.starts_with("HTTP/1.1 201"), "{}", answer.text);
    let answer = fixture
        .proxied
        .raw(chunked("whole-chunks", "0\r\n\r\n").as_bytes(), |text| {
            text.contains("}\n")
        })
        .await;
    assert!(answer.text.starts_with("HTTP/1.1 201"), "{}", answer.text);
    let request = Request::post(PATH)
        .body(whole(configmap("whole-stream")))
        .unwrap();
    assert_eq!(
        connection.read(request).await.unwrap().status,
        StatusCode::CREATED
    );
    let whole = ["whole-chunks", "whole-length", "whole-stream"];
    assert_eq!(
        stored(&fixture.upstream),
        whole.map(|name| format!("default/{name}"))
    );
    let created = fixture
        .upstream
        .stats()
        .requests
        .get(&("POST".into(), "configmaps".into(), 201))
        .copied();
    assert_eq!(created, Some(3));
    fixture.stop().await;
}

/// Sends a body of so many bytes in pieces, then another request. Returns the answers.
async fn post_slowly(endpoint: &Endpoint, length: usize) -> std::io::Result<String> {
    const PIECE: usize = 10_000;
    let mut stream = endpoint.tls(Protocol::Http1).await?;
    let head = head(&format!("Content-Length: {length}"));
    stream.write_all(head.as_bytes()).await?;
    for _ in 0..length / PIECE {
        stream.write_all(&[b' '; PIECE]).await?;
        stream.flush().await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let other = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(other.as_bytes()).await?;
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await?;
    Ok(answers)
}

/// A body that is not too long is read to its end, and the connection serves another request. Of others,
/// enough is read for the answer to arrive.
async fn is_refused(endpoint: &Endpoint, status: u16) -> Result<(), String> {
    for (length, count) in [(200_000, 2), (800_000, 1)] {
        let answers = post_slowly(endpoint, length).await;
        let answers = answers.map_err(|error| format!("{length} bytes: {error}"))?;
        let is_refused = answers.starts_with(&format!("HTTP/1.1 {status} "));
        if !is_refused || answers.matches("HTTP/1.1 ").count() != count {
            return Err(format!("{length} bytes, {count} answers wanted: {answers}"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_the_body_reaches_a_client_that_still_sends_it() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    for (flags, status) in [
        (["--single-identity", "--reject-methods=^POST$"], 403),
        (
            [
                "--max-requests-per-second-per-user=1",
                "--max-requests-burst-per-user=1",
            ],
            429,
        ),
    ] {
        let program = Program::with(&upstream, &flags).await;
        eventually("a request to be refused", async || {
            // The limit is reached by others.
            program.proxied.get(Protocol::Http2, PATH).await;
            is_refused(&program.proxied, status).await
        })
        .await;
        program.terminate().await;
        assert!(program.ended().await.success());
    }
    upstream.shutdown().await;
}

/// Sends the complete document, then a reset with NO_ERROR instead of an end of the stream.
async fn reset_without_error(endpoint: &Endpoint, name: &str) {
    let io = endpoint.tls(Protocol::Http2).await.unwrap();
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::post(format!("https://{}{PATH}", endpoint.address))
        .header("authorization", "Bearer admin-token")
        .body(())
        .unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    body.send_data(Bytes::from(configmap(name)), false).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    body.send_reset(h2::Reason::NO_ERROR);
    answer.await.expect_err("no answer to half a request");
    tokio::time::sleep(Duration::from_millis(100)).await;
    connection.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_body_gets_upstreams_answer() {
    let fixture = Fixture::start(small()).await;
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\u{0}\u{1}",
        r#"{"metadata":{}}"#,
        r#"{"metadata":{"name":7}}"#,
    ] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let request = || Request::post(PATH).body(whole(body)).unwrap();
            let direct = fixture.direct.send(protocol, request()).await.unwrap();
            let proxied = fixture.proxied.send(protocol, request()).await.unwrap();
            assert!(direct.status.is_client_error(), "{body:?}: {direct:?}");
            assert_eq!(
                proxied.essence(),
                direct.essence(),
                "{body:?} by {protocol:?}"
            );
        }
    }
    becomes("what upstream stored", Vec::<String>::new(), async || {
        stored(&fixture.upstream)
    })
    .await;
    fixture.stop().await;
}
