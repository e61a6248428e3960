//! Grants of nodes whose reasons the proxy learns late.
use std::sync::atomic::{AtomicUsize, Ordering};

use watershed_protocol::GroupVersionResource;

use super::*;
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
        async move { authorizer.review_shared(&request).await }
    };
    // As many as there are places for all users.
    let stuck: Vec<_> = (0..128)
        .map(|number| tokio::spawn(review(format!("stuck-{number}"))))
        .collect();
    eventually(|| hanging.load(Ordering::SeqCst) >= stuck.len()).await;
    review("quick".to_owned()).await.unwrap();
    assert!(stuck.iter().all(|review| !review.is_finished()));
}
