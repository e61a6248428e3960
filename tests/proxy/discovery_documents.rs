//! Discovery documents: they show what upstream shows when they are asked for, and many clients
//! cost upstream few requests.
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, StatusCode};
use watershed_lab::sim::{PlannedRefusal, RecordedRequest, SimulatedServer, widgets};

use crate::support::client::{
    Answer, Connection, Endpoint, Protocol, RequestBody, nothing, within,
};
use crate::support::program::Program;
use crate::support::{Fixture, eventually, plain_get, small};

const ALL: &str = "/apis";
const JSON: &str = "application/json";
const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
/// Documents that show the custom type, and their forms.
const DOCUMENTS: [(&str, &str); 4] = [
    ("/apis", JSON),
    ("/apis", AGGREGATED),
    ("/apis/example.com", JSON),
    ("/apis/example.com/v1", JSON),
];

fn ask((path, accept): (&str, &str)) -> Request<RequestBody> {
    let request = Request::get(path).header("accept", accept);
    request.body(nothing()).unwrap()
}

async fn read(from: &Endpoint, document: (&str, &str)) -> Answer {
    let answer = within(document.0, from.send(Protocol::Http2, ask(document)));
    answer.await.unwrap()
}

/// Returns `true` if a document shows the custom type.
fn shows(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    answer.status == StatusCode::OK && text.contains(&*widgets().group)
}

/// Opens connections for a thousand clients.
async fn connections(to: &Endpoint) -> Vec<Connection> {
    let opened = (0..20).map(|_| to.connect(Protocol::Http2));
    join_all(opened)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

/// Returns the number of requests for a path since the recording began.
fn asked(upstream: &SimulatedServer, path: &str) -> usize {
    let recorded = upstream.take_recorded();
    recorded.iter().filter(|head| head.target == path).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_document_shows_what_upstream_has_shown_before() {
    let fixture = Fixture::start(small()).await;
    for round in 0..25 {
        let served = round % 2 == 1;
        fixture.upstream.state().serve_custom(&widgets(), served);
        for document in DOCUMENTS {
            let direct = read(&fixture.direct, document).await;
            assert_eq!(shows(&direct), served, "{document:?}");
            let answer = read(&fixture.proxied, document).await;
            assert_eq!(answer.essence(), direct.essence(), "{round} {document:?}");
        }
    }
    let answer = read(&fixture.proxied, DOCUMENTS[0]).await;
    assert_eq!(answer.header("x-watershed-source"), "document");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_shared_only_by_requests_that_came_before_its_question() {
    let fixture = Fixture::start(small()).await;
    let upstream = &fixture.upstream;
    upstream.state().serve_custom(&widgets(), false);
    let counted = || upstream.stats().requests_on("GET", "");
    let before = counted();
    upstream
        .faults()
        .set(|active| active.hold = Some(ALL.to_owned()));
    let spawn = || {
        let proxied = fixture.proxied.clone();
        tokio::spawn(async move { read(&proxied, DOCUMENTS[0]).await })
    };
    let early = spawn();
    // Upstream has made its answer once it has counted the request.
    eventually("the first question", async || {
        let asked = counted() > before;
        asked.then_some(()).ok_or_else(|| "not yet".to_owned())
    })
    .await;
    upstream.state().serve_custom(&widgets(), true);
    let late = [spawn(), spawn(), spawn()];
    // They arrive while the first answer is on its way. If they do not, the test shows nothing.
    tokio::time::sleep(Duration::from_millis(200)).await;
    upstream.faults().set(|active| active.hold = None);
    early.await.unwrap();
    for late in late {
        assert!(shows(&late.await.unwrap()), "upstream showed it before");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_that_start_together_cost_a_handful_of_requests() {
    let fixture = Fixture::start(small()).await;
    let documents = [
        ("/api", AGGREGATED),
        ("/apis", AGGREGATED),
        ("/apis/apps/v1", JSON),
        ("/version", JSON),
    ];
    let mut direct = Vec::new();
    for document in documents {
        direct.push(read(&fixture.direct, document).await.essence().2);
    }
    let connections = connections(&fixture.proxied).await;
    fixture.upstream.take_recorded();
    let began = Instant::now();
    let clients = (0..1000).map(|client| {
        let connection = &connections[client % connections.len()];
        let direct = &direct;
        async move {
            for (document, direct) in documents.iter().zip(direct) {
                let answer = loop {
                    let answer = connection.read(ask(*document)).await.unwrap();
                    // A review may be late on a busy machine.
                    if answer.status != StatusCode::SERVICE_UNAVAILABLE {
                        break answer;
                    }
                };
                assert_eq!(answer.header("x-watershed-source"), "document");
                assert_eq!(answer.essence().2, *direct);
            }
        }
    });
    within("a thousand clients", join_all(clients)).await;
    let most = most_questions(began);
    let recorded = fixture.upstream.take_recorded();
    for (path, _) in documents {
        let cost = recorded.iter().filter(|head| head.target == path).count();
        assert!((1..=most).contains(&cost), "{path} cost {cost} requests");
    }
    fixture.stop().await;
}

/// Returns the upper bound of the questions about one document since then: five at once, and ten a
/// second for as long as this machine takes. The catalog may have read discovery once meanwhile.
fn most_questions(began: Instant) -> usize {
    7 + 10 * (1 + began.elapsed().as_secs() as usize)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_come_during_a_question_share_the_next() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    let connections = connections(&program.proxied).await;
    // Whoever asks is known by then.
    read(&program.proxied, DOCUMENTS[0]).await;
    let in_flight = async || {
        let text = plain_get(program.admin, "GET", "/metrics").await;
        let values = text.lines().filter_map(|line| {
            line.strip_prefix("watershed_requests_in_flight{")?
                .rsplit_once(' ')?
                .1
                .parse::<f64>()
                .ok()
        });
        values.sum::<f64>()
    };
    upstream
        .faults()
        .set(|active| active.hold = Some(ALL.to_owned()));
    upstream.take_recorded();
    let began = Instant::now();
    let clients: Vec<_> = (0..1000)
        .map(|client| {
            let connection = connections[client % connections.len()].clone();
            tokio::spawn(async move { connection.read(ask(DOCUMENTS[0])).await.unwrap() })
        })
        .collect();
    eventually("a thousand requests in flight", async || {
        match in_flight().await {
            1000.0 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    upstream.faults().set(|active| active.hold = None);
    for client in clients {
        let answer = within("a document", client).await.unwrap();
        assert_eq!(answer.header("x-watershed-source"), "document");
    }
    // Some of the thousand may be in flight and yet come to the question later.
    let most = most_questions(began);
    let cost = asked(&upstream, ALL);
    assert!((2..=most).contains(&cost), "they cost {cost} requests");
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_upstream_cannot_be_asked_about_are_not_shown() {
    let fixture = Fixture::start(small()).await;
    fixture.proxied.get(Protocol::Http2, ALL).await;
    // An unknown token, no token, and an upstream that fails.
    for token in ["nobody-has-this-token", ""] {
        let (ours, theirs) = (
            fixture.proxied.as_user(token),
            fixture.direct.as_user(token),
        );
        let (ours, theirs) = (
            ours.get(Protocol::Http2, ALL).await,
            theirs.get(Protocol::Http2, ALL).await,
        );
        assert_eq!(ours.essence(), theirs.essence());
        assert_ne!(ours.header("x-watershed-source"), "document");
    }
    let refusal = PlannedRefusal {
        count: u32::MAX,
        code: 500,
        retry_after: None,
        resource: Some(String::new()),
        verb: None,
    };
    fixture
        .upstream
        .faults()
        .set(|active| active.refuse = Some(refusal));
    let answer = fixture.proxied.get(Protocol::Http2, ALL).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    fixture.upstream.faults().set(|active| active.refuse = None);
    assert_eq!(
        fixture.proxied.get(Protocol::Http2, ALL).await.status,
        StatusCode::OK
    );
    for path in ["/apis/apps/v1", "/api", "/version"] {
        let answer = fixture.proxied.get(Protocol::Http2, path).await;
        assert_eq!(answer.header("x-watershed-source"), "document", "{path}");
    }
    fixture.stop().await;
}

/// A proxy on each of a thousand nodes asks for the release when it starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_is_asked_for_again_once_the_connection_of_its_answer_is_gone() {
    // As kubectl asks. The proxy itself asks for the release, too, in another form.
    const ANY: &str = "application/json, */*";
    let fixture = Fixture::start(small()).await;
    let version = async || {
        let answer = read(&fixture.proxied, ("/version", ANY)).await;
        assert_eq!(answer.header("x-watershed-source"), "document");
        assert_eq!(answer.status, StatusCode::OK);
    };
    let asked = || {
        let recorded = fixture.upstream.take_recorded();
        let is_for_client = |head: &&RecordedRequest| {
            head.target == "/version" && head.headers.get("accept").is_some_and(|it| it == ANY)
        };
        recorded.iter().filter(is_for_client).count()
    };
    asked();
    version().await;
    assert_eq!(asked(), 1);
    let begun = Instant::now();
    for _ in 0..5 {
        version().await;
    }
    let is_recent = begun.elapsed() < Duration::from_secs(30);
    assert!(asked() == 0 || !is_recent);
    fixture.upstream.faults().cut_connections();
    eventually("another question", async || {
        version().await;
        let asked = asked();
        (asked > 0).then_some(()).ok_or_else(|| asked.to_string())
    })
    .await;
    fixture.stop().await;
}

/// Upstream answers some of them with 415, whether there is a body or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_documents_that_name_another_content_type_than_json_are_forwarded() {
    let fixture = Fixture::start(small()).await;
    for (types, source) in [
        (&[][..], "document"),
        // Python's client sends it with each request.
        (&[JSON], "document"),
        (&["text/plain"], "forward; reason=not-a-resource"),
        (&[JSON, "text/plain"], "forward; reason=not-a-resource"),
    ] {
        let mut request = ask(("/version", JSON));
        for name in types {
            let value = HeaderValue::from_static(name);
            request.headers_mut().append(CONTENT_TYPE, value);
        }
        let sent = fixture.proxied.send(Protocol::Http2, request);
        let answer = within("/version", sent).await.unwrap();
        assert_eq!(answer.header("x-watershed-source"), source, "{types:?}");
    }
    fixture.stop().await;
}

/// A server chooses one of a few forms for each `Accept` header, of which there are any number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn media_types_that_a_client_makes_up_do_not_multiply_documents_in_memory() {
    const MADE_UP: u32 = 20;
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    let series = r#"watershed_memory_bytes{class="documents"}"#;
    let held = async || program.metric(series).await;
    let first = read(&program.proxied, (ALL, AGGREGATED)).await;
    assert_eq!(first.header("x-watershed-source"), "document");
    let once = held().await;
    assert!(once >= first.body.len() as f64, "{once}");
    for number in 0..MADE_UP {
        let made_up = format!("{AGGREGATED};number={number}");
        let answer = read(&program.proxied, (ALL, &made_up)).await;
        assert_eq!(answer.header("x-watershed-source"), "document");
        assert_eq!(answer.body, first.body);
    }
    // The key and the headers of each count, and the body counts once.
    let of_each = (held().await - once) / f64::from(MADE_UP);
    let body = first.body.len() as f64;
    assert!(of_each < body, "{of_each} bytes, and {body} of the body");
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_hangs_delays_no_other() {
    let fixture = Fixture::start(small()).await;
    let upstream = &fixture.upstream;
    upstream
        .faults()
        .set(|active| active.hold = Some(ALL.to_owned()));
    let proxied = fixture.proxied.clone();
    let hanging = tokio::spawn(async move { read(&proxied, DOCUMENTS[0]).await });
    // Types come and go meanwhile, and the other documents show it.
    for served in [false, true] {
        upstream.state().serve_custom(&widgets(), served);
        for document in &DOCUMENTS[2..] {
            assert_eq!(shows(&read(&fixture.proxied, *document).await), served);
        }
    }
    upstream.faults().set(|active| active.hold = None);
    assert_eq!(hanging.await.unwrap().status, StatusCode::OK);
    fixture.stop().await;
}
