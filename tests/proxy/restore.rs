//! Upstream's etcd is restored from a backup, or another cluster takes the place of the first:
//! versions go back, or mean another state. Nothing of the lost timeline is shown afterwards.
use std::time::{Duration, Instant};

use serde_json::json;
use watershed_lab::sim::{ClusterState, Options, Population, pods};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, Lines, Next, Protocol};
use crate::support::rbac::rbac;
use crate::support::{Fixture, at_leisure, becomes, eventually, has_counted, small};

const PODS: &str = "/api/v1/pods";
const CACHED_PODS: &str = "/api/v1/pods?resourceVersion=0";
const NODES: &str = "/api/v1/nodes";
const CACHED_NODES: &str = "/api/v1/nodes?resourceVersion=0";

fn core(resource: &str) -> GroupVersionResource {
    GroupVersionResource::new("", "v1", resource)
}

fn create_pods(state: &ClusterState, name: &str, count: usize) {
    for n in 0..count {
        let text = json!({"metadata": {"name": format!("{name}-{n}"), "namespace": "default"}});
        state.create(&pods(), &text.to_string()).unwrap();
    }
}

/// Writes objects that nobody reads.
fn create_configmaps(state: &ClusterState, name: &str, count: usize) {
    for n in 0..count {
        let text = json!({"metadata": {"name": format!("{name}-{n}"), "namespace": "default"}});
        state
            .create(&core("configmaps"), &text.to_string())
            .unwrap();
    }
}

fn label_node(state: &ClusterState, label: &str) {
    let text = json!({"metadata": {"name": "node-001", "labels": {"label": label}}});
    state.update(&core("nodes"), &text.to_string()).unwrap();
}

fn source(answer: &Answer) -> &str {
    answer.header("x-watershed-source")
}

fn version(answer: &Answer) -> u64 {
    answer.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Returns the names and versions of a list's objects.
fn objects(answer: &Answer) -> Vec<(String, String)> {
    let text = |item: &serde_json::Value, member: &str| {
        item["metadata"][member].as_str().unwrap().to_owned()
    };
    let list = answer.json();
    let items = list["items"]
        .as_array()
        .unwrap_or_else(|| panic!("no list: {answer:?}"));
    items
        .iter()
        .map(|item| (text(item, "name"), text(item, "resourceVersion")))
        .collect()
}

async fn cached(fixture: &Fixture, path: &str) -> Answer {
    fixture.proxied.get(Protocol::Http2, path).await
}

/// Waits until a list is answered from memory and has upstream's objects.
async fn becomes_upstreams(fixture: &Fixture, path: &str) {
    eventually(path, async || {
        let ours = cached(fixture, path).await;
        let theirs = fixture.direct.get(Protocol::Http2, path).await;
        match (source(&ours), objects(&ours) == objects(&theirs)) {
            ("snapshot", true) => Ok(()),
            (source, equal) => Err(format!("from {source}, equal to upstream's: {equal}")),
        }
    })
    .await;
}

/// Waits until the cache has reached the version that upstream is at.
async fn catches_up(fixture: &Fixture, path: &str) {
    let now = fixture.upstream.state().version();
    eventually(path, async || {
        let answer = cached(fixture, path).await;
        match (source(&answer), version(&answer)) {
            ("snapshot", at) if at >= now => Ok(()),
            other => Err(format!("{other:?}, upstream is at {now}")),
        }
    })
    .await;
}

async fn watch_from_now(fixture: &Fixture, path: &str) -> Lines {
    let from = version(&cached(fixture, &format!("{path}?resourceVersion=0")).await);
    let path = format!("{path}?watch=1&resourceVersion={from}");
    fixture.proxied.watch(Protocol::Http2, &path).await
}

/// Reads a watch to its end, which must be 410 with nothing before it.
async fn assert_expires(watch: Lines) {
    let (lines, end) = watch.rest().await;
    let lines: Vec<_> = lines
        .iter()
        .map(|line| String::from_utf8_lossy(line))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains(r#""type":"ERROR""#) && lines[0].contains("410"),
        "a watch of the lost timeline showed {lines:?}"
    );
    assert_eq!(end, Next::End);
}

fn quiet(pods: usize) -> Options {
    Options {
        population: Population {
            nodes: 2,
            namespaces: 2,
            pods,
            ..Population::default()
        },
        ..small()
    }
}

async fn with_checks(options: Options) -> Fixture {
    Fixture::configured(options, |config| {
        config.scopes.rollback_check = Duration::from_millis(200);
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_lists_are_right_at_once_after_a_restore() {
    // A small type is compared object by object, a large one is not.
    for population in [20, 300] {
        let fixture = Fixture::start(quiet(population)).await;
        let state = fixture.upstream.state();
        cached(&fixture, CACHED_PODS).await;
        let backup = state.branch();
        create_pods(state, "lost", 20);
        create_pods(&backup, "new", 3);
        catches_up(&fixture, CACHED_PODS).await;
        fixture.upstream.restore(&backup);
        for _ in 0..30 {
            let ours = fixture.proxied.get(Protocol::Http2, PODS).await;
            let theirs = fixture.direct.get(Protocol::Http2, PODS).await;
            assert_eq!(objects(&ours), objects(&theirs), "from {}", source(&ours));
        }
        becomes("the list's source", "linearizable".to_owned(), async || {
            source(&fixture.proxied.get(Protocol::Http2, PODS).await).to_owned()
        })
        .await;
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_ends_all_watches_with_410_even_if_nobody_reads() {
    let fixture = with_checks(small()).await;
    let state = fixture.upstream.state();
    cached(&fixture, CACHED_PODS).await;
    cached(&fixture, CACHED_NODES).await;
    let backup = state.branch();
    create_pods(state, "lost", 20);
    label_node(state, "lost");
    catches_up(&fixture, CACHED_PODS).await;
    catches_up(&fixture, CACHED_NODES).await;
    let watches = [
        watch_from_now(&fixture, PODS).await,
        watch_from_now(&fixture, NODES).await,
        // It waits for a version of the lost timeline.
        fixture
            .proxied
            .watch(
                Protocol::Http1,
                &format!("{PODS}?watch=1&resourceVersion={}", state.version()),
            )
            .await,
    ];
    fixture.upstream.restore(&backup);
    for watch in watches {
        assert_expires(watch).await;
    }
    becomes_upstreams(&fixture, CACHED_PODS).await;
    becomes_upstreams(&fixture, CACHED_NODES).await;
    // From then on all is as ever.
    let mut watch = watch_from_now(&fixture, PODS).await;
    create_pods(state, "new", 1);
    assert!(watch.line().await.contains(r#""name":"new-0""#));
    let series = r#"watershed_upstream_rollbacks_total{evidence="version"}"#;
    assert!(has_counted(fixture.admin, series, 1).await);
    drop(watch);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_is_noticed_even_if_upstream_has_passed_the_lost_versions() {
    let fixture = Fixture::start(small()).await;
    let state = fixture.upstream.state();
    cached(&fixture, CACHED_PODS).await;
    let backup = state.branch();
    create_pods(state, "lost", 10);
    create_pods(&backup, "new", 30);
    catches_up(&fixture, CACHED_PODS).await;
    let watch = watch_from_now(&fixture, PODS).await;
    // The versions after the last known one are there, and mean another state.
    fixture.upstream.restore(&backup);
    assert_expires(watch).await;
    becomes_upstreams(&fixture, CACHED_PODS).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_is_noticed_for_a_type_that_was_idle_before_it() {
    let fixture = Fixture::start(small()).await;
    let state = fixture.upstream.state();
    cached(&fixture, CACHED_NODES).await;
    let backup = state.branch();
    // What is lost is of a type that nobody reads. Only bookmarks lead past it.
    create_configmaps(state, "lost", 20);
    label_node(&backup, "new");
    create_configmaps(&backup, "new", 30);
    catches_up(&fixture, CACHED_NODES).await;
    let watch = watch_from_now(&fixture, NODES).await;
    fixture.upstream.restore(&backup);
    assert_expires(watch).await;
    becomes_upstreams(&fixture, CACHED_NODES).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_behind_the_same_address_is_noticed_by_its_identity() {
    let fixture = with_checks(small()).await;
    let state = fixture.upstream.state();
    cached(&fixture, CACHED_NODES).await;
    let other = state.branch();
    other
        .delete(&core("namespaces"), "", "kube-system")
        .unwrap();
    let text = json!({"metadata": {"name": "kube-system"}}).to_string();
    other.create(&core("namespaces"), &text).unwrap();
    // Its versions are higher, and its nodes are the same.
    create_configmaps(&other, "new", 30);
    // The identity of the first cluster is known by now.
    becomes("questions about namespaces", true, async || {
        fixture.upstream.stats().requests_on("LIST", "namespaces") > 1
    })
    .await;
    let watch = watch_from_now(&fixture, NODES).await;
    fixture.upstream.restore(&other);
    assert_expires(watch).await;
    let series = r#"watershed_upstream_rollbacks_total{evidence="cluster"}"#;
    assert!(has_counted(fixture.admin, series, 1).await);
    becomes_upstreams(&fixture, CACHED_NODES).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_of_the_lost_timeline_are_dropped() {
    const HERE: &str = "/api/v1/namespaces/default/configmaps?resourceVersion=0";
    let hour = Duration::from_hours(1);
    let fixture = Fixture::configured(small(), |config| {
        config.access.authorization.allowed_ttl = hour;
        config.access.authentication.token_ttl = hour;
    })
    .await;
    let state = fixture.upstream.state();
    fixture.upstream.access().add_user("ann-token", "ann", &[]);
    fixture
        .upstream
        .access()
        .add_user("bob-token", "bob", &["system:masters"]);
    let backup = state.branch();
    let grant = json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    });
    state
        .create(&rbac("clusterroles"), &grant.to_string())
        .unwrap();
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "reader"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "ann"}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reader"},
    });
    state
        .create(&rbac("clusterrolebindings"), &binding.to_string())
        .unwrap();
    create_configmaps(state, "lost", 5);
    let status = async |user: &str, path: &str| {
        let endpoint = fixture.proxied.as_user(user);
        endpoint.get(Protocol::Http2, path).await.status.as_u16()
    };
    becomes("ann may", 200, async || status("ann-token", HERE).await).await;
    assert_eq!(status("bob-token", HERE).await, 200);
    catches_up(&fixture, HERE).await;
    fixture.upstream.restore(&backup);
    fixture.upstream.access().revoke("bob-token");
    // The first consistent read tells, unless its proof is late.
    let consistent = "/api/v1/namespaces/default/configmaps";
    let begun = Instant::now();
    let ann = async || {
        fixture.proxied.get(Protocol::Http2, consistent).await;
        status("ann-token", HERE).await
    };
    let first = ann().await;
    assert!(first == 403 || !at_leisure(begun), "{first}");
    becomes("ann may not", 403, ann).await;
    becomes("bob is not known", 401, async || {
        status("bob-token", HERE).await
    })
    .await;
    fixture.stop().await;
}
