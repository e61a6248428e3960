//! Grants of nodes rest on their pods with `--node-grants=follow-pods`, and on the clock without.
use std::fs;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use watershed::access::NodeGrantMode;
use watershed::app::AppConfig;
use watershed_lab::sim::{AccessRule, ActiveFaults, PlannedRefusal, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Lines, Next, Protocol};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, small};

const REVIEWS: &str = "subjectaccessreviews.authorization.k8s.io";
const NODES: [&str; 2] = ["east", "west"];

fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// Grants of the clock are as good as not remembered, so that reads tell which others are.
fn follow_pods(config: &mut AppConfig) {
    let authorization = &mut config.access.authorization;
    authorization.node_grants = NodeGrantMode::FollowPods;
    authorization.unwatched_allowed_ttl = Duration::from_millis(1);
    authorization.unwatched_denied_ttl = Duration::from_millis(1);
    config.access.authentication.token_ttl = Duration::from_hours(1);
}

fn pods() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "pods")
}

/// Creates a pod on a node that names some config maps.
fn create_pod(upstream: &SimulatedServer, name: &str, node: &str, maps: &[&str]) {
    let volumes = maps
        .iter()
        .map(|map| json!({"name": map, "configMap": {"name": map}}));
    let pod = json!({
        "metadata": {"name": name, "namespace": "team-00"},
        "spec": {"nodeName": node, "volumes": volumes.collect::<Vec<_>>(),
            "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running"},
    });
    upstream.state().create(&pods(), &pod.to_string()).unwrap();
}

fn delete_pod(fixture: &Fixture, name: &str) {
    let state = fixture.upstream.state();
    state.delete(&pods(), "team-00", name).unwrap();
}

/// Lets two nodes read config maps, as the node authorizer does: without a reason. Each has a pod
/// that names `shared`, and `east` has another one.
fn furnish(upstream: &SimulatedServer) {
    for node in NODES {
        let access = upstream.access();
        access.add_user(&format!("{node}-token"), &user(node), &["system:nodes"]);
        access.allow(AccessRule::read(&user(node), &["configmaps"]));
        create_pod(upstream, node, node, &["shared", node]);
    }
    create_pod(upstream, "second", "east", &["shared"]);
    for name in ["shared", "east", "west", "unnamed"] {
        write(upstream, name);
    }
}

fn write(upstream: &SimulatedServer, name: &str) {
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let map = json!({"metadata": {"name": name, "namespace": "team-00"}}).to_string();
    let state = upstream.state();
    if state.update(&configmaps, &map).is_err() {
        state.create(&configmaps, &map).unwrap();
    }
}

fn reviews(fixture: &Fixture) -> u64 {
    fixture.upstream.stats().requests_on("POST", REVIEWS)
}

fn path(map: &str) -> String {
    format!("/api/v1/namespaces/team-00/configmaps?fieldSelector=metadata.name%3D{map}")
}

/// Lists a config map, and returns the status and the number of reviews that it took.
async fn read(fixture: &Fixture, node: &str, map: &str) -> (u16, u64) {
    let before = reviews(fixture);
    let endpoint = fixture.proxied.as_user(&format!("{node}-token"));
    let path = format!("{}&resourceVersion=0", path(map));
    let answer = endpoint.get(Protocol::Http2, &path).await;
    (answer.status.as_u16(), reviews(fixture) - before)
}

/// Waits until reads of what pods name need no reviews.
async fn quiet(fixture: &Fixture) {
    for node in NODES {
        for map in ["shared", node] {
            let named = format!("{node} reads {map} without a review");
            becomes(&named, (200, 0), async || read(fixture, node, map).await).await;
        }
    }
}

async fn open_watch(fixture: &Fixture, node: &str, map: &str) -> Lines {
    let endpoint = fixture.proxied.as_user(&format!("{node}-token"));
    let snapshot = endpoint.get(Protocol::Http2, &path(map)).await.json();
    let version = snapshot["metadata"]["resourceVersion"].as_str().unwrap();
    watch_from(fixture, node, map, version).await
}

async fn watch_from(fixture: &Fixture, node: &str, map: &str, version: &str) -> Lines {
    let endpoint = fixture.proxied.as_user(&format!("{node}-token"));
    let path = format!("{}&watch=1&resourceVersion={version}", path(map));
    endpoint.watch(Protocol::Http2, &path).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_what_a_nodes_pods_name_need_no_further_reviews() {
    let fixture = Fixture::build(small(), furnish, follow_pods).await;
    quiet(&fixture).await;
    // What no pod on the node names is reviewed each time, as by default.
    for map in ["unnamed", "west"] {
        for _ in 0..3 {
            let (status, reviews) = read(&fixture, "east", map).await;
            assert!((status, reviews > 0) == (200, true), "{map}");
        }
    }
    // Changes of RBAC take nothing away that RBAC did not give.
    let roles = GroupVersionResource::new("rbac.authorization.k8s.io", "v1", "clusterroles");
    let role = json!({"metadata": {"name": "r"}, "rules": []}).to_string();
    fixture.upstream.state().create(&roles, &role).unwrap();
    // Nor does the loss of one pod while another one names the object.
    delete_pod(&fixture, "second");
    quiet(&fixture).await;
    delete_pod(&fixture, "east");
    fixture.upstream.access().deny_all(&user("east"));
    for map in ["shared", "east"] {
        becomes("what east reads", 403, async || {
            read(&fixture, "east", map).await.0
        })
        .await;
    }
    assert_eq!(read(&fixture, "west", "shared").await, (200, 0));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_each_grant_of_a_node_is_reviewed_by_the_clock() {
    let fixture = Fixture::build(small(), furnish, |config| {
        follow_pods(config);
        config.access.authorization.node_grants = NodeGrantMode::default();
    })
    .await;
    for _ in 0..3 {
        let (status, reviews) = read(&fixture, "east", "shared").await;
        assert!((status, reviews > 0) == (200, true));
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_a_node_ends_with_the_last_pod_that_names_its_object() {
    let fixture = Fixture::build(small(), furnish, follow_pods).await;
    quiet(&fixture).await;
    let mut shared = open_watch(&fixture, "east", "shared").await;
    let own = open_watch(&fixture, "east", "east").await;
    let mut west = open_watch(&fixture, "west", "shared").await;
    // A kubelet opens its watches again and again.
    let before = reviews(&fixture);
    for _ in 0..5 {
        drop(watch_from(&fixture, "west", "shared", "0").await);
    }
    assert_eq!(reviews(&fixture), before, "they are granted already");
    // Upstream would refuse east from now on. Nothing tells of it but the pods.
    fixture.upstream.access().deny_all(&user("east"));
    delete_pod(&fixture, "east");
    let (lines, end) = own.rest().await;
    assert_eq!((lines.len(), end), (0, Next::End));
    write(&fixture.upstream, "shared");
    for watch in [&mut shared, &mut west] {
        assert!(watch.line().await.contains("\"shared\""));
    }
    let before = reviews(&fixture);
    delete_pod(&fixture, "second");
    let (lines, end) = shared.rest().await;
    assert_eq!((lines.len(), end), (0, Next::End));
    assert!(reviews(&fixture) > before, "upstream decides");
    write(&fixture.upstream, "shared");
    assert!(west.line().await.contains("\"shared\""));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_nodes_are_reviewed_by_the_clock_while_pods_are_not_followed() {
    let fixture = Fixture::build(small(), furnish, follow_pods).await;
    quiet(&fixture).await;
    let refused = PlannedRefusal {
        count: u32::MAX,
        code: 503,
        retry_after: None,
        resource: Some("pods".to_owned()),
        verb: None,
    };
    let faults = fixture.upstream.faults();
    faults.set(|active| active.refuse = Some(refused));
    fixture.upstream.restart();
    eventually("reads are reviewed", async || {
        match read(&fixture, "east", "shared").await {
            (200, 1..) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let faults = fixture.upstream.faults();
    faults.set(|active| *active = ActiveFaults::default());
    quiet(&fixture).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metric_and_the_log_tell_that_no_pods_are_followed() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.yaml");
    fs::write(&config, "resources: [{resource: pods, cache: never}]\n").unwrap();
    let config = config.to_str().unwrap();
    let flags = ["--node-grants", "follow-pods", "--config", config];
    let program = Program::with(&upstream, &flags).await;
    let shown = program.admin("GET", "/metrics").await;
    assert!(
        shown.contains("\nwatershed_node_pods_following 0"),
        "{shown}"
    );
    program.until_logged(&["follow-pods has no effect"]).await;
    program.terminate().await;
    upstream.shutdown().await;
}
