//! Callers that upstream has not accepted: strangers, and whoever presents tokens that are none.
//! They cost upstream no more than they spend, and nobody else notices them.
use std::time::Duration;

use futures_util::future::join_all;
use http::{Method, Request, StatusCode};

use watershed::listener::TrustedProxies;
use watershed_lab::sim::RecordedRequest;

use crate::support::client::{BOTH, Endpoint, Protocol, nothing, within};
use crate::support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, block, frame, length};
use crate::support::{Fixture, eventually, small};

/// Bytes that TLS adds to what a client of these tests writes, and its handshake.
const TLS_BYTES: usize = 16 * 1024;

/// A literal header field that is put into the table of HPACK.
fn indexed(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0x40];
    for text in [name, value] {
        length(&mut out, text.len());
        out.extend(text.as_bytes());
    }
    out
}

/// Bytes of all heads that upstream received for a path.
fn received(fixture: &Fixture, path: &str) -> usize {
    let heads = fixture.upstream.take_recorded().into_iter();
    let heads = heads.filter(|head| head.target == path);
    heads
        .map(|head| {
            let fields = head.headers.iter();
            let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
            head.target.len() + fields.sum::<usize>()
        })
        .sum()
}

/// Sends requests for `/healthz` that name a field of 3,900 bytes `times` times each, a byte each
/// time. Returns the bytes sent.
async fn name_a_large_field(fixture: &Fixture, requests: u32, times: usize) -> usize {
    let mut frames = Frames::open(&fixture.proxied, 1 << 20).await;
    let head = block(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "proxy"),
        (":path", "/healthz"),
    ]);
    let mut sent = 0;
    for number in 0..requests {
        let mut head = head.clone();
        if number == 0 {
            head.extend(indexed("x-large", &"v".repeat(3_900)));
        }
        // The youngest field of the table has the index 62.
        head.extend(vec![0x80 + 62; times]);
        let frame = frame(HEADERS, END_STREAM | END_HEADERS, number * 2 + 1, &head);
        sent += frame.len();
        assert!(frames.send(&frame).await, "the connection stays open");
    }
    for _ in 0..requests {
        let answer = frames.find(|received| received.kind == HEADERS).await;
        assert!(answer.is_some(), "each request is answered");
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_header_fields_are_not_multiplied_at_upstream() {
    let fixture = Fixture::start(small()).await;
    for times in [31, 7, 1] {
        fixture.upstream.take_recorded();
        let sent = name_a_large_field(&fixture, 300, times).await;
        let received = received(&fixture, "/healthz");
        let limit = 20 * (sent + TLS_BYTES);
        assert!(
            received <= limit,
            "{times} times: upstream received {received} bytes for {sent}"
        );
    }
    // Clients that send what a client sends are served, as often as they like: strangers, and
    // users with a long token that they name with a byte.
    let token = "t".repeat(2_000);
    fixture.upstream.access().add_user(&token, "somebody", &[]);
    for token in ["", &token] {
        let client = fixture.proxied.as_user(token);
        let connection = client.connect(Protocol::Http2).await.unwrap();
        for _ in 0..300 {
            let request = Request::get("/healthz")
                .header("user-agent", "kube-probe/1.37")
                .header("accept", "*/*")
                .body(nothing())
                .unwrap();
            let answer = within("an answer", connection.read(request)).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK);
        }
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_heads_are_for_known_callers() {
    let fixture = Fixture::start(small()).await;
    let large = || {
        Request::get("/healthz")
            .header("x-large", "v".repeat(40_000))
            .body(nothing())
            .unwrap()
    };
    for protocol in BOTH {
        for stranger in ["", "token-of-nobody"] {
            let stranger = fixture.proxied.as_user(stranger);
            let answer = within("an answer", stranger.send(protocol, large()));
            let answer = answer.await.unwrap();
            assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
            assert_eq!(answer.header("x-watershed-source"), "limit");
        }
        // Upstream's answer to a forwarded request makes its caller known.
        let forwarded = fixture
            .proxied
            .get(protocol, "/api/v1/namespaces/team-00")
            .await;
        assert_eq!(forwarded.status, StatusCode::OK);
        assert_eq!(
            forwarded.header("x-watershed-source"),
            "forward; reason=consistent-read"
        );
        let answer = within("an answer", fixture.proxied.send(protocol, large()));
        assert_eq!(answer.await.unwrap().status, StatusCode::OK);
    }
    fixture.stop().await;
}

const LIST: &str = "/api/v1/pods?resourceVersion=0";

/// Sends requests with a random token each, on a few connections. Returns the statuses.
async fn guess_tokens(stranger: &Endpoint, requests: usize, path: &str) -> Vec<StatusCode> {
    const AT_A_TIME: usize = 100;
    let connections = 4;
    let guessing = (0..connections).map(async |_| {
        let mut statuses = Vec::new();
        while statuses.len() < requests / connections {
            // The first 401 is the last answer to new requests on a connection.
            let connection = stranger.connect(Protocol::Http2).await.unwrap();
            let answers = join_all((0..AT_A_TIME).map(|_| {
                let token = format!("Bearer {:032x}", fastrand::u128(..));
                let request = Request::get(path).header("authorization", token);
                connection.read(request.body(nothing()).unwrap())
            }));
            let answers = within("answers to guesses", answers).await;
            statuses.extend(answers.into_iter().flatten().map(|answer| answer.status));
        }
        statuses
    });
    join_all(guessing).await.concat()
}

/// Reads as a known caller until the attack is over. Each read has to be answered from memory.
async fn read_until<T>(known: &Endpoint, attack: tokio::task::JoinHandle<T>) -> T {
    let mut reads = 0;
    while !attack.is_finished() || reads < 3 {
        for protocol in BOTH {
            let answer = known.get(protocol, LIST).await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            assert_eq!(answer.header("x-watershed-source"), "snapshot");
            reads += 1;
        }
    }
    attack.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessed_tokens_cost_few_requests_at_upstream_and_affect_no_known_caller() {
    let fixture = Fixture::start(small()).await;
    fixture.proxied.get(Protocol::Http2, LIST).await;
    for path in [LIST, "/api/v1/namespaces/team-00"] {
        fixture.upstream.take_recorded();
        let stranger = fixture.proxied.as_user("");
        let attack = tokio::spawn(async move { guess_tokens(&stranger, 3_000, path).await });
        let statuses = read_until(&fixture.proxied, attack).await;
        let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
        let refused = count(StatusCode::UNAUTHORIZED);
        let limited = count(StatusCode::TOO_MANY_REQUESTS);
        // Reviews that take seconds, as upstream is short of CPU, are given up.
        let given_up = count(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            refused + limited + given_up,
            statuses.len(),
            "nobody gets in"
        );
        assert!(
            refused > 0 && given_up < statuses.len() / 2,
            "{given_up} given up"
        );
        let recorded = fixture.upstream.take_recorded();
        let reviews = recorded
            .iter()
            .filter(|head| head.method == Method::POST && head.target.ends_with("/tokenreviews"));
        let forwarded = recorded.iter().filter(|head| head.target == path);
        let cost = reviews.count() + forwarded.count();
        assert!(cost <= 400, "{path}: {cost} requests for 3,000 guesses");
        // Upstream is asked about one more token a second.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // A caller with a new token is served as soon as the guesses are over for a moment.
    let newcomer = fixture.proxied.as_user(fixture.upstream.viewer_token());
    eventually("a new caller to be served", async || {
        match newcomer.get(Protocol::Http2, LIST).await.status {
            StatusCode::OK => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_is_forwarded_after_its_caller_is_authenticated() {
    let fixture = Fixture::start(small()).await;
    let path = "/api/v1/namespaces/team-00/pods/some/exec?command=true";
    let upgrade = |token: &str| {
        let request = Request::post(path)
            .header("host", "proxy")
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .header("authorization", format!("Bearer {token}"));
        request.body(nothing()).unwrap()
    };
    let anybody = fixture.proxied.as_user("");
    fixture.upstream.take_recorded();
    let refused = anybody.send(Protocol::Http1, upgrade("token-of-nobody"));
    let refused = within("a refusal", refused).await.unwrap();
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let direct = fixture.direct.as_user("");
    let wanted = within(
        "a refusal",
        direct.send(Protocol::Http1, upgrade("token-of-nobody")),
    );
    assert_eq!(refused.body, wanted.await.unwrap().body);
    let asked = |recorded: Vec<RecordedRequest>| {
        let upgrades = recorded.iter().filter(|head| head.target == path);
        upgrades.count()
    };
    // One of them was asked directly.
    assert_eq!(asked(fixture.upstream.take_recorded()), 1);
    let admin = upgrade(fixture.upstream.admin_token());
    let answer = within("an answer", anybody.send(Protocol::Http1, admin))
        .await
        .unwrap();
    assert_ne!(answer.status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        asked(fixture.upstream.take_recorded()),
        1,
        "it is forwarded"
    );
    fixture.stop().await;
}

/// Upstream does not answer before it has the body, and those who send it hold no others up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_send_half_a_body_hold_nobody_up() {
    let fixture = Fixture::configured(small(), |config| {
        config.trusted_proxies = TrustedProxies::new(["127.0.0.0/8".parse().unwrap()]);
    })
    .await;
    let path = "/api/v1/namespaces/team-00/configmaps";
    let mut senders = Vec::new();
    // As many as upstream is asked for at a time, and as many of each address.
    for address in 1..=4 {
        for number in 0..16 {
            let token = format!("slow-{address}-{number}");
            fixture
                .upstream
                .access()
                .add_user(&token, &token, &["system:masters"]);
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\
                 X-Forwarded-For: 192.0.2.{address}\r\nContent-Type: application/json\r\n\
                 Content-Length: 1000\r\n\r\n{{"
            );
            senders.push(fixture.proxied.raw(head.as_bytes(), |_| true).await);
        }
    }
    let newcomer = fixture.proxied.as_user("");
    let put = Request::put(format!("{path}/any"))
        .header(
            "authorization",
            format!("Bearer {}", fixture.upstream.viewer_token()),
        )
        .header("x-forwarded-for", "192.0.2.9");
    let put = newcomer.send(Protocol::Http2, put.body(nothing()).unwrap());
    let answer = within("an answer", put).await.unwrap();
    assert_ne!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{answer:?}");
    drop(senders);
    fixture.stop().await;
}
