//! A proxy that is started while the API server cannot be asked for its types. It is not ready,
//! forwards requests, and goes on asking.
use watershed::app::AppConfig;
use watershed_lab::sim::{ActiveFaults, BadAnswer, BadAnswers, PlannedRefusal, SimulatedServer};

use crate::node_start::{NODE, on_node};
use crate::support::client::Protocol;
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, plain_get, small};

const PODS: &str = "/api/v1/pods?resourceVersion=0";

fn refused(code: u16, retry_after: Option<u32>) -> ActiveFaults {
    ActiveFaults {
        refuse: Some(PlannedRefusal {
            count: u32::MAX,
            code,
            retry_after,
            resource: None,
            verb: None,
        }),
        ..ActiveFaults::default()
    }
}

fn bad(answer: BadAnswer) -> ActiveFaults {
    ActiveFaults {
        bad_answers: Some(BadAnswers {
            count: u32::MAX,
            answer,
            resource: None,
            verb: None,
        }),
        ..ActiveFaults::default()
    }
}

/// Starts a proxy during a fault, ends the fault, and waits until memory answers.
async fn starts_during(fault: ActiveFaults) {
    starts_configured_during(fault, |_| {}, PODS).await;
}

/// The same of the proxy of a node.
async fn starts_on_node_during(fault: ActiveFaults) {
    let pods = format!("{PODS}&fieldSelector=spec.nodeName%3D{NODE}");
    starts_configured_during(fault, on_node, &pods).await;
}

async fn starts_configured_during(
    fault: ActiveFaults,
    configure: impl FnOnce(&mut AppConfig),
    pods: &str,
) {
    let shown = format!("{fault:?}");
    let prepare = |upstream: &SimulatedServer| {
        upstream.faults().set(|active| *active = fault);
    };
    let fixture = Fixture::build(small(), prepare, configure).await;
    let asked = |path| plain_get(fixture.admin, "GET", path);
    let livez = asked("/livez").await;
    assert!(livez.starts_with("HTTP/1.1 200 "), "{shown}: {livez}");
    let readyz = asked("/readyz").await;
    assert!(readyz.starts_with("HTTP/1.1 503 "), "{shown}: {readyz}");
    assert!(readyz.contains("[-]discovery failed"), "{shown}: {readyz}");
    let faults = fixture.upstream.faults();
    faults.set(|active| *active = ActiveFaults::default());
    let forwarded = fixture.proxied.get(Protocol::Http2, pods).await;
    assert_eq!(forwarded.status, 200, "{shown}");
    eventually(&shown, async || {
        let readyz = asked("/readyz").await;
        if readyz.starts_with("HTTP/1.1 200 ") {
            Ok(())
        } else {
            Err(readyz)
        }
    })
    .await;
    becomes(&shown, "snapshot".to_owned(), async || {
        let list = fixture.proxied.get(Protocol::Http2, pods).await;
        list.header("x-watershed-source").to_owned()
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_starts_while_upstream_refuses_discovery_asks_again() {
    for (code, retry_after) in [
        (503, None),
        (429, Some(1)),
        (500, None),
        (401, None),
        (403, None),
    ] {
        starts_during(refused(code, retry_after)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_starts_while_upstream_answers_with_garbage_asks_again() {
    for answer in [BadAnswer::NotFound, BadAnswer::Page, BadAnswer::Garbage] {
        starts_during(bad(answer)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_starts_while_upstream_is_silent_asks_again() {
    starts_during(bad(BadAnswer::Silence)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_proxy_that_starts_while_upstream_fails_asks_again() {
    for code in [503, 401, 403] {
        starts_on_node_during(refused(code, None)).await;
    }
    for answer in [BadAnswer::Page, BadAnswer::Silence] {
        starts_on_node_during(bad(answer)).await;
    }
}

/// Alerts are built on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_show_whether_a_proxy_is_ready() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let faults = upstream.faults();
    faults.set(|active| *active = refused(503, None));
    let program = Program::unready(&upstream).await;
    let readiness = async || program.metric("watershed_ready").await;
    let shown = program.admin("GET", "/metrics").await;
    assert!(shown.contains("\nwatershed_ready 0\n"), "{shown}");
    faults.set(|active| *active = ActiveFaults::default());
    becomes("readiness afterwards", 1.0, readiness).await;
    program.kill().await;
    upstream.shutdown().await;
}
