//! Reviews of callers that read many objects by name or selector: one for all where that says the
//! same, else one for each.
use std::time::Instant;

use http::StatusCode;
use serde_json::json;
use watershed_lab::sim::{AccessRule, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::node_start::until_all_rbac_is_watched;
use crate::support::client::{Endpoint, Protocol};
use crate::support::rbac::{rbac, remember};
use crate::support::{Fixture, at_leisure, becomes, small};

pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/team-00/configmaps";
const NAMES: usize = 30;

/// A role that lets its subjects read config maps: all, or those of some names.
pub(crate) fn role(names: &[&str]) -> String {
    json!({
        "metadata": {"name": "reader", "namespace": "team-00"},
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"],
            "resourceNames": names,
        }],
    })
    .to_string()
}

/// Creates the config maps `name-00` and so on, and gives the role to ann.
pub(crate) fn furnish(upstream: &SimulatedServer, names: &[&str]) {
    let state = upstream.state();
    for number in 0..NAMES {
        let object = json!({"metadata": {"name": name(number), "namespace": "team-00"}});
        let config_maps = GroupVersionResource::new("", "v1", "configmaps");
        state.create(&config_maps, &object.to_string()).unwrap();
    }
    upstream.access().add_user("ann-token", "ann", &[]);
    let binding = json!({
        "metadata": {"name": "ann", "namespace": "team-00"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
    });
    state
        .create(&rbac("rolebindings"), &binding.to_string())
        .unwrap();
    state.create(&rbac("roles"), &role(names)).unwrap();
}

fn name(number: usize) -> String {
    format!("name-{number:02}")
}

/// Gets all config maps by name, and returns the names of those that ann may get.
async fn readable(endpoint: &Endpoint) -> Vec<String> {
    let ann = endpoint.as_user("ann-token");
    let mut readable = Vec::new();
    for number in 0..NAMES {
        let path = format!("{CONFIG_MAPS}/{}?resourceVersion=0", name(number));
        match ann.get(Protocol::Http2, &path).await.status {
            StatusCode::OK => readable.push(name(number)),
            status => assert_eq!(status, StatusCode::FORBIDDEN),
        }
    }
    readable
}

pub(crate) fn reviews(fixture: &Fixture) -> u64 {
    let reviews = "subjectaccessreviews.authorization.k8s.io";
    fixture.upstream.stats().requests_on("POST", reviews)
}

/// Asserts that few reviews decided about all names or selections.
fn assert_few_reviews(fixture: &Fixture, before: u64, begun: Instant) {
    let asked = reviews(fixture) - before;
    // Reviews are repeated once while RBAC may still be settling, and so are late ones.
    let most = if at_leisure(begun) { 8 } else { 20 };
    assert!(asked <= most, "{asked} reviews of {NAMES} names");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_all_names_is_reviewed_once_and_ends_with_its_role() {
    let fixture = Fixture::build(small(), |upstream| furnish(upstream, &[]), remember).await;
    until_all_rbac_is_watched(&fixture).await;
    let (before, begun) = (reviews(&fixture), Instant::now());
    assert_eq!(readable(&fixture.proxied).await.len(), NAMES);
    assert_few_reviews(&fixture, before, begun);

    fixture
        .upstream
        .state()
        .update(&rbac("roles"), &role(&["name-07"]))
        .unwrap();
    let left = vec!["name-07".to_owned()];
    becomes("what ann may get", left, async || {
        readable(&fixture.proxied).await
    })
    .await;
    fixture.stop().await;
}

/// Lists config maps by as many selectors, and returns how many lists ann may see.
async fn listable(endpoint: &Endpoint) -> usize {
    let ann = endpoint.as_user("ann-token");
    let mut listable = 0;
    for number in 0..NAMES {
        let path = format!("{CONFIG_MAPS}?resourceVersion=0&labelSelector=app%3D{number}");
        match ann.get(Protocol::Http2, &path).await.status {
            StatusCode::OK => listable += 1,
            status => assert_eq!(status, StatusCode::FORBIDDEN),
        }
    }
    listable
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_all_selections_is_reviewed_once_and_ends_with_its_role() {
    let fixture = Fixture::build(small(), |upstream| furnish(upstream, &[]), remember).await;
    until_all_rbac_is_watched(&fixture).await;
    let (before, begun) = (reviews(&fixture), Instant::now());
    assert_eq!(listable(&fixture.proxied).await, NAMES);
    assert_few_reviews(&fixture, before, begun);

    let roles = rbac("roles");
    let state = fixture.upstream.state();
    state.update(&roles, &role(&["name-07"])).unwrap();
    becomes("the lists that ann may see", 0, async || {
        listable(&fixture.proxied).await
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_many_selections_are_reviewed_once_and_each_ends_if_its_grant_does() {
    let fixture = Fixture::build(small(), |upstream| furnish(upstream, &[]), remember).await;
    until_all_rbac_is_watched(&fixture).await;
    let (before, begun) = (reviews(&fixture), Instant::now());
    let ann = fixture.proxied.as_user("ann-token");
    let connection = ann.connect(Protocol::Http2).await.unwrap();
    let path = |selector| format!("{CONFIG_MAPS}?watch=1&resourceVersion=0&{selector}");
    let mut some = Vec::new();
    for number in 0..NAMES {
        let selector = format!("labelSelector=app%3D{number}");
        some.push(connection.watch(&path(selector)).await.unwrap());
    }
    let one = path("fieldSelector=metadata.name%3Dname-07".to_owned());
    let mut one = connection.watch(&one).await.unwrap();
    assert!(one.line().await.contains("name-07"));
    assert_few_reviews(&fixture, before, begun);

    let state = fixture.upstream.state();
    state.update(&rbac("roles"), &role(&["name-07"])).unwrap();
    for watch in some {
        let (lines, end) = watch.rest().await;
        assert!(lines.is_empty(), "{lines:?} before {end:?}");
    }
    let changed = json!({
        "metadata": {"name": "name-07", "namespace": "team-00"}, "data": {"after": "the change"},
    });
    let config_maps = GroupVersionResource::new("", "v1", "configmaps");
    state.update(&config_maps, &changed.to_string()).unwrap();
    let line = one.line().await;
    assert!(line.contains("the change"), "{line}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_single_names_is_not_taken_for_one_of_all() {
    // The empty name is in no path. A question without a name would find it.
    let names = ["", "name-03", "name-21"];
    let fixture = Fixture::build(small(), |upstream| furnish(upstream, &names), remember).await;
    assert_eq!(readable(&fixture.direct).await, names[1..]);
    for _ in 0..2 {
        assert_eq!(readable(&fixture.proxied).await, names[1..]);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authorizer_that_may_deny_single_names_is_asked_for_each() {
    let prepare = |upstream: &SimulatedServer| {
        furnish(upstream, &[]);
        upstream
            .access()
            .allow(AccessRule::read("ann", &["configmaps"]));
        upstream.access().deny_name("ann", "name-13");
    };
    let fixture = Fixture::build(small(), prepare, remember).await;
    let readable_directly = readable(&fixture.direct).await;
    assert_eq!(readable_directly.len(), NAMES - 1);
    assert_eq!(readable(&fixture.proxied).await, readable_directly);
    fixture.stop().await;
}
