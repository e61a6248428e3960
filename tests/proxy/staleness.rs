//! An upstream that cannot be followed for longer than memory may be served.
use std::time::Duration;

use http::StatusCode;
use watershed::app::AppConfig;
use watershed::serve::ScopePolicy;
use watershed_lab::sim::{ActiveFaults, PlannedRefusal, pods};

use crate::support::client::{Answer, Next, Protocol};
use crate::support::{Fixture, becomes, eventually, plain_get, small};

const PODS: &str = "/api/v1/pods?resourceVersion=0";

/// Refuses requests until further notice.
fn refuse(active: &mut ActiveFaults, verb: Option<&str>) {
    active.refuse = Some(PlannedRefusal {
        count: u32::MAX,
        code: 503,
        retry_after: None,
        resource: verb.map(|_| "pods".to_owned()),
        verb: verb.map(str::to_owned),
    });
}

fn limited(limit: Duration) -> impl FnOnce(&mut AppConfig) {
    move |config| config.scopes.max_staleness = limit
}

/// Limits the staleness of pods alone.
fn limited_pods(config: &mut AppConfig) {
    let limit = ScopePolicy {
        max_staleness: Some(Duration::from_millis(300)),
        ..ScopePolicy::default()
    };
    config.policy.types.entry("", "pods").scope_policy = limit;
}

async fn list(fixture: &Fixture) -> Answer {
    fixture.proxied.get(Protocol::Http2, PODS).await
}

async fn source(fixture: &Fixture) -> String {
    let answer = list(fixture).await;
    answer.header("x-watershed-source").to_owned()
}

fn version(answer: &Answer) -> String {
    let version = &answer.json()["metadata"]["resourceVersion"];
    version.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_a_type_that_is_not_followed_tell_their_age() {
    let fixture = Fixture::configured(small(), limited(Duration::ZERO)).await;
    let answer = list(&fixture).await;
    assert_eq!(answer.header("x-watershed-source"), "snapshot");
    assert_eq!(answer.header("x-watershed-age"), "");
    let faults = fixture.upstream.faults();
    faults.set(|active| refuse(active, Some("WATCH")));
    faults.cut_watches();
    eventually("an age", async || {
        let answer = list(&fixture).await;
        assert_eq!(answer.header("x-watershed-source"), "snapshot", "no limit");
        let age = answer.header("x-watershed-age").to_owned();
        match age.parse::<u64>() {
            Ok(seconds) if seconds > 0 => Ok(()),
            _ => Err(format!("it is {age:?}")),
        }
    })
    .await;
    // A consistent list is proven by what upstream says now: it has no age.
    let proven = fixture.proxied.get(Protocol::Http2, "/api/v1/pods").await;
    assert_eq!(proven.header("x-watershed-age"), "", "{proven:?}");
    faults.set(|active| active.refuse = None);
    becomes("the age", String::new(), async || {
        list(&fixture).await.header("x-watershed-age").to_owned()
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_is_too_old_is_forwarded_and_its_watches_end() {
    let fixture = Fixture::configured(small(), limited_pods).await;
    let from = version(&list(&fixture).await);
    let path = format!("/api/v1/pods?watch=1&resourceVersion={from}");
    let watch = fixture.proxied.watch(Protocol::Http2, &path).await;
    let faults = fixture.upstream.faults();
    faults.set(|active| refuse(active, Some("WATCH")));
    faults.cut_watches();

    let forwarded = "forward; reason=max-staleness".to_owned();
    becomes("the source", forwarded.clone(), async || {
        source(&fixture).await
    })
    .await;
    let upstream = fixture.direct.get(Protocol::Http2, PODS).await;
    assert_eq!(list(&fixture).await.essence(), upstream.essence());
    assert_eq!(watch.rest().await, (vec![], Next::End), "without an ERROR");
    let refused = fixture.proxied.get(Protocol::Http2, &path).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.header("x-watershed-source"), forwarded);
    let ready = plain_get(fixture.admin, "GET", "/readyz").await;
    assert!(
        ready.starts_with("HTTP/1.1 200 "),
        "one type is not all: {ready}"
    );

    faults.set(|active| active.refuse = None);
    becomes("the source", "snapshot".to_owned(), async || {
        source(&fixture).await
    })
    .await;
    // The client goes on where its watch ended. After a list it would get 410.
    let key = fixture
        .upstream
        .state()
        .snapshot(&pods())
        .into_keys()
        .next();
    let key = key.unwrap();
    let (namespace, name) = key.split_once('/').unwrap();
    let mut watch = fixture.proxied.watch(Protocol::Http2, &path).await;
    let state = fixture.upstream.state();
    state.delete(&pods(), namespace, name).unwrap();
    let line = watch.line().await;
    assert!(line.starts_with(r#"{"type":"DELETED""#), "{line}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_again_and_again_does_not_keep_a_type_young() {
    let fixture = Fixture::configured(small(), limited(Duration::from_secs(4))).await;
    list(&fixture).await;
    let faults = fixture.upstream.faults();
    faults.set(|active| active.silent = true);
    becomes(
        "the source",
        "forward; reason=max-staleness".to_owned(),
        async || {
            // Each watch opens, says nothing and breaks.
            faults.cut_watches();
            source(&fixture).await
        },
    )
    .await;
    faults.set(|active| active.silent = false);
    becomes("the source", "snapshot".to_owned(), async || {
        source(&fixture).await
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_upstream_reads_get_503_and_readiness_fails() {
    let fixture = Fixture::configured(small(), limited(Duration::from_millis(300))).await;
    list(&fixture).await;
    let faults = fixture.upstream.faults();
    faults.set(|active| refuse(active, None));
    faults.cut_connections();
    becomes("the status", StatusCode::SERVICE_UNAVAILABLE, async || {
        list(&fixture).await.status
    })
    .await;
    let readiness = async || plain_get(fixture.admin, "GET", "/readyz?verbose").await;
    eventually("failed readiness", async || {
        let report = readiness().await;
        let failed = report.starts_with("HTTP/1.1 503 ")
            && report.contains("[-]max-staleness failed")
            && report.contains("[+]discovery ok");
        failed.then_some(()).ok_or(report)
    })
    .await;

    faults.set(|active| active.refuse = None);
    becomes("the source", "snapshot".to_owned(), async || {
        source(&fixture).await
    })
    .await;
    eventually("readiness", async || {
        let report = readiness().await;
        let ready = report.starts_with("HTTP/1.1 200 ");
        ready.then_some(()).ok_or(report)
    })
    .await;
    fixture.stop().await;
}
