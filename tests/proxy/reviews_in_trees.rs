//! Reviews that proxies send to a proxy: upstream decides once for those that ask at the same time.
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use watershed_lab::body::full_body;
use watershed_lab::sim::SimulatedServer;

use crate::node_start::until_all_rbac_is_watched;
use crate::reviews_of_names::{CONFIG_MAPS, furnish, reviews, role};
use crate::support::client::{Answer, Endpoint, Protocol};
use crate::support::rbac::{rbac, remember};
use crate::support::{Fixture, becomes, small, unless_stalled};
use crate::trees::Tier;

/// The forms of an answer that a proxy accepts.
const ACCEPTED: &str = "application/vnd.watershed.verdict+json;layout=1, application/json";
const LEAVES: usize = 8;

const LEAF: &str = "leaf-token";
const RULES: &str = "SelfSubjectRulesReview";

/// Creates what [`furnish`] does, and lets the leaves do everything.
fn furnish_for_leaves(upstream: &SimulatedServer) {
    furnish(upstream, &[]);
    upstream.access().add_user(LEAF, "leaf", &[]);
    let everything = json!({
        "metadata": {"name": "everything"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    });
    let binding = json!({
        "metadata": {"name": "leaf"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "leaf"}],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "everything",
        },
    });
    for (resource, object) in [
        ("clusterroles", everything),
        ("clusterrolebindings", binding),
    ] {
        let state = upstream.state();
        state.create(&rbac(resource), &object.to_string()).unwrap();
    }
}

/// Starts leaves behind the fixture's proxy.
async fn leaves(fixture: &Fixture) -> Vec<Tier> {
    let mut leaves = Vec::new();
    for _ in 0..LEAVES {
        leaves.push(Tier::unverified(fixture.proxied.address, LEAF).await);
    }
    leaves
}

/// Lists, as ann, the config maps with a label of this value.
async fn listed(leaf: &Tier, app: String) -> StatusCode {
    let path = format!("{CONFIG_MAPS}?resourceVersion=0&labelSelector=app%3D{app}");
    let ann = leaf.endpoint("ann-token");
    ann.get(Protocol::Http2, &path).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reviews_of_many_leaves_are_decided_together_and_their_grants_end() {
    let fixture = Fixture::build(small(), furnish_for_leaves, remember).await;
    until_all_rbac_is_watched(&fixture).await;
    let leaves = leaves(&fixture).await;
    let mut round = 0;
    let mut ask = async || {
        let each = leaves.iter().enumerate();
        let listed = each.map(|(number, leaf)| listed(leaf, format!("{round}-{number}")));
        let statuses = join_all(listed).await;
        round += 1;
        if statuses != [StatusCode::OK; LEAVES] {
            return Err(format!("{statuses:?}"));
        }
        Ok(())
    };
    // The first questions are also about the rights of the leaves themselves.
    unless_stalled("lists of ann", &mut ask).await;
    for leaf in &leaves {
        becomes("the types of RBAC that a leaf follows", 4, async || {
            let status = leaf.status().await;
            let scopes = status["scopes"].as_array().unwrap().iter();
            let rbac = scopes.filter(|scope| scope["group"] == "rbac.authorization.k8s.io");
            rbac.filter(|scope| scope["following"] == true).count()
        })
        .await;
    }
    // Two to seven seconds after that, leaves want verdicts that are decided after the question.
    tokio::time::sleep(Duration::from_secs(9)).await;
    unless_stalled("leaves that ask at once", async || {
        let (begun, before) = (Instant::now(), reviews(&fixture));
        ask().await?;
        match reviews(&fixture) - before {
            0..=3 => Ok(()),
            more => Err(format!("{more} reviews in {:?}", begun.elapsed())),
        }
    })
    .await;

    let state = fixture.upstream.state();
    state.update(&rbac("roles"), &role(&["name-07"])).unwrap();
    for (number, leaf) in leaves.iter().enumerate() {
        becomes("a list of ann", StatusCode::FORBIDDEN, async || {
            listed(leaf, format!("0-{number}")).await
        })
        .await;
    }
    for leaf in leaves {
        leaf.stop().await;
    }
    fixture.stop().await;
}

/// Sends a review as a proxy does.
async fn review(endpoint: &Endpoint, token: &str, spec: &Value) -> Answer {
    post(endpoint, token, "SubjectAccessReview", spec).await
}

async fn post(endpoint: &Endpoint, token: &str, kind: &str, spec: &Value) -> Answer {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {},
        "spec": spec,
    });
    let plural = kind.to_lowercase();
    let request = Request::post(format!("/apis/authorization.k8s.io/v1/{plural}s"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, ACCEPTED)
        .body(full_body(review.to_string()))
        .unwrap();
    let endpoint = endpoint.as_user(token);
    endpoint.send(Protocol::Http2, request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_proxies_that_may_review_get_verdicts_and_only_on_what_they_would_ask() {
    let fixture = Fixture::build(small(), furnish_for_leaves, remember).await;
    let config_maps = json!({
        "user": "ann", "groups": [], "extra": {},
        "resourceAttributes": {
            "verb": "list", "version": "v1", "resource": "configmaps", "namespace": "team-00",
        },
    });
    let answer = review(&fixture.proxied, LEAF, &config_maps).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    assert_eq!(answer.header("x-watershed-source"), "verdict");
    let verdict = answer.json();
    assert_eq!(verdict["status"]["allowed"], true, "{verdict}");
    let reason = verdict["status"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("RBAC: allowed by "), "{reason}");

    let mut denied = config_maps.clone();
    denied["user"] = json!("bob");
    let verdict = review(&fixture.proxied, LEAF, &denied).await.json();
    assert_eq!(verdict["status"]["allowed"], false, "{verdict}");

    // No proxy would send this selector, and the API server knows what it means.
    let mut odd = config_maps.clone();
    odd["resourceAttributes"]["labelSelector"] = json!({"rawSelector": "a=b"});
    let answer = review(&fixture.proxied, LEAF, &odd).await;
    assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE);

    // The admin's right is not RBAC's, so it would have to be reviewed again and again.
    let admin = fixture.upstream.admin_token();
    let answer = review(&fixture.proxied, admin, &config_maps).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(answer.json()["kind"], "SubjectAccessReview");

    let answer = review(&fixture.proxied, "ann-token", &config_maps).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let source = answer.header("x-watershed-source");
    assert!(source.starts_with("forward"), "{source}");
    let direct = review(&fixture.direct, "ann-token", &config_maps).await;
    assert_eq!(answer.json(), direct.json());
    fixture.stop().await;
}

/// Every few minutes, each proxy of a thousand asks if upstream has an authorizer that lists no rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_is_asked_about_its_authorizers_once_for_many_leaves() {
    let fixture = Fixture::build(small(), furnish_for_leaves, remember).await;
    until_all_rbac_is_watched(&fixture).await;
    let of_default = json!({"namespace": "default"});
    let ask = async |spec: &Value| post(&fixture.proxied, LEAF, RULES, spec).await;
    unless_stalled("leaves that ask within a minute", async || {
        let begun = Instant::now();
        fixture.upstream.take_recorded();
        for _ in 0..LEAVES {
            let answer = ask(&of_default).await;
            let is_created = answer.status == StatusCode::CREATED;
            if !is_created || answer.header("x-watershed-source") != "verdict" {
                return Err(format!("{answer:?}"));
            }
            assert_eq!(answer.json()["status"], json!({"incomplete": false}));
        }
        let recorded = fixture.upstream.take_recorded();
        let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        match recorded.iter().filter(|it| it.target == path).count() {
            0..=2 => Ok(()),
            more => Err(format!("{more} questions in {:?}", begun.elapsed())),
        }
    })
    .await;

    // No proxy asks about another namespace, for which an authorizer could list other rules.
    let answer = ask(&json!({"namespace": "team-00"})).await;
    assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE);
    fixture.stop().await;
}
