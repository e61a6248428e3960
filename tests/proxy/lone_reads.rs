//! Consistent reads that come alone. Nothing in their way waits for a timer, so they take as long
//! as what upstream does for them.
use std::time::{Duration, Instant};

use tokio::time;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::sim::{SimulatedServer, pods};
use watershed_protocol::GroupVersionResource;

use crate::consistent_reads::{PODS, pod_keys, pod_path, quiet, some_pod, source};
use crate::support::client::Protocol;
use crate::support::{Fixture, PATIENCE, unless_stalled};

/// Too many to be compared for nothing.
const MANY: usize = 2000;

/// Writes another type, so that upstream's version moves.
fn write_elsewhere(upstream: &SimulatedServer, name: &str) {
    let namespaces = GroupVersionResource::new("", "v1", "namespaces");
    let text = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    upstream.state().create(&namespaces, &text).unwrap();
}

/// Does something while time stands still. Returns an error if it waited for a timer.
async fn without_timers<T>(work: impl Future<Output = T>) -> Result<T, String> {
    time::pause();
    // The clock moves on only when every task waits. After a while it may, so that a timer that is
    // waited for shows itself.
    let until = Instant::now() + PATIENCE / 10;
    let busy = tokio::spawn(async move {
        while Instant::now() < until {
            tokio::task::yield_now().await;
        }
    });
    let busy = AbortOnDropHandle::new(busy);
    let began = time::Instant::now();
    let done = work.await;
    let waited = began.elapsed();
    drop(busy);
    time::resume();
    if waited.is_zero() {
        Ok(done)
    } else {
        Err(format!("a timer of {waited:?} was waited for"))
    }
}

/// Starts a proxy that has read pods consistently, knows how their proofs come, and has its
/// connections to upstream.
async fn warm(pods: usize) -> Fixture {
    let fixture = Fixture::start(quiet(pods)).await;
    for round in 0..2 {
        for path in [PODS, "/api/v1/namespaces/none/pods/none"] {
            fixture.proxied.get(Protocol::Http2, path).await;
        }
        write_elsewhere(&fixture.upstream, &format!("warm-{round}"));
    }
    fixture
}

/// Reads a path while time stands still. Returns the source of the answer.
async fn read_alone(fixture: &Fixture, path: &str) -> Result<String, String> {
    let answer = Box::pin(fixture.proxied.get(Protocol::Http2, path));
    let answer = without_timers(answer).await?;
    assert_eq!(answer.status, 200);
    Ok(source(&answer).to_owned())
}

fn expect(what: &str, wanted: &str, got: &str) -> Result<(), String> {
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what} came from {got}"))
    }
}

#[tokio::test]
async fn lists_and_gets_of_an_idle_type_wait_for_upstream_alone() {
    unless_stalled("lone reads", async || {
        for objects in [20, MANY] {
            let fixture = warm(objects).await;
            let (namespace, name) = some_pod(&fixture);
            let get = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let got = read_alone(&fixture, PODS).await?;
            expect("a list", "linearizable", &got)?;
            let got = read_alone(&fixture, &get).await?;
            expect("a get", "forward; reason=consistent-read", &got)?;
            if objects == MANY {
                let got = read_alone(&fixture, &format!("{PODS}?limit=10")).await?;
                expect("a page", "forward; reason=unproven", &got)?;
            }
            fixture.stop().await;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_begins_with_the_state_of_an_idle_type_waits_for_upstream_alone() {
    unless_stalled("a lone watch", async || {
        let fixture = warm(MANY).await;
        let path = format!(
            "{PODS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
             &allowWatchBookmarks=true"
        );
        let before = fixture.upstream.stats().requests_on("LIST", "pods");
        let state = Box::pin(async {
            let mut lines = fixture.proxied.watch(Protocol::Http2, &path).await;
            while lines.line().await.starts_with(r#"{"type":"ADDED""#) {}
        });
        without_timers(state).await?;
        let asked = fixture.upstream.stats().requests_on("LIST", "pods") - before;
        fixture.stop().await;
        expect("the state", "1 question", &format!("{asked} question"))
    })
    .await;
}

#[tokio::test]
async fn cheap_reads_do_not_wait_for_events_that_were_too_late_for_others() {
    unless_stalled("cheap reads", async || {
        let fixture = Fixture::start(quiet(MANY)).await;
        fixture
            .proxied
            .get(Protocol::Http2, &format!("{PODS}?resourceVersion=0"))
            .await;
        // Events come, but the version that upstream names is that of a write to another type.
        let (namespace, name) = some_pod(&fixture);
        let state = fixture.upstream.state();
        state.delete(&pods(), &namespace, &name).unwrap();
        write_elsewhere(&fixture.upstream, "other");
        let page = format!("{PODS}?limit=10");
        // This one waits for the event that would bring it.
        fixture.proxied.get(Protocol::Http2, &page).await;
        let before = fixture.upstream.stats().requests_on("LIST", "pods");
        let got = read_alone(&fixture, &page).await?;
        let asked = fixture.upstream.stats().requests_on("LIST", "pods") - before;
        fixture.stop().await;
        expect(
            "a page",
            "forward; reason=unproven, 1",
            &format!("{got}, {asked}"),
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_get_after_a_crowd_is_forwarded_at_once() {
    unless_stalled("a lone get", async || {
        let fixture = warm(20).await;
        let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
        let keys = pod_keys(&fixture);
        let get = |key: &String| {
            let request = http::Request::get(pod_path(key));
            let nothing = crate::support::client::nothing();
            connection.read(request.body(nothing).unwrap())
        };
        let crowd = keys.iter().cycle().take(100).map(get);
        let crowd = futures_util::future::join_all(crowd).await;
        let shared = crowd.into_iter().map(Result::unwrap);
        let shared = shared
            .filter(|answer| source(answer) == "linearizable")
            .count();
        // Longer than any pause of the crowd.
        time::sleep(Duration::from_millis(300)).await;
        let alone = get(&keys[0]).await.unwrap();
        fixture.stop().await;
        expect(
            "a lone get",
            "forward; reason=consistent-read",
            source(&alone),
        )?;
        if shared > 0 {
            Ok(())
        } else {
            Err("there was no crowd".to_owned())
        }
    })
    .await;
}
