//! Cached grants end with the binding that gave them, although they are cached for minutes.
use std::time::{Duration, Instant};

use serde_json::json;
use watershed::access::ReviewFailurePolicy;
use watershed::app::AppConfig;
use watershed_lab::sim::{AccessRule, ActiveFaults, PlannedRefusal, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::node_start::until_rbac_is_watched;
use crate::support::client::{Lines, Next, Protocol};
use crate::support::rbac::{rbac, remember};
use crate::support::{Fixture, at_leisure, becomes, eventually, has_counted, small};

const HERE: &str = "/api/v1/namespaces/team-00/configmaps?resourceVersion=0";
const REVIEWS: &str = "subjectaccessreviews.authorization.k8s.io";

/// Deletes the binding of a user.
fn unbind(fixture: &Fixture, user: &str) {
    let bindings = rbac("rolebindings");
    let state = fixture.upstream.state();
    state.delete(&bindings, "team-00", user).unwrap();
}

fn subjects(users: &[&str]) -> serde_json::Value {
    users
        .iter()
        .map(|user| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}))
        .collect()
}

fn binding(name: &str, role: &str, users: &[&str], label: &str) -> String {
    json!({
        "metadata": {"name": name, "namespace": "team-00", "labels": {"label": label}},
        "subjects": subjects(users),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
    })
    .to_string()
}

fn role(name: &str, resources: &[&str]) -> String {
    json!({
        "metadata": {"name": name, "namespace": "team-00"},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["get", "list", "watch"]}],
    })
    .to_string()
}

/// Gives ann and bob the right to read config maps in one namespace, each by a binding of their
/// own.
fn furnish(upstream: &SimulatedServer) {
    for user in ["ann", "bob"] {
        upstream
            .access()
            .add_user(&format!("{user}-token"), user, &[]);
        upstream
            .state()
            .create(
                &rbac("rolebindings"),
                &binding(user, "reader", &[user], "a"),
            )
            .unwrap();
    }
    upstream
        .state()
        .create(&rbac("roles"), &role("reader", &["configmaps"]))
        .unwrap();
}

fn reviews(fixture: &Fixture) -> u64 {
    fixture.upstream.stats().requests_on("POST", REVIEWS)
}

async fn status(fixture: &Fixture, user: &str) -> u16 {
    fixture
        .proxied
        .as_user(&format!("{user}-token"))
        .get(Protocol::Http2, HERE)
        .await
        .status
        .as_u16()
}

/// Opens a watch from the present version.
async fn open_watch(fixture: &Fixture, user: &str) -> Lines {
    let endpoint = fixture.proxied.as_user(&format!("{user}-token"));
    let snapshot = endpoint.get(Protocol::Http2, HERE).await.json();
    let version = snapshot["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/team-00/configmaps?watch=1&resourceVersion={version}");
    endpoint.watch(Protocol::Http2, &path).await
}

fn write(fixture: &Fixture, name: &str) {
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let text = json!({"metadata": {"name": name, "namespace": "team-00"}}).to_string();
    fixture.upstream.state().create(&configmaps, &text).unwrap();
}

/// Waits until the proxy watches RBAC and has handled all earlier changes.
async fn quiet(fixture: &Fixture) {
    for resource in [
        "roles",
        "rolebindings",
        "clusterroles",
        "clusterrolebindings",
    ] {
        let resource = format!("{resource}.rbac.authorization.k8s.io");
        becomes("the proxy follows RBAC", Some(1), async || {
            fixture
                .upstream
                .stats()
                .open_watches
                .get(&resource)
                .copied()
        })
        .await;
    }
    eventually("verdicts stand", async || {
        assert_eq!(status(fixture, "ann").await, 200);
        assert_eq!(status(fixture, "bob").await, 200);
        let before = reviews(fixture);
        tokio::time::sleep(Duration::from_millis(2100)).await;
        assert_eq!(status(fixture, "ann").await, 200);
        assert_eq!(status(fixture, "bob").await, 200);
        if reviews(fixture) == before {
            Ok(())
        } else {
            Err("they were asked for again".to_owned())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_binding_ends_its_grant_and_no_other() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    let (before, began) = (reviews(&fixture), Instant::now());
    let state = fixture.upstream.state();

    // Changes that cannot affect these grants: bindings of others, other namespaces, labels.
    state
        .create(
            &rbac("rolebindings"),
            &binding("carl", "reader", &["carl"], "a"),
        )
        .unwrap();
    state
        .update(
            &rbac("rolebindings"),
            &binding("bob", "reader", &["bob"], "b"),
        )
        .unwrap();
    let elsewhere = role("reader", &["pods"]).replace("team-00", "team-01");
    state.create(&rbac("roles"), &elsewhere).unwrap();
    // The proxy watches each type by itself, so this change may be noticed last. It must not end
    // bob's verdict.
    unbind(&fixture, "ann");
    becomes("what ann reads", 403, async || {
        status(&fixture, "ann").await
    })
    .await;
    assert_eq!(status(&fixture, "bob").await, 200);
    let ann = fixture
        .direct
        .as_user("ann-token")
        .get(Protocol::Http2, HERE)
        .await;
    assert_eq!(
        fixture
            .proxied
            .as_user("ann-token")
            .get(Protocol::Http2, HERE)
            .await
            .essence(),
        ann.essence()
    );
    let mut is_reliable = at_leisure(began);
    // One more review when upstream has settled, and no further one.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let slept = Instant::now();
    for _ in 0..5 {
        assert_eq!(status(&fixture, "ann").await, 403);
        assert_eq!(status(&fixture, "bob").await, 200);
    }
    is_reliable &= at_leisure(slept);
    let asked = reviews(&fixture) - before;
    assert!(
        asked >= 1 && (asked <= 3 || !is_reliable),
        "{asked} reviews"
    );

    // The restored right counts at once, although refusals are cached for an hour.
    state
        .create(
            &rbac("rolebindings"),
            &binding("ann", "reader", &["ann"], "a"),
        )
        .unwrap();
    becomes("what ann reads", 200, async || {
        status(&fixture, "ann").await
    })
    .await;
    // The role goes, too.
    state
        .update(&rbac("roles"), &role("reader", &["pods"]))
        .unwrap();
    for user in ["ann", "bob"] {
        becomes("what they read", 403, async || status(&fixture, user).await).await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_its_binding_and_shows_no_later_event() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    let (ann, same) = (
        open_watch(&fixture, "ann").await,
        open_watch(&fixture, "ann").await,
    );
    let mut bob = open_watch(&fixture, "bob").await;
    let before = reviews(&fixture);
    let deleted = Instant::now();
    unbind(&fixture, "ann");
    for watch in [ann, same] {
        let (lines, end) = watch.rest().await;
        assert_eq!((lines.len(), end), (0, Next::End));
    }
    let asked = reviews(&fixture) - before;
    let most = if at_leisure(deleted) { 2 } else { 6 };
    assert!(
        (1..=most).contains(&asked),
        "{asked} reviews for two equal watches of ann's, and bob's"
    );
    write(&fixture, "after");
    assert!(bob.line().await.contains("\"after\""), "bob's goes on");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_proxy_follows_the_roles_of_namespaces_once_one_of_them_is_read() {
    let fixture = Fixture::build(small(), furnish, |config| {
        remember(config);
        config.access = config.access.clone().on_node();
    })
    .await;
    until_rbac_is_watched(&fixture).await;
    let watches = fixture.upstream.stats().open_watches;
    for resource in ["roles", "rolebindings"] {
        let resource = format!("{resource}.rbac.authorization.k8s.io");
        assert_eq!(watches.get(&resource), None, "{resource}");
    }
    assert_eq!(status(&fixture, "ann").await, 200);
    quiet(&fixture).await;
    let ann = open_watch(&fixture, "ann").await;
    unbind(&fixture, "ann");
    let (lines, end) = ann.rest().await;
    assert_eq!((lines.len(), end), (0, Next::End));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_its_binding_even_if_the_review_is_refused() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    let (ann, mut bob) = (
        open_watch(&fixture, "ann").await,
        open_watch(&fixture, "bob").await,
    );
    // The proxy itself has lost the right to review, perhaps by the same change.
    refuse_reviews(&fixture, 403);
    unbind(&fixture, "ann");
    let (lines, end) = ann.rest().await;
    assert_eq!((lines.len(), end), (0, Next::End));
    write(&fixture, "after");
    assert!(bob.line().await.contains("\"after\""), "bob's goes on");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_review_does_not_put_off_that_of_a_later_change() {
    const SPARE: [&str; 5] = ["spare-1", "spare-2", "spare-3", "spare-4", "spare-5"];
    // Upstream names the first binding as the reason for a grant. The proxy does not read such a name, so it
    // has the grant reviewed again when upstream has settled.
    const ODD: &str = "a\"";
    let furnish_more = |upstream: &SimulatedServer| {
        furnish(upstream);
        for name in SPARE.into_iter().chain([ODD]) {
            let binding = binding(name, "reader", &["ann"], "a");
            let bindings = rbac("rolebindings");
            upstream.state().create(&bindings, &binding).unwrap();
        }
    };
    let fixture = Fixture::build(small(), furnish_more, remember).await;
    quiet(&fixture).await;
    let mut ann = open_watch(&fixture, "ann").await;
    let (last, earlier) = SPARE.split_last().unwrap();
    let mut is_refused = false;
    for name in earlier {
        let asked = reviews(&fixture);
        unbind(&fixture, name);
        eventually("the watch is reviewed", async || {
            (reviews(&fixture) > asked)
                .then_some(())
                .ok_or("it is not".to_owned())
        })
        .await;
        // A review that follows within two seconds of a change is refused, as by a server that has
        // just started. A test that is late misses it.
        refuse_reviews(&fixture, 403);
        let asked = reviews(&fixture);
        tokio::time::sleep(Duration::from_millis(2500)).await;
        is_refused = reviews(&fixture) > asked;
        fixture
            .upstream
            .faults()
            .set(|active| *active = ActiveFaults::default());
        if is_refused {
            break;
        }
    }
    assert!(is_refused, "no review was refused");
    // Bob's answer shows that the proxy has seen both changes.
    unbind(&fixture, last);
    unbind(&fixture, "bob");
    becomes("what bob reads", 403, async || {
        status(&fixture, "bob").await
    })
    .await;
    write(&fixture, "after");
    // Put off, the review would come after a minute.
    let line = tokio::time::timeout(Duration::from_secs(30), ann.line()).await;
    assert!(line.expect("the watch goes on").contains("\"after\""));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_rbac_history_drops_every_grant() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    // The proxy does not see the deletion event. Only a fresh list shows it.
    fixture.upstream.faults().set(|active| active.silent = true);
    unbind(&fixture, "ann");
    assert_eq!(status(&fixture, "ann").await, 200, "nothing tells of it");
    fixture.upstream.restart();
    fixture
        .upstream
        .faults()
        .set(|active| *active = ActiveFaults::default());
    becomes("what ann reads", 403, async || {
        status(&fixture, "ann").await
    })
    .await;
    becomes("what bob reads", 200, async || {
        status(&fixture, "bob").await
    })
    .await;
    fixture.stop().await;
}

fn refuse_reviews(fixture: &Fixture, code: u16) {
    let resource = Some(REVIEWS.to_owned());
    let refusal = PlannedRefusal {
        count: u32::MAX,
        code,
        retry_after: None,
        resource,
        verb: None,
    };
    fixture
        .upstream
        .faults()
        .set(|active| active.refuse = Some(refusal));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_existing_grants_are_served_while_reviews_fail() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    let other = "/api/v1/namespaces/team-00/configmaps?resourceVersion=0&labelSelector=a%3Db";
    let ann = fixture.proxied.as_user("ann-token");
    refuse_reviews(&fixture, 503);
    assert_eq!(
        status(&fixture, "ann").await,
        200,
        "what was granted stands"
    );
    for path in [other, "/api/v1/nodes?resourceVersion=0", "/version"] {
        let answer = ann.get(Protocol::Http2, path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("retry-after")),
            (503, "1"),
            "{path}"
        );
        assert_eq!(answer.json()["reason"], "ServiceUnavailable");
        assert_eq!(answer.json()["kind"], "Status");
        assert_eq!(answer.header("x-watershed-source"), "access");
    }
    // Without the right to review, the proxy lets upstream decide.
    refuse_reviews(&fixture, 403);
    let answer = ann.get(Protocol::Http2, other).await;
    assert_eq!(
        answer.header("x-watershed-source"),
        "forward; reason=review-failed"
    );
    assert_eq!(answer.status, 200);
    fixture
        .upstream
        .faults()
        .set(|active| *active = ActiveFaults::default());
    assert_eq!(
        ann.get(Protocol::Http2, other)
            .await
            .header("x-watershed-source"),
        "snapshot"
    );

    // The refusals end.
    let (direct, proxied) = (fixture.direct.clone(), fixture.proxied.as_user("ann-token"));
    let end = fixture.without_upstream().await;
    assert!(
        direct.connect(Protocol::Http2).await.is_err(),
        "upstream is away"
    );
    assert_eq!(proxied.get(Protocol::Http2, HERE).await.status, 200);
    let answer = proxied
        .get(Protocol::Http2, "/api/v1/nodes?resourceVersion=0")
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("retry-after")),
        (503, "1")
    );
    end.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_affected_by_an_rbac_change_pauses_until_reviews_work() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    let (ann, mut bob) = (
        open_watch(&fixture, "ann").await,
        open_watch(&fixture, "bob").await,
    );
    refuse_reviews(&fixture, 503);
    unbind(&fixture, "ann");
    becomes("what ann reads", 503, async || {
        status(&fixture, "ann").await
    })
    .await;
    write(&fixture, "secret");
    assert!(bob.line().await.contains("\"secret\""));
    fixture
        .upstream
        .faults()
        .set(|active| *active = ActiveFaults::default());
    let (lines, end) = ann.rest().await;
    assert_eq!((lines.len(), end), (0, Next::End));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_forwarded_while_reviews_fail_if_configured() {
    let configure = |config: &mut AppConfig| {
        remember(config);
        config.access.authorization.review_failure_policy = ReviewFailurePolicy::Forward;
    };
    let fixture = Fixture::build(small(), furnish, configure).await;
    quiet(&fixture).await;
    let mut watch = open_watch(&fixture, "ann").await;
    refuse_reviews(&fixture, 503);
    unbind(&fixture, "ann");
    becomes(
        "where ann's read goes",
        "forward; reason=review-failed".to_owned(),
        async || {
            let answer = fixture
                .proxied
                .as_user("ann-token")
                .get(Protocol::Http2, HERE)
                .await;
            answer.header("x-watershed-source").to_owned()
        },
    )
    .await;
    assert_eq!(status(&fixture, "ann").await, 403, "upstream judges");
    write(&fixture, "meanwhile");
    assert!(
        watch.line().await.contains("\"meanwhile\""),
        "an open watch goes on"
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_authorizer_is_no_denial() {
    let fixture = Fixture::build(small(), furnish, remember).await;
    quiet(&fixture).await;
    let watch = open_watch(&fixture, "bob").await;
    let access = fixture.upstream.access();
    access.set_undecided("bob", true);
    let source = async |user: &str, query: &str| {
        let bob = fixture.proxied.as_user(&format!("{user}-token"));
        let answer = bob.get(Protocol::Http2, &format!("{HERE}{query}")).await;
        let source = answer.header("x-watershed-source").to_owned();
        (answer.status.as_u16(), source)
    };
    let other = "&labelSelector=a%3Db";
    assert_eq!(source("ann", other).await, (200, "snapshot".to_owned()));
    let forwarded = "forward; reason=review-failed".to_owned();
    assert_eq!(source("bob", other).await, (200, forwarded.clone()));
    let undecided =
        r#"watershed_access_reviews_total{kind="subjectaccessreview",result="undecided"}"#;
    assert!(has_counted(fixture.admin, undecided, 1).await);

    // A change that concerns his grant, and leaves it as it is.
    let reviewed = reviews(&fixture);
    let wider = role("reader", &["configmaps", "services"]);
    let state = fixture.upstream.state();
    state.update(&rbac("roles"), &wider).unwrap();
    becomes("what bob reads", forwarded, async || {
        source("bob", "").await.1
    })
    .await;
    becomes("his watch is reviewed, too", true, async || {
        source("bob", "").await;
        reviews(&fixture) > reviewed + 3
    })
    .await;
    write(&fixture, "later");
    access.set_undecided("bob", false);
    let mut watch = watch;
    assert!(watch.line().await.contains("\"later\""), "it was not ended");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_refuses_callers_about_whom_upstream_cannot_be_asked() {
    let configure = |config: &mut AppConfig| {
        remember(config);
        config.policy.verification.shadow = true;
    };
    let fixture = Fixture::build(small(), furnish, configure).await;
    assert_eq!(status(&fixture, "ann").await, 200);
    refuse_reviews(&fixture, 503);
    let refused = fixture
        .proxied
        .as_user("bob-token")
        .get(Protocol::Http2, HERE)
        .await;
    assert_eq!(refused.status, 503, "upstream itself would let bob read");
    assert_eq!(refused.header("x-watershed-source"), "access");
    assert_eq!(refused.header("x-watershed-shadow"), "");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zero_ttl_disables_the_grant_cache_and_unwatched_grants_expire_soon() {
    let configure = |config: &mut AppConfig| {
        remember(config);
        config.access.authorization.allowed_ttl = Duration::ZERO;
    };
    let fixture = Fixture::build(small(), furnish, configure).await;
    assert_eq!(status(&fixture, "ann").await, 200);
    let (before, began) = (reviews(&fixture), Instant::now());
    for _ in 0..3 {
        assert_eq!(status(&fixture, "ann").await, 200);
    }
    let asked = reviews(&fixture) - before;
    assert!(
        asked == 3 || asked > 3 && !at_leisure(began),
        "{asked} reviews of 3 requests"
    );
    fixture.stop().await;

    // These rules are no RBAC objects, so no event ends the grant.
    let configure = |config: &mut AppConfig| {
        remember(config);
        config.access.authorization.unwatched_allowed_ttl = Duration::from_secs(1);
    };
    let fixture = Fixture::build(small(), furnish, configure).await;
    quiet(&fixture).await;
    let access = fixture.upstream.access();
    access.add_user("node-token", "system:node:a", &["system:nodes"]);
    access.allow(AccessRule::read("system:node:a", &["configmaps"]));
    assert_eq!(status(&fixture, "node").await, 200);
    access.deny_all("system:node:a");
    becomes("what the node reads", 403, async || {
        status(&fixture, "node").await
    })
    .await;
    fixture.stop().await;
}
