//! Grants of nodes whose reasons the proxy learns late.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Response;
use parking_lot::Mutex;
use watershed_protocol::GroupVersionResource;

use super::*;
use crate::access::changes::rbac::{Affected, RbacKind};
use crate::body::Body;
use crate::test_support::{self, Api, HTTP2, Pki, eventually, text, typed, upstream_of};

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
    let authorizer = Arc::new(authorizer_of(&pki, &api).await);
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

async fn authorizer_of(pki: &Pki, api: &Api) -> Authorizer {
    configured(pki, api, AuthorizationConfig::default()).await
}

async fn configured(pki: &Pki, api: &Api, config: AuthorizationConfig) -> Authorizer {
    let client = UpstreamClient::new(&upstream_of(pki, api).await);
    Authorizer::new(client, config, Timeline::default(), ReviewQueues::default())
}

/// Returns a grant for a reason.
fn granted(reason: &str) -> Response<Body> {
    let status = format!(r#"{{"allowed":true,"reason":"{reason}"}}"#);
    text(format!(r#"{{"status":{status}}}"#))
}

/// A proxy in front of an API server that counts reviews, and grants all for a reason.
async fn counted(reason: &'static str) -> (Authorizer, Arc<AtomicUsize>, Api) {
    counting(move || granted(reason)).await
}

/// The same with other answers.
async fn counting(
    answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
) -> (Authorizer, Arc<AtomicUsize>, Api) {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let api = Api::start(&pki, HTTP2, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        let answer = answer();
        async move { answer }
    })
    .await;
    (authorizer_of(&pki, &api).await, asked, api)
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
        let decided = authorizer
            .decide_for_proxy(&request, VerdictAge::Young)
            .await
            .unwrap();
        assert!(decided.is_allowed());
        asked.load(Ordering::SeqCst)
    };
    assert_eq!(decide().await, 1);
    assert_eq!(decide().await, 2, "a change could go unnoticed");
    follow_rbac(&authorizer);
    // A slow machine may need more than a second.
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
    let changed = Instant::now();
    assert_eq!(decide().await, before + 1);
    let again = decide().await;
    let is_settled = changed.elapsed() >= SETTLED;
    assert!(again == before + 2 || is_settled, "the API server may lag");
}

/// The other proxy knows of a change that has not arrived here.
#[tokio::test]
async fn a_new_verdict_is_decided_after_the_question() {
    let (authorizer, asked, _api) = counted(BY_A_ROLE).await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    for number in 1..=3 {
        let decided = authorizer.decide_for_proxy(&request, VerdictAge::New).await;
        assert!(decided.unwrap().is_allowed());
        assert_eq!(asked.load(Ordering::SeqCst), number);
    }
}

/// Upstream fails while other proxies ask.
#[tokio::test]
async fn a_review_for_a_proxy_that_fails_ends_no_verdict() {
    let pki = Pki::new();
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let api = Api::start(&pki, HTTP2, move |_, _| {
        let answer = if failing.load(Ordering::SeqCst) {
            typed(503, "text/plain", "")
        } else {
            granted(BY_A_ROLE)
        };
        async move { answer }
    })
    .await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    let request = AccessRequest::example("ann", &[], Some("here"));
    let AccessTarget::Resource(attributes) = &request.target else {
        unreachable!();
    };
    let used_here = async || authorizer.authorize(&request.identity, attributes).await;
    assert!(used_here().await.unwrap().is_allowed());
    fails.store(true, Ordering::SeqCst);
    let request = Arc::new(request.clone());
    let decided = authorizer.decide_for_proxy(&request, VerdictAge::New).await;
    assert!(decided.is_err());
    assert!(used_here().await.unwrap().is_allowed());
}

/// A webhook may judge tokens of a user in other ways than the user without one.
#[tokio::test]
async fn a_grant_without_a_token_counts_for_no_token_where_webhooks_judge() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |request, _| async move {
        let review = test_support::read(request.into_body()).await.unwrap();
        if review.contains("SelfSubjectRulesReview") {
            text(r#"{"status":{"incomplete":true,"resourceRules":[],"nonResourceRules":[]}}"#)
        } else if review.contains("pod-name") {
            text(r#"{"status":{"allowed":false,"denied":true}}"#)
        } else {
            granted(BY_A_ROLE)
        }
    })
    .await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    let plain = AccessRequest::example("web", &[], None).identity;
    let pod = "authentication.kubernetes.io/pod-name".to_owned();
    let of_pod = Identity {
        extra: vec![(pod, vec!["web-1".to_owned()])],
        ..(*plain).clone()
    };
    let path = || VerbTarget::Path("/metrics".to_owned());
    let may = async |identity: &Arc<Identity>| {
        let reviewed = authorizer.authorize_verb(identity, "post".into(), path());
        reviewed.await.unwrap().is_allowed()
    };
    assert!(may(&plain).await);
    let of_pod = Arc::new(of_pod);
    for _ in 0..4 {
        assert!(!may(&of_pod).await);
    }
}

#[tokio::test]
async fn an_older_grant_is_not_passed_on() {
    let (authorizer, asked, _api) = counted(BY_A_ROLE).await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    authorizer
        .decide_for_proxy(&request, VerdictAge::Young)
        .await
        .unwrap();
    tokio::time::sleep(PASSED_ON_AGE + Duration::from_millis(1)).await;
    authorizer
        .decide_for_proxy(&request, VerdictAge::Young)
        .await
        .unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// A proxy that keeps grants for a shorter time wants none that is older.
#[tokio::test]
async fn old_grants_are_not_wanted_where_they_would_outlive_their_time() {
    let pki = Pki::new();
    let wanted = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&wanted);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        noted
            .lock()
            .push(verdict_form::wanted_verdict(request.headers()));
        async { granted(BY_A_ROLE) }
    })
    .await;
    for (seconds, age) in [
        (300, VerdictAge::Young),
        (5, VerdictAge::Young),
        (4, VerdictAge::New),
        (0, VerdictAge::New),
    ] {
        let config = AuthorizationConfig {
            allowed_ttl: Duration::from_secs(seconds),
            ..AuthorizationConfig::default()
        };
        let authorizer = configured(&pki, &api, config).await;
        follow_rbac(&authorizer);
        let ann = AccessRequest::example("ann", &[], Some("here")).identity;
        let path = authorizer.authorize_path(&ann, "/metrics").await.unwrap();
        assert!(path.is_allowed());
        assert_eq!(wanted.lock().pop(), Some(Some(age)), "{seconds} s");
    }
}

#[tokio::test]
async fn grants_that_rbac_did_not_give_are_not_passed_on() {
    for reason in ["", "a webhook likes ann"] {
        let (authorizer, asked, _api) = counted(reason).await;
        follow_rbac(&authorizer);
        let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
        for number in 1..=3 {
            authorizer
                .decide_for_proxy(&request, VerdictAge::Young)
                .await
                .unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), number, "{reason}");
        }
    }
}

/// The grant of a proxy in between may be old already.
#[tokio::test]
async fn the_age_of_a_verdict_grows_from_proxy_to_proxy() {
    let (authorizer, asked, _api) = counting(|| {
        let status = format!(r#"{{"allowed":true,"reason":"{BY_A_ROLE}"}}"#);
        text(format!(r#"{{"status":{status},"ageMilliseconds":5001}}"#))
    })
    .await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    for number in 1..=3 {
        let decided = authorizer
            .decide_for_proxy(&request, VerdictAge::Young)
            .await
            .unwrap();
        assert!(decided.verdict.age() > PASSED_ON_AGE);
        assert_eq!(asked.load(Ordering::SeqCst), number);
    }
}
