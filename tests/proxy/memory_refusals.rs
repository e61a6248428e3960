//! Requests for very large answers when memory is used up.
use http::StatusCode;
use tempfile::TempDir;
use watershed_lab::sim::{Options, Population, SimulatedServer, fixtures};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, Endpoint, Protocol};
use crate::support::program::Program;
use crate::support::{becomes, metric};

/// The memory limit of the program. What it takes without objects is less than half of it.
const LIMIT_MIB: usize = 96;
const OBJECT_BYTES: usize = 100 << 10;
/// The last step, as the metric shows it.
const REFUSE_ANSWERS: f64 = 6.0;

const ALL: &str = "/api/v1/configmaps?resourceVersion=0";
/// At version 0 the limit would not count.
const PAGE: &str = "/api/v1/configmaps?resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=5";

async fn get(proxied: &Endpoint, path: &str) -> Answer {
    proxied.get(Protocol::Http2, path).await
}

/// Creates objects that take as much memory as there is.
fn fill(upstream: &SimulatedServer) {
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let (namespace, padding) = (fixtures::namespace_name(0), "x".repeat(OBJECT_BYTES));
    for number in 0..(LIMIT_MIB << 20) / OBJECT_BYTES {
        let object = format!(
            r#"{{"metadata":{{"name":"o-{number:04}","namespace":"{namespace}"}},"data":{{"padding":"{padding}"}}}}"#
        );
        upstream.state().create(&configmaps, &object).unwrap();
    }
}

/// The type is always open, so that it is not closed for its size before the last step. It grows
/// once it is loaded: one that does not fit would not be loaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_large_answers_are_refused_at_the_last_step_and_small_ones_are_not() {
    let population = Population {
        namespaces: 1,
        ..Population::default()
    };
    let options = Options {
        population,
        ..Options::default()
    };
    let upstream = SimulatedServer::start(options).await.unwrap();
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.yaml");
    let text = "resources: [{resource: configmaps, cache: always}]\n";
    std::fs::write(&config, text).unwrap();
    let limit = format!("{LIMIT_MIB}Mi");
    let flags = [
        "--memory-limit",
        &limit,
        "--config",
        config.to_str().unwrap(),
    ];
    let program = Program::with(&upstream, &flags).await;
    let proxied = &program.proxied;
    assert_eq!(
        get(proxied, ALL).await.header("x-watershed-source"),
        "snapshot"
    );
    fill(&upstream);
    becomes("the step", REFUSE_ANSWERS, async || {
        metric(program.admin, "watershed_memory_pressure_step").await
    })
    .await;
    let state = format!("{ALL}&watch=1&timeoutSeconds=1");
    for large in [ALL, &state] {
        let refused = get(proxied, large).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{large}");
        assert_eq!(refused.header("x-watershed-source"), "limit");
        assert_eq!(refused.header("retry-after"), "10");
        // As in `apimachinery/pkg/api/errors` (NewTooManyRequests): clients read the seconds there.
        let status = refused.json();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["reason"], "TooManyRequests");
        assert_eq!(status["code"], 429);
        assert_eq!(status["details"]["retryAfterSeconds"], 10);
    }
    let version = upstream.state().version();
    let from_now = format!("/api/v1/configmaps?watch=1&resourceVersion={version}&timeoutSeconds=1");
    for small in [PAGE, &from_now] {
        let answer = get(proxied, small).await;
        assert_eq!(answer.status, StatusCode::OK, "{small}");
        let source = answer.header("x-watershed-source");
        assert!(["snapshot", "watch"].contains(&source), "{small}: {source}");
    }
    let refusals = "watershed_memory_releases_total{step=\"refuse-answers\"}";
    assert_eq!(metric(program.admin, refusals).await, 2.0);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}
