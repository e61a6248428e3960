//! The requests that a node's proxy sends upstream in an hour in which nothing changes.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time;
use tokio_util::task::AbortOnDropHandle;
use watershed::app::AppConfig;
use watershed::scope::ScopeConfig;
use watershed_lab::sim::{Options, Population, RecordedRequest, SimulatedServer};

use watershed_protocol::GroupVersionResource;

use crate::node_start::{
    AGENTS, NODE, RBAC, kind, on_node, start_agent, until_all_rbac_is_watched,
    until_rbac_is_watched,
};
use crate::support::Fixture;
use crate::support::client::{Lines, Next, Protocol};
use crate::support::rbac::rbac;

const HOUR: Duration = Duration::from_hours(1);
/// Time after which the start does not count any more.
const CALM: Duration = Duration::from_mins(15);
/// Requests of an agent with two watches without a proxy: it opens each anew after five to ten
/// minutes.
const OF_AN_AGENT: usize = 16;

/// A user who reads now and then, and has no watch.
const VISITOR: &str = "visitor";
const REVIEWS: &str = "POST subjectaccessreviews";
const RULES: &str = "POST selfsubjectrulesreviews";

fn cluster() -> Options {
    Options {
        population: Population {
            nodes: 4,
            namespaces: 3,
            pods: 120,
            ..Population::default()
        },
        ..Options::default()
    }
}

/// Gives each agent the right to read pods and nodes, by a binding of its own.
fn grant(upstream: &SimulatedServer) {
    let state = upstream.state();
    let role = json!({
        "metadata": {"name": "agent"},
        "rules": [{
            "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"],
        }],
    });
    let roles = rbac("clusterroles");
    state.create(&roles, &role.to_string()).unwrap();
    for user in AGENTS.into_iter().chain([VISITOR]) {
        upstream.access().add_user(user, user, &[]);
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": user},
            "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "agent"},
        });
        state
            .create(&rbac("clusterrolebindings"), &binding.to_string())
            .unwrap();
    }
    upstream.take_recorded();
}

fn revoke(upstream: &SimulatedServer, user: &str) {
    let bindings = rbac("clusterrolebindings");
    upstream.state().delete(&bindings, "", user).unwrap();
}

/// A node's proxy with three agents, whose watches are open.
struct Node {
    fixture: Fixture,
    watches: Vec<Lines>,
}

impl Node {
    async fn start() -> Self {
        Self::configured(cluster(), |_| {}).await
    }

    async fn configured(options: Options, configure: impl FnOnce(&mut AppConfig)) -> Self {
        let fixture = Fixture::build(options, grant, |config| {
            on_node(config);
            config.scopes = ScopeConfig::default().on_node();
            configure(config);
        })
        .await;
        let mut watches = Vec::new();
        for agent in AGENTS {
            watches.extend(start_agent(&fixture, agent).await);
        }
        until_rbac_is_watched(&fixture).await;
        Self { fixture, watches }
    }

    /// Lets time pass. Returns the requests meanwhile.
    async fn pass(&self, time: Duration) -> Vec<RecordedRequest> {
        self.fixture.upstream.take_recorded();
        time::sleep(time).await;
        self.fixture.upstream.take_recorded()
    }

    /// Checks that grants are renewed without reviews for a quarter of an hour. One that ends in the
    /// second in which a watch of RBAC is opened anew is reviewed, and so are those for which an
    /// answer is late on a busy machine. That does not happen in each of three quarters.
    async fn renews_all(&self) {
        let mut reviewed = Vec::new();
        for _ in 0..3 {
            let counts = count(&self.pass(HOUR / 4).await);
            assert!(counts[RULES] >= 2, "{counts:#?}");
            if !counts.contains_key(REVIEWS) {
                return;
            }
            reviewed.push(counts);
        }
        panic!("grants are reviewed: {reviewed:#?}");
    }

    /// Lists the node's pods as the visitor while time is hastened, and returns the status.
    async fn visit(&self) -> u16 {
        self.visit_as(VISITOR).await
    }

    /// Lists the node's pods as a user while time is hastened, and returns the status.
    async fn visit_as(&self, user: &str) -> u16 {
        self.visit_of(user, "/api/v1/pods").await
    }

    /// Lists the node's pods of a collection as a user while time is hastened, and returns the
    /// status.
    async fn visit_of(&self, user: &str, collection: &str) -> u16 {
        // In hastened time, a handshake or a review would time out on a busy machine.
        time::resume();
        let status = self.list_as(user, collection).await;
        time::pause();
        status
    }

    /// Lists the node's pods of a collection as a user, and returns the status.
    async fn list_as(&self, user: &str, collection: &str) -> u16 {
        let path = format!("{collection}?resourceVersion=0&fieldSelector=spec.nodeName%3D{NODE}");
        let user = self.fixture.proxied.as_user(user);
        user.get(Protocol::Http2, &path).await.status.as_u16()
    }

    async fn stop(self) {
        drop(self.watches);
        self.fixture.stop().await;
    }
}

/// Writes to the cluster now and then, as its components do. What the node's proxy follows stays.
fn live(upstream: &SimulatedServer) -> AbortOnDropHandle<()> {
    let state = Arc::clone(upstream.state());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let config_maps = GroupVersionResource::new("", "v1", "configmaps");
        for number in 0.. {
            let name = format!("write-{number}");
            let object = json!({"metadata": {"name": name, "namespace": "default"}});
            state.create(&config_maps, &object.to_string()).unwrap();
            state.delete(&config_maps, "default", &name).unwrap();
            time::sleep(Duration::from_secs(10)).await;
        }
    }))
}

/// Has time pass as fast as the work allows. Bytes take a moment on their way: the clock would go
/// on to the next timer while they are. Once a second they get a real moment: on a busy machine the
/// kernel may deliver them late, when requests have timed out already.
fn hasten() -> AbortOnDropHandle<()> {
    const TICK: Duration = Duration::from_millis(25);
    time::pause();
    AbortOnDropHandle::new(tokio::spawn(async {
        loop {
            for _ in 0..40 {
                time::sleep(TICK).await;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }))
}

/// Returns `true` if a watch ends within this time.
async fn ends_within(mut watch: Lines, limit: Duration) -> bool {
    let end = async { while let Next::Line(_) = watch.next().await {} };
    time::timeout(limit, end).await.is_ok()
}

fn count(requests: &[RecordedRequest]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(kind(request)).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn an_idle_nodes_proxy_sends_less_in_an_hour_than_four_agents() {
    let node = Node::start().await;
    let hurry = (live(&node.fixture.upstream), hasten());
    node.pass(CALM).await;
    let hours = 3;
    let sent = node.pass(HOUR * hours).await;
    let counts = count(&sent);
    assert!(sent.len() < 4 * OF_AN_AGENT * hours as usize, "{counts:#?}");
    let reviews = counts.get(REVIEWS).copied().unwrap_or_default();
    assert!(
        reviews >= 2 * AGENTS.len(),
        "no grant is renewed for ever: {counts:#?}"
    );
    // Each part has a bound of its own, so that one cannot grow at the cost of another. A type is
    // listed for each watch that is opened, once an hour at most, and compared with upstream every
    // half an hour at most. Comparing takes a second request unless the type has one object.
    for (kind, hourly) in [
        (RULES, 13),
        // Each of six grants once in two hours.
        (REVIEWS, 3),
        ("GET namespaces", 16),
        ("GET version", 6),
        ("GET api", 2),
        ("GET apis", 2),
        ("watch pods", 1),
        ("watch clusterroles", 1),
        ("GET pods", 5),
        ("GET nodes", 3),
        ("GET clusterroles", 5),
    ] {
        let sent = counts.get(kind).copied().unwrap_or_default();
        assert!(sent <= hourly * hours as usize, "{kind}: {counts:#?}");
    }
    drop(hurry);
    time::resume();
    node.stop().await;
}

#[tokio::test]
async fn grants_that_are_renewed_for_all_end_with_their_bindings() {
    let mut node = Node::start().await;
    let hurry = (live(&node.fixture.upstream), hasten());
    node.pass(CALM).await;
    assert_eq!(node.visit().await, 200);
    node.renews_all().await;
    assert_eq!(node.visit().await, 200, "renewed, too");

    // Nobody asks for the visitor's grant for longer than a grant lasts by itself.
    revoke(&node.fixture.upstream, VISITOR);
    node.pass(HOUR / 4).await;
    // Another change must not make the proxy forget that one.
    revoke(&node.fixture.upstream, AGENTS[2]);
    node.pass(HOUR / 4).await;
    assert_eq!(node.visit().await, 403);

    let cni = node.watches.remove(0);
    revoke(&node.fixture.upstream, AGENTS[0]);
    assert!(ends_within(cni, Duration::from_mins(1)).await);
    drop(hurry);
    time::resume();
    node.stop().await;
}

#[tokio::test]
async fn grants_in_a_namespace_are_renewed_too_and_end_with_their_bindings() {
    const TENANT: &str = "tenant";
    let mut node = Node::start().await;
    let upstream = &node.fixture.upstream;
    upstream.access().add_user(TENANT, TENANT, &[]);
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": TENANT, "namespace": "team-00"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": TENANT}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "agent"},
    });
    let bindings = rbac("rolebindings");
    let state = upstream.state();
    state.create(&bindings, &binding.to_string()).unwrap();
    let pods = "/api/v1/namespaces/team-00/pods";
    assert_eq!(node.list_as(TENANT, pods).await, 200);
    until_all_rbac_is_watched(&node.fixture).await;

    let hurry = (live(upstream), hasten());
    node.pass(CALM).await;
    assert_eq!(node.visit_of(TENANT, pods).await, 200);
    node.renews_all().await;
    assert_eq!(node.visit_of(TENANT, pods).await, 200, "renewed, too");
    state.delete(&bindings, "team-00", TENANT).unwrap();
    node.pass(HOUR / 4).await;
    assert_eq!(node.visit_of(TENANT, pods).await, 403);
    node.watches.clear();
    drop(hurry);
    time::resume();
    node.stop().await;
}

#[tokio::test]
async fn grants_that_the_followed_roles_explain_are_reviewed_once_after_a_change() {
    let node = Node::start().await;
    let hurry = (live(&node.fixture.upstream), hasten());
    node.pass(CALM).await;
    // It may concern everybody, but takes nothing away.
    let role = json!({"metadata": {"name": "other"}, "rules": []});
    let state = node.fixture.upstream.state();
    state
        .create(&rbac("clusterroles"), &role.to_string())
        .unwrap();
    let counts = count(&node.pass(HOUR).await);
    let grants = 2 * AGENTS.len();
    // A late answer may cost another round.
    let reviews = counts.get(REVIEWS).copied().unwrap_or_default();
    assert!((grants..=2 * grants).contains(&reviews), "{counts:#?}");
    drop(hurry);
    time::resume();
    node.stop().await;
}

#[tokio::test]
async fn grants_of_a_server_that_lags_are_not_kept_for_longer_than_it_lagged() {
    let mut node = Node::start().await;
    let hurry = (live(&node.fixture.upstream), hasten());
    // RBAC changed when the proxy began to follow it.
    node.pass(HOUR).await;
    let access = node.fixture.upstream.access();
    for (user, lag, kept) in [
        (VISITOR, Duration::from_secs(10), Duration::from_mins(5)),
        (AGENTS[0], HOUR / 4, HOUR / 4),
    ] {
        access.fall_behind();
        revoke(&node.fixture.upstream, user);
        node.pass(lag).await;
        assert_eq!(node.visit_as(user).await, 200, "upstream still says so");
        access.catch_up();
        node.pass(kept / 2).await;
        assert_eq!(node.visit_as(user).await, 200, "it is kept");
        node.pass(kept / 2 + Duration::from_secs(1)).await;
        assert_eq!(node.visit_as(user).await, 403);
    }
    node.watches.clear();
    drop(hurry);
    time::resume();
    node.stop().await;
}

#[tokio::test]
async fn grants_are_reviewed_while_the_watches_of_rbac_stand_still() {
    let options = Options {
        // Bookmarks repeat the version of the type's last event.
        progress_every: HOUR * 1000,
        ..cluster()
    };
    let node = Node::configured(options, |config| {
        // A comparison would show newer versions.
        config.scopes.self_check = Duration::ZERO;
    })
    .await;
    let hurry = (live(&node.fixture.upstream), hasten());
    for resource in RBAC {
        let namespace = match resource {
            "roles" | "rolebindings" => "default",
            _ => "",
        };
        let object = json!({
            "metadata": {"name": "last", "namespace": namespace},
            "roleRef": {"name": "none"},
        });
        let state = node.fixture.upstream.state();
        state.create(&rbac(resource), &object.to_string()).unwrap();
    }
    node.pass(HOUR / 4).await;
    let counts = count(&node.pass(HOUR / 2).await);
    assert!(counts[REVIEWS] >= 5 * 2 * AGENTS.len(), "{counts:#?}");
    assert_eq!(counts.get(RULES), None, "asked in vain: {counts:#?}");
    drop(hurry);
    time::resume();
    node.stop().await;
}

#[tokio::test]
async fn grants_are_not_renewed_for_all_once_an_authorizer_can_deny_single_ones() {
    let mut node = Node::start().await;
    let hurry = (live(&node.fixture.upstream), hasten());
    node.pass(HOUR / 2).await;
    let cni = node.watches.remove(0);
    // Upstream has a webhook from now on.
    node.fixture.upstream.access().deny_name(AGENTS[0], "");
    // Grants last for five minutes, and those of watches for up to a tenth longer.
    assert!(ends_within(cni, Duration::from_mins(6)).await);
    let counts = count(&node.pass(HOUR).await);
    assert!(counts[REVIEWS] >= 5 * 10, "{counts:#?}");
    // It is not asked in vain each time.
    let rules = counts.get(RULES).copied().unwrap_or_default();
    assert!(rules <= 2, "{counts:#?}");
    drop(hurry);
    time::resume();
    node.stop().await;
}
