//! Malformed requests. Upstream refuses them in its own words, and other requests on the connection
//! succeed.
use http::{Method, Request, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::client::{Answer, BOTH, Endpoint, Protocol, nothing, within};
use crate::support::follower::{Follower, Opening};
use crate::support::frames::{
    CONTINUATION, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, Received, block,
    frame, length,
};
use crate::support::history::{Interest, WriteHistory};
use crate::support::{Fixture, small};

/// Queries of lists and watches that are malformed, contradictory or odd.
const QUERIES: &[&str] = &[
    "limit=abc",
    "limit=",
    "limit=-1&resourceVersion=0",
    "limit=99999999999999999999",
    "resourceVersion=x",
    "resourceVersion=-1",
    "resourceVersion=1.5",
    "resourceVersion=99999999999999999999",
    "resourceVersion=0&resourceVersionMatch=Foo",
    "resourceVersion=0&resourceVersionMatch=Exact",
    "resourceVersionMatch=NotOlderThan",
    "sendInitialEvents=true",
    "timeoutSeconds=x",
    "timeoutSeconds=1.5",
    "watch=1&timeoutSeconds=-1&resourceVersion=0",
    "watch=1&timeoutSeconds=abc",
    "watch=1&limit=abc",
    "watch=1&resourceVersion=x",
    "watch=1&resourceVersion=0&resourceVersionMatch=Exact&timeoutSeconds=1",
    "watch=1&sendInitialEvents=true&timeoutSeconds=1",
    "watch=maybe&resourceVersion=0&timeoutSeconds=1",
    "watch&resourceVersion=0&timeoutSeconds=1",
    "continue=abc",
    "continue=%7B%7D",
    "continue=abc&resourceVersion=5",
    "labelSelector=%zz",
    "labelSelector=%",
    "labelSelector=a%3D%3D%3Db",
    "labelSelector=a%20in%20(b",
    "labelSelector=-a%3Db",
    "labelSelector=%21%21a",
    "labelSelector=%00",
    "labelSelector=a%3D%ff",
    "fieldSelector=metadata.name",
    "fieldSelector=metadata.name%3D%3D%3Da",
    "fieldSelector=spec.unknown%3Da",
    "fieldSelector=%zz",
    "resourceVersion=0&fieldSelector=spec.unknown%3Da",
    "resourceVersion=0&labelSelector=a%20in%20(b",
    "watch=1&resourceVersion=0&labelSelector=a%20in%20(b",
    "watch=1&resourceVersion=0&fieldSelector=spec.unknown%3Da",
    "resourceVersion=%30",
    "resourceVersion=0&resourceVersion=x",
    "%72esourceVersion=x",
    "&&=&resourceVersion=0&",
];

async fn answer(endpoint: &Endpoint, protocol: Protocol, path: &str, accept: &str) -> Answer {
    let request = Request::get(path)
        .header("accept", accept)
        .body(nothing())
        .unwrap();
    let answer = within(path, endpoint.send(protocol, request)).await;
    answer.unwrap_or_else(|error| panic!("{path}: {error:#}"))
}

/// Checks that the proxy's answer equals upstream's.
async fn same(fixture: &Fixture, protocol: Protocol, path: &str, accept: &str) -> Answer {
    // Both are read at the same time, because some of them are watches.
    let direct = Box::pin(answer(&fixture.direct, protocol, path, accept));
    let proxied = Box::pin(answer(&fixture.proxied, protocol, path, accept));
    let (direct, proxied) = tokio::join!(direct, proxied);
    assert_eq!(
        proxied.essence(),
        direct.essence(),
        "{path} by {protocol:?}, accepting {accept}"
    );
    proxied
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_queries_get_upstreams_answer_and_affect_nobody_else() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let mut beside = Vec::new();
    for protocol in BOTH {
        let connection = fixture.proxied.connect(protocol).await.unwrap();
        beside.push(Follower::start(&connection, Interest::All, Opening::List));
        beside.last().unwrap().synced().await;
    }
    let mut refused = 0;
    for (n, query) in QUERIES.iter().enumerate() {
        // Pods change between two queries, but not between the two answers to one.
        history.write();
        let paths = ["/api/v1/pods", "/api/v1/namespaces/team-00/pods"]
            .map(|path| format!("{path}?{query}"));
        let answers = paths
            .each_ref()
            .map(|path| same(&fixture, BOTH[n % 2], path, "application/json"));
        for answer in futures_util::future::join_all(answers).await {
            if answer.status != StatusCode::OK {
                refused += 1;
                assert_eq!(answer.json()["kind"], "Status");
            }
        }
    }
    assert!(
        refused > QUERIES.len(),
        "most of these are wrong: {refused}"
    );
    for follower in beside {
        follower.judge_undisturbed(&history).await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_paths_and_accept_headers_get_upstreams_answer() {
    let fixture = Fixture::start(small()).await;
    fixture
        .proxied
        .get(Protocol::Http2, "/api/v1/pods?resourceVersion=0")
        .await;
    for path in [
        "/api/v1/nothings",
        "/api/v1/nothings?watch=1",
        "/api/v1/pods/x/y/z",
        "/api/v1/nodes/node-000/pods",
        "/api/v1/namespaces/team-00/nodes?resourceVersion=0",
        "/api/v1/namespaces//pods?resourceVersion=0",
        "/api/v1/namespaces/..%2f/pods?resourceVersion=0",
        "/api/v1/pods/?resourceVersion=0",
        "/api/v1/namespaces/nowhere/pods?resourceVersion=0",
        "/api/v1/namespaces/team-00/pods/nobody?resourceVersion=0",
        "/api/v1/namespaces/team-00/pods/nobody?resourceVersion=x",
        "/apis/example.com/v1/nothings",
        "/apis/example.org/v1/widgets?resourceVersion=0",
        "/apis",
        "/nowhere",
        "/",
    ] {
        for protocol in BOTH {
            same(&fixture, protocol, path, "application/json").await;
        }
    }
    for accept in [
        "text/html",
        "application/json;as=Foo;g=meta.k8s.io;v=v1",
        "application/vnd.kubernetes.protobuf",
        "image/*;q=0.5,text/plain",
        ";;;",
        "application",
    ] {
        for query in [
            "resourceVersion=0",
            "",
            "watch=1&resourceVersion=0&timeoutSeconds=1",
        ] {
            let path = format!("/api/v1/pods?{query}");
            let refusal = same(&fixture, Protocol::Http2, &path, accept).await;
            assert_eq!(refusal.status, StatusCode::NOT_ACCEPTABLE, "{accept}");
            assert_eq!(refusal.json()["reason"], "NotAcceptable");
        }
    }
    // The first available type, in the client's order.
    let accept = "application/vnd.kubernetes.protobuf,application/json;q=0.5,*/*;q=0.1";
    assert_eq!(
        same(
            &fixture,
            Protocol::Http1,
            "/api/v1/pods?resourceVersion=0",
            accept
        )
        .await
        .status,
        200
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_methods_get_upstreams_answer() {
    let fixture = Fixture::start(small()).await;
    for method in ["HEAD", "OPTIONS", "BREW", "PUT", "DELETE"] {
        for path in ["/api/v1/pods?resourceVersion=0", "/nowhere"] {
            for protocol in BOTH {
                let request = || {
                    let method = Method::from_bytes(method.as_bytes()).unwrap();
                    Request::builder()
                        .method(method)
                        .uri(path)
                        .body(nothing())
                        .unwrap()
                };
                let direct = within(path, fixture.direct.send(protocol, request()))
                    .await
                    .unwrap();
                let proxied = within(path, fixture.proxied.send(protocol, request()))
                    .await
                    .unwrap();
                assert_eq!(
                    proxied.essence(),
                    direct.essence(),
                    "{method} {path} by {protocol:?}"
                );
            }
        }
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_headers_are_refused_with_a_clear_error() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 2);
    let shared = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let beside = Follower::start(&shared, Interest::All, Opening::WatchList);
    beside.synced().await;

    // HTTP/1.1: a clear answer, then the connection ends, because the next request's start is
    // unknown.
    let (long, many) = ("a".repeat(300_000), "X-More: yes\r\n".repeat(2_000));
    for head in [
        format!("GET /api/v1/pods HTTP/1.1\r\nHost: h\r\nX-Large: {long}\r\n\r\n"),
        format!("GET /api/v1/pods HTTP/1.1\r\nHost: h\r\n{many}\r\n"),
        format!("GET /api/v1/pods?labelSelector={long} HTTP/1.1\r\nHost: h\r\n\r\n"),
        "GET /api/v1/pods HTTP/1.1\r\nno colon here\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1} what is this\r\n\r\n".to_owned(),
    ] {
        let raw = fixture.proxied.raw(head.as_bytes(), |_| false).await;
        let start = &head[..40.min(head.len())];
        let status = raw.text.split(' ').nth(1).unwrap_or_default();
        assert!(
            ["400", "414", "431"].contains(&status),
            "{start:?} got {:?}",
            raw.text
        );
    }

    // No TLS at all: the connection ends without any HTTP.
    let mut plain = TcpStream::connect(fixture.proxied.address).await.unwrap();
    plain
        .write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        .await
        .unwrap();
    let mut told = Vec::new();
    let _ = within("the end", plain.read_to_end(&mut told)).await;
    assert!(!told.starts_with(b"HTTP"));

    // HTTP/2: the connection's other streams continue.
    let request = Request::get("/api/v1/pods")
        .header("x-large", &long)
        .body(nothing())
        .unwrap();
    let answer = within("an answer", shared.read(request)).await.unwrap();
    assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    history.writes(40).await;
    beside.judge_undisturbed(&history).await;
    assert!(!shared.is_closed());

    // A large head within the limit arrives complete.
    let names: Vec<_> = (0..3_000).map(|n| format!("tier-{n}")).collect();
    let path = format!(
        "/api/v1/pods?resourceVersion=0&labelSelector=tier%20in%20(backend,{})",
        names.join(",")
    );
    for protocol in BOTH {
        let answer = same(&fixture, protocol, &path, "application/json").await;
        assert!(!answer.json()["items"].as_array().unwrap().is_empty());
    }
    fixture.stop().await;
}

/// A request with a `#` in its URL would lose the name behind it, and become one for all objects.
/// Returns requests on stream 7 that delete what this path names. They name it by HPACK's table, after what
/// an inexact reader of frames would take for an entry of the table, or not.
fn heads_that_hide_a_path(path: &str, bearer: &str) -> Vec<(&'static str, Vec<u8>)> {
    let fields = [
        (":method", "DELETE"),
        (":scheme", "https"),
        (":authority", "proxy"),
    ];
    // The number is that of a name in the table: 15 and the next byte.
    let request = |number: u8| {
        let mut head = block(&fields);
        head.extend([0x0f, number - 15]);
        length(&mut head, path.len());
        head.extend(path.as_bytes());
        head.extend(block(&[("authorization", bearer)]));
        frame(HEADERS, END_STREAM | END_HEADERS, 7, &head)
    };
    let entry = [0x40, 1, b'x', 1, b'y'];
    let path_entry = [0x44, 2, b'/', b'a'];
    let first = |fields: &[u8]| frame(HEADERS, END_STREAM | END_HEADERS, 1, fields);
    let promise = [&[0, 0, 0, 2][..], &entry].concat();
    let dependent = [&[0, 0, 0, 3, 0][..], &entry].concat();
    let priority = END_STREAM | END_HEADERS | 0x20;
    vec![
        ("the table", [first(&path_entry), request(62)].concat()),
        (
            "a promise",
            [
                first(&path_entry),
                frame(0x5, END_HEADERS, 1, &promise),
                request(63),
            ]
            .concat(),
        ),
        (
            "a head that depends on its stream",
            [
                first(&path_entry),
                frame(HEADERS, priority, 3, &dependent),
                request(62),
            ]
            .concat(),
        ),
        (
            "a field without a name",
            [
                first(&path_entry),
                frame(HEADERS, END_STREAM, 3, &[0x40, 0, 0]),
                frame(CONTINUATION, END_HEADERS, 3, &[0x82]),
                request(62),
            ]
            .concat(),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_sign_in_a_url_is_refused_before_it_becomes_another_request() {
    let fixture = Fixture::start(small()).await;
    let bearer = format!("Bearer {}", fixture.upstream.admin_token());
    fixture.upstream.take_recorded();
    let path = "/api/v1/namespaces/team-00/configmaps";
    let rest = format!("HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n");
    for target in [format!("{path}/#x"), format!("{path}?dryRun=All#x")] {
        // It stands in a body, too, and in an earlier request on the connection.
        let name = format!("n{}", target.len());
        let body =
            format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"a":"GET /#a HTTP/1.1"}}}}"#);
        let both = format!(
            "POST {path} {rest}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\n\r\nDELETE {target} {rest}\r\n",
            body.len()
        );
        let raw = fixture.proxied.raw(both.as_bytes(), |_| false).await;
        let (created, refused) = raw.text.split_once("HTTP/1.1 400 ").unwrap_or_else(|| {
            panic!("{target} is not refused: {}", raw.text);
        });
        assert!(created.starts_with("HTTP/1.1 201 "), "{created}");
        assert!(refused.contains("must be written as %23"), "{refused}");
    }
    // Without a slash in front, a target would be sent on as that of the root.
    for target in ["version", "api/v1", "127.0.0.1:80"] {
        let request = format!("GET {target} {rest}\r\n");
        let raw = fixture.proxied.raw(request.as_bytes(), |_| false).await;
        let text = raw.text;
        assert!(text.starts_with("HTTP/1.1 400 "), "{target}: {text}");
        // The server library refuses the other by itself.
        if !target.contains('/') {
            assert!(
                text.contains("\r\nContent-Type: text/plain"),
                "{target}: {text}"
            );
        }
    }
    // Over HTTP/2, the other streams of the connection go on.
    let mut frames = Frames::open(&fixture.proxied, 65_535).await;
    for (stream, target, is_good) in [
        (1, "/#x", false),
        (3, "?dryRun=All#x", false),
        (5, "", true),
    ] {
        let target = format!("{path}{target}");
        let method = if is_good { "GET" } else { "DELETE" };
        let fields = [
            (":method", method),
            (":scheme", "https"),
            (":authority", "proxy"),
            (":path", &target),
            ("authorization", &bearer),
        ];
        let flags = END_STREAM | END_HEADERS;
        frames
            .send(&frame(HEADERS, flags, stream, &block(&fields)))
            .await;
        let of_stream = |frame: &Received| frame.stream == stream || frame.kind == GOAWAY;
        let answer = within(&target, frames.find(of_stream)).await.unwrap();
        let wanted = if is_good { HEADERS } else { RST_STREAM };
        assert_eq!(answer.kind, wanted, "{target}: {answer:?}");
    }
    drop(frames);
    for (what, frames) in heads_that_hide_a_path(&format!("{path}/#x"), &bearer) {
        let mut connection = Frames::open(&fixture.proxied, 65_535).await;
        connection.send(&frames).await;
        let of_stream = |frame: &Received| frame.stream == 7 || frame.kind == GOAWAY;
        let answer = within(what, connection.find(of_stream)).await.unwrap();
        assert_ne!(answer.kind, HEADERS, "{what}: {answer:?}");
    }
    let recorded = fixture.upstream.take_recorded();
    assert!(recorded.iter().any(|head| head.method == Method::POST));
    assert!(recorded.iter().all(|head| head.method != Method::DELETE));

    // Upstream's server refuses a path with a bad escape. It is not to be taken for one that broke off.
    for protocol in BOTH {
        let bad = format!("{path}/100%");
        let refused = answer(&fixture.proxied, protocol, &bad, "application/json").await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{protocol:?}");
    }
    assert!(
        fixture
            .upstream
            .take_recorded()
            .iter()
            .all(|head| !head.target.contains('%'))
    );
    fixture.stop().await;
}
