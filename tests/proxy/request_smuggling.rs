//! Requests that two parsers may understand differently. Upstream gets one well-formed request with
//! the caller's own identity, or nothing at all.
use watershed_lab::sim::RecordedRequest;

use crate::support::client::{Protocol, within};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, Received, block, frame,
};
use crate::support::{Fixture, small};

/// The mark of requests that the test looks for at upstream.
const MARK: &str = "smuggled-or-not";

/// Returns the mark of one trial. No mark is a prefix of another.
fn marked(trial: usize) -> String {
    format!("{MARK}-{trial:02}")
}

/// Returns the requests with the mark that upstream received, in any form.
fn arrived(fixture: &Fixture) -> Vec<RecordedRequest> {
    let all = fixture.upstream.take_recorded();
    all.into_iter()
        .filter(|head| head.target.contains(MARK) || head.target.contains("x-second"))
        .collect()
}

/// Checks that a request at upstream is well-formed and bears the caller's identity only.
fn assert_well_formed(head: &RecordedRequest, bearer: &str) {
    let values: Vec<_> = head.headers.get_all("authorization").iter().collect();
    assert_eq!(values, [bearer], "one identity, the caller's: {head:?}");
    for name in [
        "connection",
        "transfer-encoding",
        "upgrade",
        "keep-alive",
        "proxy-connection",
    ] {
        assert!(
            !head.headers.contains_key(name),
            "{name} is of the client's hop: {head:?}"
        );
    }
    for (name, value) in &head.headers {
        assert!(
            !value.as_bytes().iter().any(|b| b"\r\n\0".contains(b)),
            "{name}: {head:?}"
        );
    }
    assert!(
        head.headers.get_all("content-length").iter().count() <= 1,
        "{head:?}"
    );
    assert!(head.headers.get_all("host").iter().count() <= 1, "{head:?}");
    assert!(
        !head.target.contains("x-second"),
        "hidden in another request: {head:?}"
    );
}

/// A name, the bytes of a request, and the allowed answers.
type Http1Trial = (&'static str, String, &'static [u16]);

/// Returns requests over HTTP/1.1 that parsers may understand differently. The answer 0 stands for
/// an end without an answer. A body may turn out to be malformed after its head was sent on. Then
/// the request breaks off at upstream.
fn http1_trials(bearer: &str) -> Vec<Http1Trial> {
    let path = format!("/api/v1/namespaces/team-00/pods/{MARK}");
    let get = format!("GET {path} HTTP/1.1\r\nHost: h\r\n");
    let auth = format!("Authorization: {bearer}\r\n");
    let post = format!("POST /api/v1/namespaces/{MARK}/configmaps HTTP/1.1\r\nHost: h\r\n{auth}");
    let second = format!("GET /x-second HTTP/1.1\r\nHost: h\r\n{auth}\r\n");
    vec![
        // The caller's identity.
        ("plain", format!("{get}{auth}\r\n"), &[404]),
        (
            "differently cased",
            format!("{get}aUTHORIZATION: {bearer}\r\n\r\n"),
            &[404],
        ),
        (
            "a space before the colon",
            format!("{get}Authorization : {bearer}\r\n\r\n"),
            &[400],
        ),
        (
            "obs-fold",
            format!("{get}Authorization: Bearer\r\n {}\r\n\r\n", &bearer[7..]),
            &[400],
        ),
        (
            "obs-fold of another",
            format!("{get}{auth}X-A: b\r\n\tc\r\n\r\n"),
            &[400],
        ),
        (
            "Authorization named",
            format!("{get}{auth}Connection: Authorization\r\n\r\n"),
            &[400],
        ),
        (
            "cased and named",
            format!("{get}{auth}Connection: close, aUthorization\r\n\r\n"),
            &[400],
        ),
        (
            "Impersonate-User named",
            format!("{get}{auth}Impersonate-User: x\r\nConnection: impersonate-user\r\n\r\n"),
            &[400],
        ),
        (
            "Impersonate-Extra named",
            format!("{get}{auth}Impersonate-Extra-A: x\r\nConnection: Impersonate-Extra-A\r\n\r\n"),
            &[400],
        ),
        (
            "X-Remote-User named",
            format!("{get}{auth}X-Remote-User: x\r\nConnection: X-Remote-User\r\n\r\n"),
            &[400],
        ),
        // The end of a request.
        (
            "length and chunks",
            format!(
                "{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}"
            ),
            &[400, 0],
        ),
        (
            "chunks and length",
            format!(
                "{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{second}"
            ),
            &[400, 0],
        ),
        (
            "two lengths",
            format!("{post}Content-Length: 5\r\nContent-Length: 0\r\n\r\n{second}"),
            &[400],
        ),
        (
            "a list of lengths",
            format!("{post}Content-Length: 5, 0\r\n\r\n{second}"),
            &[400],
        ),
        (
            "a signed length",
            format!("{post}Content-Length: +5\r\n\r\n{second}"),
            &[400],
        ),
        (
            "an odd coding",
            format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{second}"),
            &[400],
        ),
        (
            "chunked twice",
            format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{second}"),
            &[400],
        ),
        (
            "a vertical tab",
            format!("{post}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n{second}"),
            &[400],
        ),
        (
            "chunk size too large",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n{second}"),
            &[400, 0],
        ),
        (
            "a chunk that is no number",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n0x1\r\n{second}"),
            &[400, 0],
        ),
        (
            "LF in a chunk extension",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\n{second}"),
            &[400, 0],
        ),
        // Line endings.
        ("NUL", format!("{get}{auth}X-A: b\0c\r\n\r\n"), &[400]),
        (
            "bare CR",
            format!("{get}{auth}X-A: b\rAuthorization: Bearer other\r\n\r\n"),
            &[400],
        ),
        (
            "two hosts",
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nHost: b\r\n{auth}\r\n"),
            &[400, 404],
        ),
        (
            "an absolute target",
            format!("GET http://other{path} HTTP/1.1\r\nHost: h\r\n{auth}\r\n"),
            &[400, 404],
        ),
        (
            "a space in the target",
            format!("GET {path} x HTTP/1.1\r\nHost: h\r\n{auth}\r\n"),
            &[400],
        ),
        ("HTTP/0.9", format!("GET {path}\r\n\r\n"), &[400]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_http1_requests_are_refused_or_forwarded_unambiguously() {
    let fixture = Fixture::start(small()).await;
    let bearer = format!("Bearer {}", fixture.upstream.admin_token());
    fixture.upstream.take_recorded();
    let trials = http1_trials(&bearer);
    let mut statuses = Vec::new();
    for (trial, (what, bytes, allowed)) in trials.iter().enumerate() {
        // A truncated request may be answered before upstream receives it. The trial's mark
        // identifies it there.
        let bytes = bytes.replace(MARK, &marked(trial));
        let raw = fixture
            .proxied
            .raw(bytes.as_bytes(), |text| text.contains("\r\n\r\n"))
            .await;
        let status: u16 = raw
            .text
            .split(' ')
            .nth(1)
            .map_or(0, |status| status.parse().unwrap());
        assert!(allowed.contains(&status), "{what}: {:?}", raw.text);
        statuses.push(status);
    }
    let all = arrived(&fixture);
    for head in &all {
        assert_well_formed(head, &bearer);
    }
    for (trial, (what, _, allowed)) in trials.iter().enumerate() {
        let mark = marked(trial);
        let arrived: Vec<_> = all
            .iter()
            .filter(|head| head.target.contains(&mark))
            .collect();
        assert!(arrived.len() <= 1, "{what}: {arrived:?}");
        assert!(
            statuses[trial] != 400 || arrived.is_empty() || !allowed.contains(&404),
            "{what}: {arrived:?}"
        );
    }
    assert!(all.len() >= 2, "the check sees what arrives");
    check_two_identities(&fixture, &bearer).await;
    check_chunks_and_line_ends(&fixture, &bearer).await;
    fixture.stop().await;
}

/// Returns the status of an answer over HTTP/1.1.
fn status(text: &str) -> &str {
    text.split(' ').nth(1).unwrap()
}

/// Checks a request with two identities. Upstream gets both in their order and decides. The proxy
/// drops and adds none.
async fn check_two_identities(fixture: &Fixture, bearer: &str) {
    let path = format!("/api/v1/namespaces/team-00/pods/{MARK}");
    let two = format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n\
         Authorization: Bearer nobodys-token\r\n\r\n"
    );
    let raw = fixture
        .proxied
        .raw(two.as_bytes(), |text| text.contains("\r\n\r\n"))
        .await;
    let direct = fixture
        .direct
        .raw(two.as_bytes(), |text| text.contains("\r\n\r\n"))
        .await;
    assert_eq!(status(&raw.text), status(&direct.text));
    // Truncated trials may still arrive.
    for head in arrived(fixture)
        .iter()
        .filter(|head| head.target.ends_with(MARK))
    {
        let values: Vec<_> = head.headers.get_all("authorization").iter().collect();
        assert_eq!(values, [bearer, "Bearer nobodys-token"]);
    }
}

/// Checks chunk extensions and line ends. A chunk extension concerns the client's hop only, and a
/// bare LF ends a line.
async fn check_chunks_and_line_ends(fixture: &Fixture, bearer: &str) {
    let path = format!("/api/v1/namespaces/team-00/pods/{MARK}");
    let auth = format!("Authorization: {bearer}\r\n");
    let body = r#"{"metadata":{"name":"whole"}}"#;
    let post = format!(
        "POST /api/v1/namespaces/team-00/configmaps HTTP/1.1\r\nHost: h\r\n{auth}\
         Content-Type: application/json\r\n"
    );
    let chunked = format!(
        "{post}Transfer-Encoding: chunked\r\n\r\n{:x};ext=\"1\"\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let raw = fixture
        .proxied
        .raw(chunked.as_bytes(), |text| text.contains("\r\n\r\n"))
        .await;
    assert!(raw.text.starts_with("HTTP/1.1 201 "), "{}", raw.text);
    let bare = format!(
        "GET {path} HTTP/1.1\nHost: h\n{}\n",
        auth.replace("\r\n", "\n")
    );
    let raw = fixture
        .proxied
        .raw(bare.as_bytes(), |text| text.contains("\r\n\r\n"))
        .await;
    assert!(["400", "404"].contains(&status(&raw.text)), "{}", raw.text);
    for head in arrived(fixture) {
        assert_well_formed(&head, bearer);
    }
}

/// Returns `true` for a frame that answers the first stream or ends the connection.
fn is_answer(frame: &Received) -> bool {
    (frame.stream == 1 && [HEADERS, RST_STREAM].contains(&frame.kind)) || frame.kind == GOAWAY
}

/// A name, the header fields of a request, and true if the request may arrive at upstream. Then it
/// has to be one well-formed request.
type Http2Trial<'a> = (&'static str, Vec<(&'a str, &'a str)>, bool);

/// Returns requests over HTTP/2 that parsers may understand differently.
fn http2_trials<'a>(path: &'a str, bearer: &'a str) -> Vec<Http2Trial<'a>> {
    let usual: Vec<(&str, &str)> = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "proxy"),
        (":path", path),
        ("authorization", bearer),
    ];
    let with = |more: &[(&'static str, &'static str)]| [usual.clone(), more.to_vec()].concat();
    let without = |name: &str| {
        usual
            .iter()
            .copied()
            .filter(|(n, _)| *n != name)
            .collect::<Vec<_>>()
    };
    let changed = |name: &str, value: &'static str| {
        usual
            .iter()
            .map(|&(n, v)| if n == name { (n, value) } else { (n, v) })
            .collect::<Vec<_>>()
    };
    vec![
        ("plain", usual.clone(), true),
        ("another host", with(&[("host", "other")]), true),
        ("two paths", with(&[(":path", "/x-second")]), false),
        ("two methods", with(&[(":method", "DELETE")]), false),
        ("two authorities", with(&[(":authority", "other")]), false),
        ("no path", without(":path"), false),
        ("an empty path", changed(":path", ""), false),
        ("no method", without(":method"), false),
        ("a path that is none", changed(":path", "x-second"), false),
        (
            "lines in the path",
            changed(":path", "/x-second HTTP/1.1\r\nA: b"),
            false,
        ),
        (
            "a method with lines",
            changed(":method", "GET /x-second HTTP/1.1\r\nA: b"),
            false,
        ),
        ("uppercase", with(&[("Impersonate-User", "x")]), false),
        (
            "a space in a name",
            with(&[("impersonate-user ", "x")]),
            false,
        ),
        (
            "lines in a value",
            with(&[("x-a", "b\r\nimpersonate-user: x")]),
            false,
        ),
        (
            "lines in a name",
            with(&[("x-a: b\r\nimpersonate-user", "x")]),
            false,
        ),
        ("a colon in a name", with(&[("x:a", "b")]), false),
        ("an unknown pseudo-header", with(&[(":user", "x")]), false),
        (
            "a pseudo-header of answers",
            with(&[(":status", "200")]),
            false,
        ),
        (
            "pseudo after regular",
            with(&[(":protocol", "websocket")]),
            false,
        ),
        (
            "Connection",
            with(&[("connection", "authorization")]),
            false,
        ),
        (
            "Transfer-Encoding",
            with(&[("transfer-encoding", "chunked")]),
            false,
        ),
        ("Upgrade", with(&[("upgrade", "h2c")]), false),
        ("TE of more than trailers", with(&[("te", "gzip")]), false),
        (
            "a length without a body",
            with(&[("content-length", "5")]),
            false,
        ),
        (
            "two lengths",
            with(&[("content-length", "0"), ("content-length", "5")]),
            false,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_http2_requests_are_refused_or_forwarded_unambiguously() {
    let fixture = Fixture::start(small()).await;
    let bearer = format!("Bearer {}", fixture.upstream.admin_token());
    let path = format!("/api/v1/namespaces/team-00/pods/{MARK}");
    fixture.upstream.take_recorded();
    let trials = http2_trials(&path, &bearer);
    let mut answers = Vec::new();
    for (trial, (what, fields, _)) in trials.iter().enumerate() {
        // A late request is identified by its trial's mark.
        let own = path.replace(MARK, &marked(trial));
        let fields: Vec<_> = fields
            .iter()
            .map(|&(name, value)| (name, if value == path { &own } else { value }))
            .collect();
        let mut frames = Frames::open(&fixture.proxied, 65_535).await;
        frames
            .send(&frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                1,
                &block(&fields),
            ))
            .await;
        answers.push(within(what, frames.find(is_answer)).await);
    }
    let all = arrived(&fixture);
    for head in &all {
        assert_well_formed(head, &bearer);
    }
    for (trial, (what, _, may)) in trials.iter().enumerate() {
        let (mark, answer) = (marked(trial), &answers[trial]);
        let arrived: Vec<_> = all
            .iter()
            .filter(|head| head.target.contains(&mark))
            .collect();
        let answered = answer.as_ref().is_some_and(|answer| answer.kind == HEADERS);
        assert_eq!(
            arrived.len(),
            usize::from(*may),
            "{what}: {answer:?} {arrived:?}"
        );
        assert!(answered || !may, "{what}: {answer:?}");
    }
    assert_eq!(all.len(), 2, "the check sees what arrives");
    check_false_lengths(&fixture, &bearer).await;
    fixture.stop().await;
}

/// Checks that a body that contradicts its declared length never creates an object.
async fn check_false_lengths(fixture: &Fixture, bearer: &str) {
    let body = r#"{"metadata":{"name":"short"}}"#;
    for said in [body.len() - 1, body.len() + 1] {
        let said = said.to_string();
        let mut frames = Frames::open(&fixture.proxied, 65_535).await;
        let fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "proxy"),
            (":path", "/api/v1/namespaces/team-00/configmaps"),
            ("authorization", bearer),
            ("content-type", "application/json"),
            ("content-length", &said),
        ];
        frames
            .send(&frame(HEADERS, END_HEADERS, 1, &block(&fields)))
            .await;
        frames
            .send(&frame(DATA, END_STREAM, 1, body.as_bytes()))
            .await;
        within("an answer", frames.find(is_answer)).await;
        let name = fixture
            .proxied
            .get(
                Protocol::Http2,
                "/api/v1/namespaces/team-00/configmaps/short",
            )
            .await;
        assert_eq!(name.status, 404, "said to be {said} long");
    }
}
