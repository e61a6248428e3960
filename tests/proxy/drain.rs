//! The shutdown of the proxy, as its clients see it.
use crate::support::client::{BOTH, Endpoint, Lines, Next, Protocol, Raw, within};
use crate::support::follower::{Follower, Opening};
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, block, frame, get};
use crate::support::history::{Event, Interest, WriteHistory, compare};
use crate::support::program::Program;
use crate::support::{Fixture, PATIENCE, eventually, plain_get, small};

/// The body of the request that is running during the shutdown.
const SLOW_BODY: &str = r#"{"metadata":{"name":"slow","namespace":"default"}}"#;

/// Begins a request: upstream has its head, and the client has sent half of the body.
async fn begin_slow_request(proxied: &Endpoint) -> Raw {
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: h\r\n\
         Authorization: Bearer admin-token\r\n\
         Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        SLOW_BODY.len()
    );
    let mut slow = proxied
        .raw(head.as_bytes(), |text| {
            text.contains("100 Continue\r\n\r\n")
        })
        .await;
    slow.write(&SLOW_BODY[..20]).await;
    slow
}

/// Returns the frame of a GET.
fn request_frame(path: &str, id: u32) -> Vec<u8> {
    frame(
        HEADERS,
        END_STREAM | END_HEADERS,
        id,
        &block(&get(path, "Bearer admin-token")),
    )
}

/// Checks that watches had the expected events and a last bookmark, and ended cleanly.
async fn assert_ended_with_bookmarks(watches: Vec<Lines>, expected: &[Event]) {
    for watch in watches {
        let (lines, last) = watch.rest().await;
        assert_eq!(last, Next::End, "a clean end");
        compare(expected, &events(&lines)).unwrap();
        let bookmark = String::from_utf8(lines.last().unwrap().to_vec()).unwrap();
        assert!(
            bookmark.contains("BOOKMARK"),
            "a client learns where to continue: {bookmark}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_watches_cleanly_and_finishes_running_requests() {
    // The limit leaves a slow machine enough time to finish the running requests.
    let fixture = Fixture::configured(small(), |config| config.drain = PATIENCE).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let list = fixture
        .proxied
        .get(Protocol::Http2, "/api/v1/pods?resourceVersion=0")
        .await
        .json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/pods?watch=1&allowWatchBookmarks=1&resourceVersion={version}");
    let mut watches = Vec::new();
    for n in 0..10 {
        watches.push(fixture.proxied.watch(BOTH[n % 2], &path).await);
    }
    // Secrets are not cached, so these watches are forwarded.
    let path = "/api/v1/secrets?watch=1";
    let forwarded = [
        fixture.proxied.watch(BOTH[0], path).await,
        fixture.proxied.watch(BOTH[1], path).await,
    ];
    let mut slow = begin_slow_request(&fixture.proxied).await;
    // A client that sends a request before it has seen the GOAWAY.
    let mut late = Frames::open(&fixture.proxied, 65_535).await;
    late.send(&request_frame("/api/v1/nodes?resourceVersion=0", 1))
        .await;
    late.find(|frame| frame.kind == HEADERS && frame.stream == 1)
        .await
        .unwrap();
    history.writes(30).await;
    // A watch without pending events.
    let now = history
        .between(&Interest::All, 0, u64::MAX)
        .last()
        .unwrap()
        .version;
    let path = format!("/api/v1/pods?watch=1&allowWatchBookmarks=1&resourceVersion={now}");
    let silent = fixture.proxied.watch(Protocol::Http2, &path).await;
    let follower = Follower::start(
        &fixture.proxied.connect(Protocol::Http2).await.unwrap(),
        Interest::All,
        Opening::List,
    );
    follower.judge(&history).await;

    let (proxied, admin) = (fixture.proxied.clone(), fixture.admin);
    let (upstream, end) = fixture.shut_down();
    let end = tokio::spawn(end);
    let expected = history.between(&Interest::All, version.parse().unwrap(), u64::MAX);
    assert_ended_with_bookmarks(watches, &expected).await;
    for watch in forwarded {
        assert_eq!(
            watch.rest().await.1,
            Next::End,
            "a clean end of a forwarded watch"
        );
    }
    // Another process may have the port by now, but not the certificate.
    eventually("no new connections", async || {
        match proxied.tls(Protocol::Http1).await {
            Err(_) => Ok(()),
            Ok(_) => Err("one was accepted".to_owned()),
        }
    })
    .await;
    late.send(&request_frame("/api/v1/pods?watch=1&resourceVersion=0", 3))
        .await;
    let answer = late
        .find(|frame| frame.kind == DATA && frame.stream == 3)
        .await
        .unwrap()
        .payload;
    drop(late);
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        (&answer["code"], &answer["details"]["retryAfterSeconds"]),
        (&503.into(), &1.into()),
        "{answer}"
    );
    let (lines, last) = silent.rest().await;
    let text = String::from_utf8_lossy(lines.last().unwrap()).into_owned();
    assert!(
        last == Next::End && text.contains("BOOKMARK") && text.contains(&now.to_string()),
        "{text}"
    );
    assert!(!end.is_finished(), "a request is still under way");
    let ready = plain_get(admin, "GET", "/readyz").await;
    assert!(
        ready.contains("503") && ready.contains("[-]shutdown failed"),
        "{ready}"
    );
    slow.text.clear();
    slow.write(&SLOW_BODY[20..]).await;
    assert!(
        slow.read_until(|text| text.contains("}\n")).await,
        "the answer is whole: {}",
        slow.text
    );
    assert!(slow.text.starts_with("HTTP/1.1 201"), "{}", slow.text);
    within("the end of the shutdown", end).await.unwrap();
    upstream.shutdown().await;
}

/// Returns the events among the lines of a watch.
fn events(lines: &[bytes::Bytes]) -> Vec<Event> {
    let events = lines.iter().filter_map(|line| {
        let parsed: serde_json::Value = serde_json::from_slice(line).unwrap();
        let text = |at: &str| {
            parsed
                .pointer(at)
                .and_then(|v| v.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let kind = text("/type");
        (kind != "BOOKMARK").then(|| Event {
            kind,
            key: format!(
                "{}/{}",
                text("/object/metadata/namespace"),
                text("/object/metadata/name")
            ),
            version: text("/object/metadata/resourceVersion").parse().unwrap(),
            line: line.clone(),
        })
    });
    events.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_shuts_the_program_down_gracefully() {
    let upstream = watershed_lab::sim::SimulatedServer::start(small())
        .await
        .unwrap();
    let program = Program::start(&upstream).await;
    let proxied = program.proxied.clone();
    let mut watches = Vec::new();
    for protocol in BOTH {
        let mut watch = program
            .proxied
            .watch(protocol, "/api/v1/pods?watch=1&resourceVersion=0")
            .await;
        for _ in 0..40 {
            assert!(
                watch.line().await.starts_with(r#"{"type":"ADDED""#),
                "the state is there"
            );
        }
        watches.push(watch);
    }
    program.terminate().await;
    for watch in watches {
        assert_eq!(watch.rest().await.1, Next::End, "a clean end");
    }
    assert_eq!(program.ended().await.code(), Some(0));
    assert!(
        proxied.tls(Protocol::Http1).await.is_err(),
        "nobody answers in its place"
    );
    upstream.shutdown().await;
}
