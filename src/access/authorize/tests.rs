//! Grants of nodes whose reasons the proxy learns late.
use std::sync::atomic::{AtomicUsize, Ordering};

use watershed_protocol::GroupVersionResource;

use super::*;
use crate::access::changes::rbac::{Affected, RbacKind};
use crate::test_support::{self, Api, HTTP2, Pki, eventually, text, upstream_of};

const HOUR: Duration = Duration::from_hours(1);

/// Returns the request of a node for a secret of its pods.
fn secret_of(node: &str) -> AccessRequest {
    let user = format!("system:node:{node}");
    let mut request = AccessRequest::example(&user, &[NODES], Some("here"));
    if let AccessTarget::Resource(attributes) = &mut request.target {
        attributes.resource.gvr = GroupVersionResource::new("", "v1", "secrets");
        attributes.resource.name = Some("key".to_owned());
    }
    request
}

#[tokio::test]
async fn a_grant_is_reviewed_again_if_a_pod_turns_out_to_have_left_just_before() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("no review") }).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let config = AuthorizationConfig {
        node_grants: NodeGrantMode::FollowPods,
        ..AuthorizationConfig::default()
    };
    let queues = ReviewQueues::default();
    let authorizer = Authorizer::new(client, config, Timeline::default(), queues);
    tokio::time::pause();
    let verdict = |decision| Verdict::new(decision, authorizer.changes().position(), HOUR, HOUR);
    let granted = |reason: &str| verdict(Decision::Allowed(reason.into()));
    let (east, west) = (secret_of("east"), secret_of("west"));
    let early = granted("");
    tokio::time::advance(Duration::from_millis(500)).await;
    let late = granted("");
    let others = [
        (granted(""), &west),
        (granted("RBAC: allowed by a binding"), &east),
        (verdict(Decision::Denied("".into())), &east),
    ];
    tokio::time::advance(Duration::from_millis(1_600)).await;
    // The grants were looked up before the proxy knew of it.
    authorizer.nodes().pod_left("east");
    let left = Instant::now();
    // Many others leave before they are looked up again.
    tokio::time::advance(Duration::from_mins(1)).await;
    authorizer.nodes().pod_left("south");
    for (verdict, request) in others.iter().map(|(verdict, request)| (verdict, *request)) {
        authorizer.compare(verdict, request);
        assert_eq!(verdict.settled_at(), None, "{verdict:?}");
    }
    for verdict in [&early, &late] {
        authorizer.compare(verdict, &east);
    }
    assert_eq!(early.settled_at(), None, "upstream knew the pods of then");
    assert_eq!(late.settled_at(), Some(left + Duration::from_millis(200)));
}

/// Upstream asks a webhook about some users, which hangs.
#[tokio::test]
async fn reviews_that_hang_hold_up_no_others() {
    let pki = Pki::new();
    let hanging = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hanging);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let count = Arc::clone(&count);
        async move {
            let review = test_support::read(request.into_body()).await.unwrap();
            if review.contains("stuck") {
                count.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            text(r#"{"status":{"allowed":true}}"#)
        }
    })
    .await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let config = AuthorizationConfig::default();
    let queues = ReviewQueues::default();
    let authorizer = Arc::new(Authorizer::new(client, config, Timeline::default(), queues));
    let review = |user: String| {
        let authorizer = Arc::clone(&authorizer);
        let request = Arc::new(AccessRequest::example(&user, &[], Some("here")));
        async move { authorizer.review_shared(&request, VerdictUse::Here).await }
    };
    // As many as there are places for all users.
    let stuck: Vec<_> = (0..128)
        .map(|number| tokio::spawn(review(format!("stuck-{number}"))))
        .collect();
    eventually(|| hanging.load(Ordering::SeqCst) >= stuck.len()).await;
    review("quick".to_owned()).await.unwrap();
    assert!(stuck.iter().all(|review| !review.is_finished()));
}

/// A proxy in front of an API server that counts reviews, and grants all for a reason.
async fn counted(reason: &'static str) -> (Authorizer, Arc<AtomicUsize>, Api) {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let api = Api::start(&pki, HTTP2, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            text(format!(
                r#"{{"status":{{"allowed":true,"reason":"{reason}"}}}}"#
            ))
        }
    })
    .await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let (config, queues) = (AuthorizationConfig::default(), ReviewQueues::default());
    let authorizer = Authorizer::new(client, config, Timeline::default(), queues);
    (authorizer, asked, api)
}

fn follow_rbac(authorizer: &Authorizer) {
    for kind in RbacKind::ALL {
        authorizer.changes().set_followed(kind, true);
    }
}

const BY_A_ROLE: &str = "RBAC: allowed by RoleBinding";

#[tokio::test]
async fn a_young_grant_by_rbac_is_passed_on_until_a_change_concerns_it() {
    let (authorizer, asked, _api) = counted(BY_A_ROLE).await;
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    let decide = async || {
        let decided = authorizer.decide_for_proxy(&request).await.unwrap();
        assert!(decided.is_allowed());
        asked.load(Ordering::SeqCst)
    };
    assert_eq!(decide().await, 1);
    assert_eq!(decide().await, 2, "a change could go unnoticed");
    follow_rbac(&authorizer);
    // The machine may take longer than a grant is young.
    let mut before = decide().await;
    let mut shared = false;
    for _ in 0..20 {
        let now = decide().await;
        shared |= now == before;
        before = now;
    }
    assert!(shared, "{before} reviews");

    let concerned = Affected::Namespace("here".into());
    authorizer.changes().record(concerned);
    let before = asked.load(Ordering::SeqCst);
    assert_eq!(decide().await, before + 1);
    assert_eq!(decide().await, before + 2, "the API server may lag");
}

#[tokio::test]
async fn an_older_grant_is_used_here_and_not_passed_on() {
    let (authorizer, asked, _api) = counted(BY_A_ROLE).await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    authorizer.decide_for_proxy(&request).await.unwrap();
    tokio::time::sleep(PASSED_ON_AGE + Duration::from_millis(1)).await;
    let known = authorizer.known(&request, VerdictUse::Here).await;
    assert!(known.is_ok());
    authorizer.decide_for_proxy(&request).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn grants_that_rbac_did_not_give_are_not_passed_on() {
    for reason in ["", "a webhook likes ann"] {
        let (authorizer, asked, _api) = counted(reason).await;
        follow_rbac(&authorizer);
        let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
        for number in 1..=3 {
            authorizer.decide_for_proxy(&request).await.unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), number, "{reason}");
        }
    }
}

/// The grant of a proxy in between may be a second old already.
#[tokio::test]
async fn the_age_of_a_verdict_grows_from_proxy_to_proxy() {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let api = Api::start(&pki, HTTP2, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        let status = format!(r#"{{"allowed":true,"reason":"{BY_A_ROLE}"}}"#);
        async move { text(format!(r#"{{"status":{status},"ageMilliseconds":1001}}"#)) }
    })
    .await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let (config, queues) = (AuthorizationConfig::default(), ReviewQueues::default());
    let authorizer = Authorizer::new(client, config, Timeline::default(), queues);
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    for number in 1..=3 {
        let decided = authorizer.decide_for_proxy(&request).await.unwrap();
        assert!(decided.verdict.age() > PASSED_ON_AGE);
        assert_eq!(asked.load(Ordering::SeqCst), number);
    }
}
