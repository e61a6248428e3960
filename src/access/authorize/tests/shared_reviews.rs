//! Reviews of equal requests that arrive together.
use futures_util::future::{join_all, poll_immediate};
use http::StatusCode;
use tokio::sync::Notify;

use super::*;

/// Hundreds of equal requests whose clients do not wait for a slow webhook.
#[tokio::test]
async fn a_review_goes_on_for_those_who_wait_when_others_leave() {
    let pki = Pki::new();
    let (asked, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, may_answer) = (Arc::clone(&asked), Arc::clone(&answer));
    let api = Api::start(&pki, HTTP2, move |_, _| {
        let (count, may_answer) = (Arc::clone(&count), Arc::clone(&may_answer));
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            may_answer.notified().await;
            granted("")
        }
    })
    .await;
    let authorizer = authorizer_of(&pki, &api).await;
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    let review = || Box::pin(authorizer.review_shared(&request, VerdictUse::Here, ADDRESS));
    let mut waiting = review();
    for _ in 0..300 {
        let mut next = review();
        assert!(poll_immediate(&mut waiting).await.is_none());
        assert!(poll_immediate(&mut next).await.is_none());
        // The one that came first leaves.
        waiting = next;
    }
    let waiting = async { waiting.await.unwrap().is_allowed() };
    let answered = async {
        eventually(|| asked.load(Ordering::SeqCst) > 0).await;
        answer.notify_waiters();
    };
    let (is_allowed, ()) = tokio::join!(waiting, answered);
    assert!(is_allowed);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_review_that_failed_is_asked_for_again() {
    let refused = || {
        let mut answer = text("no");
        *answer.status_mut() = StatusCode::FORBIDDEN;
        answer
    };
    let (authorizer, asked, _api) = counting(refused).await;
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    for times in 1..=2 {
        let reviewed = authorizer
            .review_shared(&request, VerdictUse::Here, ADDRESS)
            .await;
        assert!(reviewed.is_err());
        assert_eq!(asked.load(Ordering::SeqCst), times);
    }
}

/// Upstream cannot decide any more: what it decided before may be wrong.
#[tokio::test]
async fn a_review_that_failed_ends_the_grant_before_it() {
    let is_granted = Arc::new(AtomicBool::new(true));
    let granting = Arc::clone(&is_granted);
    let (authorizer, asked, _api) = counting(move || {
        let mut answer = granted(BY_A_ROLE);
        if !granting.load(Ordering::SeqCst) {
            *answer.status_mut() = StatusCode::FORBIDDEN;
        }
        answer
    })
    .await;
    follow_rbac(&authorizer);
    let request = Arc::new(AccessRequest::example("ann", &[], Some("here")));
    let decide = async |age| {
        authorizer
            .decide_for_proxy(&request, ADDRESS, age)
            .await
            .is_ok()
    };
    assert!(decide(VerdictAge::New).await);
    assert!(decide(VerdictAge::Young).await);
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the grant is young");
    is_granted.store(false, Ordering::SeqCst);
    assert!(!decide(VerdictAge::New).await);
    assert!(!decide(VerdictAge::Young).await);
}

/// One address asks so much that its reviews wait, and also what another one asks.
#[tokio::test]
async fn a_caller_without_credentials_does_not_wait_for_the_turn_of_another_one() {
    let pki = Pki::new();
    let api = answering(&pki, |_| granted("")).await;
    let authorizer = authorizer_of(&pki, &api).await;
    let anonymous = Arc::new(Identity::anonymous());
    let other = IpAddr::from([192, 0, 2, 2]);
    let turns = (0..16).map(|_| authorizer.queues.of_access(&anonymous, ADDRESS));
    let turns = join_all(turns).await;
    let ask = |address| {
        let version = AccessTarget::get_of_path("/version");
        authorizer.authorize(&anonymous, address, version)
    };
    let mut waiting = Box::pin(ask(ADDRESS));
    assert!(poll_immediate(&mut waiting).await.is_none());
    assert!(ask(other).await.unwrap().is_allowed());
    assert!(poll_immediate(&mut waiting).await.is_none());
    drop(turns);
    assert!(waiting.await.unwrap().is_allowed());
}

/// Anybody can come without credentials, and be denied one namespace after the other.
#[tokio::test]
async fn denials_without_credentials_have_nobody_elsewhere_forwarded() {
    let denied = || text(r#"{"status":{"allowed":false}}"#);
    let (authorizer, _, _api) = counting(denied).await;
    let other = IpAddr::from([192, 0, 2, 2]);
    let is_reviewed = async |address, namespace| {
        let request = AccessRequest::example(
            "system:anonymous",
            &["system:unauthenticated"],
            Some(namespace),
        );
        let reviewed = authorizer.authorize(&request.identity, address, request.target.clone());
        match reviewed.await {
            Ok(reviewed) => {
                assert!(!reviewed.is_allowed());
                true
            }
            Err(error) => {
                assert!(matches!(*error, ReviewError::OftenDenied), "{error}");
                false
            }
        }
    };
    for namespace in ["one", "two"] {
        assert!(is_reviewed(ADDRESS, namespace).await);
    }
    assert!(!is_reviewed(ADDRESS, "three").await);
    assert!(is_reviewed(other, "four").await);
    assert!(!is_reviewed(ADDRESS, "five").await);
}

#[tokio::test(start_paused = true)]
async fn watches_without_credentials_take_turns_of_no_known_caller() {
    let (turns, anonymous) = (WatchTurns::default(), Identity::anonymous());
    let addresses = (1..100).map(|host| IpAddr::from([198, 51, 100, host]));
    let mut waiting: Vec<_> = addresses
        .map(|address| Box::pin(turns.turn(&anonymous, address)))
        .collect();
    let strangers = join_all(waiting.iter_mut().map(poll_immediate)).await;
    assert!(strangers.iter().any(Option::is_some));
    assert!(strangers.iter().any(Option::is_none));
    let known = AccessRequest::example("ann", &[], None).identity;
    assert!(
        poll_immediate(Box::pin(turns.turn(&known, ADDRESS)))
            .await
            .is_some()
    );
}
