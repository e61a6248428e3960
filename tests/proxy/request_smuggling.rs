//! Requests that two readers may understand differently. Upstream gets one well-formed request with
//! the caller's own identity, or nothing at all.
use watershed_lab::sim::RecordedRequest;

use crate::support::client::{Protocol, within};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, block, frame,
};
use crate::support::{Fixture, small};

/// The mark of requests that are looked for at upstream.
const MARK: &str = "smuggled-or-not";

/// The mark of one trial; none is the beginning of another's.
fn marked(trial: usize) -> String {
    format!("{MARK}-{trial:02}")
}

/// What upstream got of the requests that bear the mark, in any form.
fn arrived(fixture: &Fixture) -> Vec<RecordedRequest> {
    let all = fixture.upstream.take_recorded();
    all.into_iter()
        .filter(|head| head.target.contains(MARK) || head.target.contains("x-second"))
        .collect()
}

/// What a well-formed request of this caller looks like at upstream.
fn well_formed(head: &RecordedRequest, bearer: &str) {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_http1_requests_are_refused_or_forwarded_unambiguously() {
    let fixture = Fixture::start(small()).await;
    let bearer = format!("Bearer {}", fixture.upstream.admin_token());
    let path = format!("/api/v1/namespaces/team-00/pods/{MARK}");
    let get = format!("GET {path} HTTP/1.1\r\nHost: h\r\n");
    let auth = format!("Authorization: {bearer}\r\n");
    let post = format!("POST /api/v1/namespaces/{MARK}/configmaps HTTP/1.1\r\nHost: h\r\n{auth}");
    let second = format!("GET /x-second HTTP/1.1\r\nHost: h\r\n{auth}\r\n");
    fixture.upstream.take_recorded();
    // With the answers that are allowed; 0 stands for an end without one. A body that turns out to
    // be none after its head was sent on breaks the request off at upstream, which is told as a
    // 503.
    let trials: Vec<(&str, String, &[u16])> = vec![
        // Who asks.
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
        // Where one request ends.
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
            &[400, 503, 0],
        ),
        (
            "a chunk that is no number",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n0x1\r\n{second}"),
            &[400, 503, 0],
        ),
        (
            "LF in a chunk extension",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\n{second}"),
            &[400, 503, 0],
        ),
        // How lines end.
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
    ];
    let mut statuses = Vec::new();
    for (trial, (what, bytes, allowed)) in trials.iter().enumerate() {
        // What breaks off may be answered before it arrives: each trial is known at upstream by its
        // own mark.
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
        well_formed(head, &bearer);
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

    // Two identities: upstream gets both, in their order, and judges; none is dropped or added.
    let two = format!("{get}{auth}Authorization: Bearer nobodys-token\r\n\r\n");
    let raw = fixture
        .proxied
        .raw(two.as_bytes(), |text| text.contains("\r\n\r\n"))
        .await;
    let direct = fixture
        .direct
        .raw(two.as_bytes(), |text| text.contains("\r\n\r\n"))
        .await;
    let status = |text: &str| text.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(status(&raw.text), status(&direct.text));
    // Trials that broke off may still arrive.
    for head in arrived(&fixture)
        .iter()
        .filter(|head| head.target.ends_with(MARK))
    {
        let values: Vec<_> = head.headers.get_all("authorization").iter().collect();
        assert_eq!(values, [&bearer, "Bearer nobodys-token"]);
    }

    // What is not identity passes as it is: a chunk extension is of the client's hop, a bare LF
    // ends a line.
    let body = r#"{"metadata":{"name":"whole"}}"#;
    let post = format!(
        "POST /api/v1/namespaces/team-00/configmaps HTTP/1.1\r\nHost: h\r\n{auth}Content-Type: application/json\r\n"
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
    assert!(
        ["400", "404"].contains(&status(&raw.text).as_str()),
        "{}",
        raw.text
    );
    for head in arrived(&fixture) {
        well_formed(&head, &bearer);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_http2_requests_are_refused_or_forwarded_unambiguously() {
    let fixture = Fixture::start(small()).await;
    let bearer = format!("Bearer {}", fixture.upstream.admin_token());
    let path = format!("/api/v1/namespaces/team-00/pods/{MARK}");
    // What may come late is known by the mark of its trial; only what is asked for in another's
    // name has none.
    let usual: Vec<(&str, &str)> = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "proxy"),
        (":path", &path),
        ("authorization", &bearer),
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
    fixture.upstream.take_recorded();
    // Whether it may arrive, then as one well-formed request.
    let trials = [
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
    ];
    let mut answers = Vec::new();
    for (trial, (what, fields, _)) in trials.iter().enumerate() {
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
        let wanted = |f: &crate::support::frames::Received| {
            (f.stream == 1 && [HEADERS, RST_STREAM].contains(&f.kind)) || f.kind == GOAWAY
        };
        answers.push(within(what, frames.find(wanted)).await);
    }
    let all = arrived(&fixture);
    for head in &all {
        well_formed(head, &bearer);
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

    // A body that is shorter or longer than it was said to be never becomes an object.
    let body = r#"{"metadata":{"name":"short"}}"#;
    for said in [body.len() - 1, body.len() + 1] {
        let said = said.to_string();
        let mut frames = Frames::open(&fixture.proxied, 65_535).await;
        let fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "proxy"),
            (":path", "/api/v1/namespaces/team-00/configmaps"),
            ("authorization", &bearer),
            ("content-type", "application/json"),
            ("content-length", &said),
        ];
        frames
            .send(&frame(HEADERS, END_HEADERS, 1, &block(&fields)))
            .await;
        frames
            .send(&frame(DATA, END_STREAM, 1, body.as_bytes()))
            .await;
        let end = frames.find(|f| {
            (f.stream == 1 && [HEADERS, RST_STREAM].contains(&f.kind)) || f.kind == GOAWAY
        });
        within("an answer", end).await;
        let name = fixture
            .proxied
            .get(
                Protocol::Http2,
                "/api/v1/namespaces/team-00/configmaps/short",
            )
            .await;
        assert_eq!(name.status, 404, "said to be {said} long");
    }
    fixture.stop().await;
}
