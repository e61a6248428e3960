//! Discovery documents that are served from memory.
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Request, StatusCode};
use watershed_lab::sim::{PlannedRefusal, pods, widgets};

use crate::support::client::{Protocol, nothing, within};
use crate::support::{Fixture, small};

const ALL: &str = "/apis";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_callers_get_the_same_discovery_document() {
    let fixture = Fixture::start(small()).await;
    let direct = fixture.direct.get(Protocol::Http2, ALL).await;
    let asked = || fixture.upstream.stats().requests_on("GET", "");
    let before = asked();
    let began = Instant::now();
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let reads =
        (0..200).map(|_| async { connection.read(Request::get(ALL).body(nothing())?).await });
    for answer in within("200 documents", join_all(reads)).await {
        let answer = answer.unwrap();
        assert_eq!(answer.header("x-watershed-source"), "document");
        assert_eq!(answer.essence(), direct.essence());
    }
    // At most one request a second and a few at the start, for as long as this machine takes.
    let (cost, most) = (asked() - before, 20 + 2 * began.elapsed().as_secs());
    assert!(
        cost < most.min(150),
        "200 readers at once cost upstream {cost}"
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_discovery_document_is_at_most_one_second_old() {
    let fixture = Fixture::start(small()).await;
    for served in [false, true, false] {
        fixture.proxied.get(Protocol::Http2, ALL).await;
        fixture.upstream.state().serve_custom(&widgets(), served);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = fixture.proxied.get(Protocol::Http2, ALL).await;
        assert_eq!(answer.header("x-watershed-source"), "document");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(text.contains(&*widgets().group), served, "{text}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_errors_come_from_upstream() {
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
    tokio::time::sleep(Duration::from_secs(1)).await;
    let resource = Some(String::new());
    let refusal = PlannedRefusal {
        count: u32::MAX,
        code: 500,
        retry_after: None,
        resource,
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
    let path = format!("/apis/{}/{}", widgets().group, pods().version);
    for path in [path.as_str(), "/api", "/version"] {
        let answer = fixture.proxied.get(Protocol::Http2, path).await;
        assert_eq!(answer.header("x-watershed-source"), "document", "{path}");
    }
    fixture.stop().await;
}
