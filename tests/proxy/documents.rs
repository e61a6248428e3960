//! Discovery from memory.
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Request, StatusCode};
use watershed_lab::sim::{PlannedRefusal, pods, widgets};

use crate::client::{Protocol, nothing, within};
use crate::rig::{Rig, small};

const ALL: &str = "/apis";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_shown_the_same_document() {
    let rig = Rig::start(small()).await;
    let direct = rig.direct.get(Protocol::Http2, ALL).await;
    let asked = || rig.upstream.stats().requests_on("GET", "");
    let before = asked();
    let began = Instant::now();
    let connection = rig.proxied.connect(Protocol::Http2).await.unwrap();
    let reads =
        (0..200).map(|_| async { connection.read(Request::get(ALL).body(nothing())?).await });
    for answer in within("200 documents", join_all(reads)).await {
        let answer = answer.unwrap();
        assert_eq!(answer.header("x-watershed-source"), "document");
        assert_eq!(answer.essence(), direct.essence());
    }
    // At most one a second and a few at the start, for as long as this machine takes.
    let (cost, most) = (asked() - before, 20 + 2 * began.elapsed().as_secs());
    assert!(
        cost < most.min(150),
        "200 readers at once cost upstream {cost}"
    );
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_no_older_than_a_second() {
    let rig = Rig::start(small()).await;
    for served in [false, true, false] {
        rig.proxied.get(Protocol::Http2, ALL).await;
        rig.upstream.state().serve_custom(&widgets(), served);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = rig.proxied.get(Protocol::Http2, ALL).await;
        assert_eq!(answer.header("x-watershed-source"), "document");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(text.contains(&*widgets().group), served, "{text}");
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_upstream_would_say_itself_is_left_to_it() {
    let rig = Rig::start(small()).await;
    rig.proxied.get(Protocol::Http2, ALL).await;
    // Nobody's token, no token, upstream in trouble.
    for token in ["nobody-has-this-token", ""] {
        let (ours, theirs) = (rig.proxied.as_user(token), rig.direct.as_user(token));
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
    rig.upstream
        .faults()
        .set(|active| active.refuse = Some(refusal));
    let answer = rig.proxied.get(Protocol::Http2, ALL).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    rig.upstream.faults().set(|active| active.refuse = None);
    assert_eq!(
        rig.proxied.get(Protocol::Http2, ALL).await.status,
        StatusCode::OK
    );
    let path = format!("/apis/{}/{}", widgets().group, pods().version);
    for path in [path.as_str(), "/api", "/version"] {
        let answer = rig.proxied.get(Protocol::Http2, path).await;
        assert_eq!(answer.header("x-watershed-source"), "document", "{path}");
    }
    rig.stop().await;
}
