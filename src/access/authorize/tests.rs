//! Grants of nodes whose reasons the proxy learns late.
mod shared_reviews;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Response;
use parking_lot::Mutex;
use watershed_protocol::GroupVersionResource;

use super::*;
use crate::access::changes::rbac::{Affected, RbacKind, RequestReach};
use crate::access::changes::settling::PASSED_ON_AGE;
use crate::access::node::NodeGrantMode;
use crate::access::request::VerbTarget;
use crate::body::Body;
use crate::test_support::{self, Api, HTTP2, Pki, eventually, text, typed, upstream_of};

const HOUR: Duration = Duration::from_hours(1);
/// The address of callers.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Returns the request of a node for a secret of its pods.
fn secret_of(node: &str) -> AccessRequest {
    let user = format!("system:node:{node}");
    let mut request = AccessRequest::example(&user, &[NODES], Some("here"));
    if let VerbTarget::Resource { resource, .. } = &mut request.target.on {
        resource.gvr = GroupVersionResource::new("", "v1", "secrets");
        resource.name = Some("key".to_owned());
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
    let authorizer = authorizer_of(&pki, &api).await;
    let review = |user: String| {
        let authorizer = Arc::clone(&authorizer);
        let request = Arc::new(AccessRequest::example(&user, &[], Some("here")));
        async move {
            authorizer
                .review_shared(&request, VerdictUse::Here, ADDRESS)
                .await
        }
    };
    // As many as there are places for all users.
    let stuck: Vec<_> = (0..128)
        .map(|number| tokio::spawn(review(format!("stuck-{number}"))))
        .collect();
    eventually(|| hanging.load(Ordering::SeqCst) >= stuck.len()).await;
    review("quick".to_owned()).await.unwrap();
    assert!(stuck.iter().all(|review| !review.is_finished()));
}

/// Starts an API server that answers reviews by their text.
async fn answering(
    pki: &Pki,
    answer: impl Fn(&str) -> Response<Body> + Clone + Send + Sync + 'static,
) -> Api {
    Api::start(pki, HTTP2, move |request, _| {
        let answer = answer.clone();
        async move {
            let review = test_support::read(request.into_body()).await.unwrap();
            answer(&review)
        }
    })
    .await
}

async fn authorizer_of(pki: &Pki, api: &Api) -> Arc<Authorizer> {
    configured(pki, api, AuthorizationConfig::default()).await
}

async fn configured(pki: &Pki, api: &Api, config: AuthorizationConfig) -> Arc<Authorizer> {
    let client = UpstreamClient::new(&upstream_of(pki, api).await);
    let queues = ReviewQueues::default();
    Arc::new(Authorizer::new(client, config, Timeline::default(), queues))
}

/// Returns a grant for a reason.
fn granted(reason: &str) -> Response<Body> {
    let status = format!(r#"{{"allowed":true,"reason":"{reason}"}}"#);
    text(format!(r#"{{"status":{status}}}"#))
}

/// Returns the answer to the question of an open watch.
async fn is_still_granted(authorizer: &Arc<Authorizer>, request: &Arc<AccessRequest>) -> bool {
    let reviewed = authorizer.recheck(request, ADDRESS).await;
    reviewed.unwrap().is_allowed()
}

/// A proxy in front of an API server that counts reviews, and grants all for a reason.
async fn counted(reason: &'static str) -> (Arc<Authorizer>, Arc<AtomicUsize>, Api) {
    counting(move || granted(reason)).await
}

/// The same with other answers.
async fn counting(
    answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
) -> (Arc<Authorizer>, Arc<AtomicUsize>, Api) {
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
            .decide_for_proxy(&request, ADDRESS, VerdictAge::Young)
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
        let decided = authorizer
            .decide_for_proxy(&request, ADDRESS, VerdictAge::New)
            .await;
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
    let used_here = async || {
        let target = request.target.clone();
        authorizer
            .authorize(&request.identity, ADDRESS, target)
            .await
    };
    assert!(used_here().await.unwrap().is_allowed());
    fails.store(true, Ordering::SeqCst);
    let request = Arc::new(request.clone());
    let decided = authorizer
        .decide_for_proxy(&request, ADDRESS, VerdictAge::New)
        .await;
    assert!(decided.is_err());
    assert!(used_here().await.unwrap().is_allowed());
}

/// A webhook may judge tokens of a user in other ways than the user without one.
#[tokio::test]
async fn a_grant_without_a_token_counts_for_no_token_where_webhooks_judge() {
    let pki = Pki::new();
    let api = answering(&pki, |review| {
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
    let of_pod = with_token(&plain, "web-1");
    let post = || AccessTarget::new("post", VerbTarget::Path("/metrics".to_owned()));
    let may = async |identity: &Arc<Identity>| {
        let reviewed = authorizer.authorize(identity, ADDRESS, post());
        reviewed.await.unwrap().is_allowed()
    };
    assert!(may(&plain).await);
    for _ in 0..4 {
        assert!(!may(&of_pod).await);
    }
}

/// Returns the upstream of a proxy, whose authorizers can all list their rules. It grants what is asked without
/// an attribute of a token, or all.
async fn listing(pki: &Pki, grants_tokens: bool) -> (Api, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let api = answering(pki, move |review| {
        if review.contains("SelfSubjectRulesReview") {
            return text(r#"{"status":{"incomplete":false}}"#);
        }
        count.fetch_add(1, Ordering::SeqCst);
        assert!(grants_tokens || !review.contains("pod-name"), "{review}");
        granted(BY_A_ROLE)
    });
    (api.await, asked)
}

/// Returns a user with the token of a pod.
fn with_token(user: &Identity, pod: &str) -> Arc<Identity> {
    let key = "authentication.kubernetes.io/pod-name".to_owned();
    Arc::new(Identity {
        extra: vec![(key, vec![pod.to_owned()])],
        ..user.clone()
    })
}

#[tokio::test]
async fn the_right_to_a_path_is_reviewed_for_all_tokens_of_a_user() {
    let pki = Pki::new();
    let (api, asked) = listing(&pki, true).await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    let web = AccessRequest::example("web", &[], None).identity;
    let reviews = async |user: &Arc<Identity>, path: &str| {
        let target = AccessTarget::get_of_path(path);
        let may = authorizer.authorize(user, ADDRESS, target).await;
        assert!(may.unwrap().is_allowed());
        asked.load(Ordering::SeqCst)
    };
    for number in 0..10 {
        let token = with_token(&web, &format!("web-{number}"));
        let few = reviews(&token, "/version").await;
        assert_eq!(few, 2.min(number + 1), "one, and one for all");
    }
    assert_eq!(reviews(&with_token(&web, "web-10"), "/livez").await, 3);
    let own = reviews(&web, "/livez").await;
    assert_eq!(own, 4, "the user's own is another one");
    let other = reviews(&with_token(&web, "web-11"), "/livez").await;
    assert_eq!(other, 4, "for all at once");
}

/// Returns a user's list of all pods, by the token of a pod.
fn list_of_pod(number: usize) -> Arc<AccessRequest> {
    let mut request = AccessRequest::example("web", &[], None);
    request.identity = with_token(&request.identity, &format!("web-{number}"));
    Arc::new(request)
}

/// Returns a user's right to list the pods of a name, which many ask about.
fn list_of_name(number: usize) -> AccessRequest {
    let mut request = AccessRequest::example("web", &[], None);
    if let VerbTarget::Resource { resource, .. } = &mut request.target.on {
        resource.name = Some(format!("web-{number}"));
    }
    request
}

#[tokio::test]
async fn a_grant_for_all_names_that_ran_out_is_reviewed_for_all_again() {
    let pki = Pki::new();
    let (api, asked) = listing(&pki, true).await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    let ask_about_all = async || {
        let before = asked.load(Ordering::SeqCst);
        for number in 0..5 {
            let request = Arc::new(list_of_name(number));
            assert!(is_still_granted(&authorizer, &request).await);
        }
        asked.load(Ordering::SeqCst) - before
    };
    assert_eq!(ask_about_all().await, 3, "two, and one for all");
    tokio::time::pause();
    tokio::time::advance(AuthorizationConfig::default().allowed_ttl).await;
    tokio::time::resume();
    assert_eq!(ask_about_all().await, 1);
}

#[tokio::test]
async fn a_denial_for_all_tokens_counts_for_each() {
    let (authorizer, asked, _api) =
        counting(|| text(r#"{"status":{"allowed":false,"incomplete":false}}"#)).await;
    assert!(authorizer.rules.are_listed().await);
    follow_rbac(&authorizer);
    let before = asked.load(Ordering::SeqCst);
    for number in 0..5 {
        let request = list_of_pod(number);
        assert!(!is_still_granted(&authorizer, &request).await);
    }
    assert_eq!(asked.load(Ordering::SeqCst), before + 1);
}

/// A rule whose names are one empty string grants requests without a name, and no others.
#[tokio::test]
async fn a_grant_without_a_name_counts_for_all_tokens() {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let api = answering(&pki, move |review| {
        count.fetch_add(1, Ordering::SeqCst);
        if review.contains("SelfSubjectRulesReview") {
            text(r#"{"status":{"incomplete":false}}"#)
        } else if review.contains(r#""name":"#) {
            text(r#"{"status":{"allowed":false}}"#)
        } else {
            granted(BY_A_ROLE)
        }
    })
    .await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    for number in 0..5 {
        let request = list_of_pod(number);
        let decided = authorizer
            .decide_for_proxy(&request, ADDRESS, VerdictAge::Young)
            .await;
        assert!(decided.unwrap().is_allowed());
        assert!(is_still_granted(&authorizer, &request).await);
    }
    // One about the rules, and one for proxies and for callers each.
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_several_tokens_ask_is_reviewed_for_all_from_the_second_on() {
    let pki = Pki::new();
    let (api, asked) = listing(&pki, true).await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    for number in 0..5 {
        let request = list_of_pod(number);
        assert!(is_still_granted(&authorizer, &request).await);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_denial_of_a_path_takes_one_review_whatever_the_token() {
    let (authorizer, asked, _api) =
        counting(|| text(r#"{"status":{"allowed":false,"incomplete":false}}"#)).await;
    let web = AccessRequest::example("web", &[], None).identity;
    assert!(authorizer.rules.are_listed().await);
    follow_rbac(&authorizer);
    let before = asked.load(Ordering::SeqCst);
    for number in 0..3 {
        let token = with_token(&web, &format!("web-{number}"));
        let target = AccessTarget::get_of_path("/metrics");
        let may = authorizer.authorize(&token, ADDRESS, target).await;
        assert!(!may.unwrap().is_allowed());
    }
    assert_eq!(asked.load(Ordering::SeqCst), before + 1);
}

/// Another node's proxy asks the same about another token, and maybe another object.
#[tokio::test]
async fn what_a_proxy_asks_is_reviewed_for_all_tokens_at_once() {
    let pki = Pki::new();
    let (api, asked) = listing(&pki, false).await;
    let authorizer = authorizer_of(&pki, &api).await;
    follow_rbac(&authorizer);
    let mut request = AccessRequest::example("web", &[], None);
    let VerbTarget::Resource { resource, .. } = &mut request.target.on else {
        unreachable!();
    };
    resource.name = Some("east".to_owned());
    request.identity = with_token(&request.identity, "web-1");
    let request = Arc::new(request);
    let decided = authorizer.decide_for_proxy(&request, ADDRESS, VerdictAge::New);
    assert!(decided.await.unwrap().is_allowed());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// The node authorizer lists no rules for nodes, whatever this proxy is told about itself.
#[tokio::test]
async fn a_node_is_not_told_that_all_its_rules_are_listed() {
    let pki = Pki::new();
    let (api, _) = listing(&pki, true).await;
    let authorizer = authorizer_of(&pki, &api).await;
    let of_group = |group| AccessRequest::example("system:node:east", &[group], None).identity;
    let known = authorizer.rules_for_proxy(&of_group("devs")).await;
    assert!(known.unwrap() < Duration::from_mins(1));
    let error = authorizer.rules_for_proxy(&of_group(NODES)).await;
    assert!(matches!(*error.unwrap_err(), ReviewError::LeftToUpstream));
}

#[tokio::test]
async fn an_older_grant_is_passed_on_only_where_it_is_wanted() {
    let (authorizer, asked, _api) = counted(BY_A_ROLE).await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    let decide = async |age| {
        let decided = authorizer.decide_for_proxy(&request, ADDRESS, age);
        assert!(decided.await.unwrap().is_allowed());
        asked.load(Ordering::SeqCst)
    };
    assert_eq!(decide(VerdictAge::Young).await, 1);
    tokio::time::sleep(PASSED_ON_AGE + Duration::from_millis(1)).await;
    assert_eq!(decide(VerdictAge::Old).await, 1);
    assert_eq!(decide(VerdictAge::Young).await, 2);
    authorizer.changes().record(Affected::Everything);
    assert_eq!(decide(VerdictAge::Old).await, 3);
}

/// A proxy that keeps grants for a shorter time wants none that is older, and neither does one that may not know
/// of the last change.
#[tokio::test]
async fn old_grants_are_not_wanted_where_they_would_outlive_their_time_or_a_change() {
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
    let ann = AccessRequest::example("ann", &[], Some("here")).identity;
    let wanted_by = async |authorizer: &Arc<Authorizer>, path: &str| {
        let target = AccessTarget::get_of_path(path);
        let reviewed = authorizer.authorize(&ann, ADDRESS, target).await.unwrap();
        assert!(reviewed.is_allowed());
        wanted.lock().pop().flatten().unwrap()
    };
    for (seconds, age) in [
        (300, VerdictAge::Old),
        (60, VerdictAge::Old),
        (59, VerdictAge::Young),
        (5, VerdictAge::Young),
        (4, VerdictAge::New),
        (0, VerdictAge::New),
    ] {
        let unsure = match age {
            VerdictAge::Old => VerdictAge::Young,
            age => age,
        };
        let config = AuthorizationConfig {
            allowed_ttl: Duration::from_secs(seconds),
            ..AuthorizationConfig::default()
        };
        let authorizer = configured(&pki, &api, config).await;
        assert_eq!(wanted_by(&authorizer, "/a").await, unsure);
        follow_rbac(&authorizer);
        assert_eq!(wanted_by(&authorizer, "/x").await, unsure, "it may stall");
        for kind in RbacKind::ALL {
            authorizer.changes().advance(kind);
        }
        assert_eq!(wanted_by(&authorizer, "/b").await, age, "{seconds} s");
        authorizer
            .changes()
            .record(Affected::UnknownPast(RequestReach::Cluster));
        assert_eq!(wanted_by(&authorizer, "/c").await, unsure);
        authorizer.changes().record(Affected::Everything);
        assert_eq!(wanted_by(&authorizer, "/d").await, VerdictAge::New);
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
                .decide_for_proxy(&request, ADDRESS, VerdictAge::Young)
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
        text(format!(r#"{{"status":{status},"ageMilliseconds":3000}}"#))
    })
    .await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    for number in 1..=3 {
        let decided = authorizer
            .decide_for_proxy(&request, ADDRESS, VerdictAge::Young)
            .await
            .unwrap();
        assert!(decided.verdict.age() >= Duration::from_secs(3));
        assert_eq!(asked.load(Ordering::SeqCst), number);
        tokio::time::sleep(Duration::from_millis(2_001)).await;
    }
}
