//! The requests that a node's proxy sends upstream until the agents of the node have what they
//! watch.
use std::collections::BTreeMap;
use std::time::Instant;

use watershed::app::AppConfig;
use watershed::serve::CachingPolicy;
use watershed_lab::sim::{
    AccessRule, BadAnswer, BadAnswers, PlannedRefusal, RecordedRequest, SimulatedServer,
};

use crate::support::client::{Lines, Protocol};
use crate::support::{Fixture, at_leisure, becomes, plain_get, small};

pub(crate) const NODE: &str = "node-001";
pub(crate) const AGENTS: [&str; 3] = ["cni", "logs", "metrics"];
pub(crate) const RBAC: [&str; 4] = [
    "roles",
    "rolebindings",
    "clusterroles",
    "clusterrolebindings",
];

fn add_agents(upstream: &SimulatedServer) {
    for agent in AGENTS {
        upstream.access().add_user(agent, agent, &[]);
        let rule = AccessRule::read(agent, &["pods", "nodes"]);
        upstream.access().allow(rule);
    }
    upstream.take_recorded();
}

/// Configures the proxy of a node.
pub(crate) fn on_node(config: &mut AppConfig) {
    config.policy = CachingPolicy::of_node(NODE);
    config.policy.scope_policy.derive_json = Some(false);
    config.access = config.access.clone().on_node();
}

/// Opens the watches of an agent, and returns them once they have brought their states.
pub(crate) async fn start_agent(fixture: &Fixture, token: &str) -> Vec<Lines> {
    let agent = fixture.proxied.as_user(token);
    let mut watches = Vec::new();
    for (resource, field) in [("pods", "spec.nodeName"), ("nodes", "metadata.name")] {
        let path = format!(
            "/api/v1/{resource}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
             &resourceVersionMatch=NotOlderThan&timeoutSeconds=86400\
             &fieldSelector={field}%3D{NODE}"
        );
        let mut watch = agent.watch(Protocol::Http2, &path).await;
        while !watch.line().await.contains("initial-events-end") {}
        watches.push(watch);
    }
    watches
}

/// The types of RBAC that grant what the agents watch.
const RBAC_OF_THE_CLUSTER: [&str; 2] = ["clusterroles", "clusterrolebindings"];

/// Waits until the proxy watches the types of RBAC that grant what the agents watch.
pub(crate) async fn until_rbac_is_watched(fixture: &Fixture) {
    until_watched(fixture, &RBAC_OF_THE_CLUSTER).await;
}

/// Waits until the proxy watches all types of RBAC.
pub(crate) async fn until_all_rbac_is_watched(fixture: &Fixture) {
    until_watched(fixture, &RBAC).await;
}

async fn until_watched(fixture: &Fixture, resources: &[&str]) {
    for resource in resources {
        let resource = format!("{resource}.rbac.authorization.k8s.io");
        becomes("the proxy's watches", Some(1), async || {
            let stats = fixture.upstream.stats();
            stats.open_watches.get(&resource).copied()
        })
        .await;
    }
}

/// Returns a request's kind: its method and path, and whether it is a watch.
pub(crate) fn kind(request: &RecordedRequest) -> String {
    let target = request.target.as_str();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let name = path.rsplit('/').next().unwrap_or_default();
    if query.starts_with("watch=1") {
        format!("watch {name}")
    } else {
        format!("{} {name}", request.method)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_proxy_begins_each_scope_with_one_request_and_reads_little_else() {
    let started = Instant::now();
    let fixture = Fixture::build(small(), add_agents, on_node).await;
    let has_begun_unread = at_leisure(started);
    let began = Instant::now();
    let first = start_agent(&fixture, AGENTS[0]).await;
    until_rbac_is_watched(&fixture).await;
    becomes("the proxy's questions", true, async || {
        fixture.upstream.stats().requests_on("GET", "") >= 1
    })
    .await;
    let mut asked = BTreeMap::<String, usize>::new();
    for request in fixture.upstream.take_recorded() {
        *asked.entry(kind(&request)).or_default() += 1;
    }
    // Each right is reviewed once more when the proxy has followed RBAC for two seconds.
    let rights = asked.remove("POST subjectaccessreviews");
    let is_expected = |rights: usize| rights >= 2 && (rights <= 4 || !at_leisure(began));
    assert!(rights.is_some_and(is_expected), "{rights:?}");
    // A proxy that RBAC's list comes too late for reads discovery after all.
    if !has_begun_unread {
        asked.retain(|kind, _| !DOCUMENTS.contains(&kind.as_str()));
    }
    let expected: BTreeMap<_, _> = [
        // The release that prints the objects: another one later has them read again.
        ("GET version", 1),
        ("POST tokenreviews", 1),
        ("watch pods", 1),
        ("watch nodes", 1),
        // The ends of the agent's grants.
        ("watch clusterroles", 1),
        ("watch clusterrolebindings", 1),
    ]
    .into();
    let mut asked: BTreeMap<_, _> = asked.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
    // A request that is not answered in time is sent again.
    if !at_leisure(started) {
        for number in asked.values_mut() {
            *number = 1;
        }
    }
    assert_eq!(asked, expected);

    // The others begin later, so what is held has to be proven for each of them.
    let began = Instant::now();
    let second = start_agent(&fixture, AGENTS[1]).await;
    let third = start_agent(&fixture, AGENTS[2]).await;
    let more = fixture.upstream.take_recorded();
    let mut reads: Vec<_> = more.iter().map(kind).collect();
    reads.retain(|kind| !kind.starts_with("POST"));
    assert!(reads.len() <= 4 || !at_leisure(began), "{reads:?}");
    let proofs = ["GET pods", "GET nodes"];
    assert!(
        reads.iter().all(|kind| proofs.contains(&kind.as_str())),
        "{reads:?}"
    );
    drop((first, second, third));
    fixture.stop().await;
}

/// The documents of discovery, as [`kind`] names requests for them.
const DOCUMENTS: [&str; 2] = ["GET api", "GET apis"];

/// Asks the proxy and the API server. Returns the reason for which the proxy forwarded the request.
async fn forwarded(fixture: &Fixture, path: &str) -> String {
    let direct = fixture.direct.get(Protocol::Http2, path).await;
    let proxied = fixture.proxied.get(Protocol::Http2, path).await;
    let shown = (proxied.status, &proxied.body);
    assert_eq!(shown, (direct.status, &direct.body), "{path}");
    proxied.header("x-watershed-source").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_proxy_answers_as_upstream_does_for_types_that_it_did_not_ask_for() {
    let without_leases = |upstream: &SimulatedServer| {
        upstream.take_recorded();
        upstream.faults().set(|active| {
            active.bad_answers = Some(BadAnswers {
                count: u32::MAX,
                answer: BadAnswer::NotFound,
                resource: Some("leases.coordination.k8s.io".to_owned()),
                verb: None,
            });
        });
    };
    let started = Instant::now();
    let fixture = Fixture::build(small(), without_leases, on_node).await;
    let has_begun_unread = at_leisure(started);
    let lease = format!(
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}?resourceVersion=0"
    );
    let reason = forwarded(&fixture, &lease).await;
    assert!(reason.starts_with("forward; "), "{reason}");
    // These are not to be cached, whether or not upstream has them.
    for path in ["/api/v1/configmaps", "/apis/example.org/v1/things"] {
        let reason = forwarded(&fixture, path).await;
        assert_eq!(reason, "forward; reason=policy", "{path}");
    }
    let asked: Vec<_> = fixture.upstream.take_recorded().iter().map(kind).collect();
    assert!(
        asked.iter().any(|it| it == "watch clusterroles"),
        "{asked:?}"
    );
    for document in DOCUMENTS.iter().filter(|_| has_begun_unread) {
        assert!(!asked.iter().any(|it| it == document), "{asked:?}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_proxy_waits_for_a_slow_list_instead_of_reading_discovery() {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let hold = |upstream: &SimulatedServer| {
        add_agents(upstream);
        upstream
            .faults()
            .set(|active| active.hold = Some(path.to_owned()));
    };
    // It takes requests after some seconds, and forwards them.
    let fixture = Fixture::build(small(), hold, on_node).await;
    let ready = async || {
        let readyz = plain_get(fixture.admin, "GET", "/readyz").await;
        readyz.starts_with("HTTP/1.1 200 ")
    };
    assert!(!ready().await);
    let pods = format!("/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D{NODE}");
    let reason = forwarded(&fixture, &pods).await;
    assert_eq!(reason, "forward; reason=unknown-type");
    let faults = fixture.upstream.faults();
    faults.set(|active| active.hold = None);
    becomes("the proxy's readiness", true, ready).await;
    let asked: Vec<_> = fixture.upstream.take_recorded().iter().map(kind).collect();
    for document in DOCUMENTS {
        assert!(!asked.iter().any(|it| it == document), "{asked:?}");
    }
    drop(start_agent(&fixture, AGENTS[0]).await);
    fixture.stop().await;
}

/// Waits until a proxy is ready that reads discovery before that.
async fn begins_with_discovery(
    prepare: impl FnOnce(&SimulatedServer),
    configure: impl FnOnce(&mut AppConfig),
) {
    let fixture = Fixture::build(small(), prepare, configure).await;
    becomes("the proxy's readiness", true, async || {
        let readyz = plain_get(fixture.admin, "GET", "/readyz").await;
        readyz.starts_with("HTTP/1.1 200 ")
    })
    .await;
    let asked: Vec<_> = fixture.upstream.take_recorded().iter().map(kind).collect();
    for document in ["GET api", "GET apis"] {
        assert!(asked.iter().any(|it| it == document), "{asked:?}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_proxy_that_may_not_follow_rbac_reads_discovery_at_its_start() {
    let without_rbac = |upstream: &SimulatedServer| {
        upstream.take_recorded();
        upstream.faults().set(|active| {
            active.refuse = Some(PlannedRefusal {
                count: u32::MAX,
                code: 403,
                retry_after: None,
                resource: Some("clusterroles.rbac.authorization.k8s.io".to_owned()),
                verb: None,
            });
        });
    };
    begins_with_discovery(without_rbac, on_node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_in_front_of_a_cluster_reads_discovery_at_its_start_whatever_it_caches() {
    let record = |upstream: &SimulatedServer| {
        upstream.take_recorded();
    };
    begins_with_discovery(record, |config| {
        config.policy = CachingPolicy::of_node(NODE);
    })
    .await;
}
