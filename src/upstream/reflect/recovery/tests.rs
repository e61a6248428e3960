//! Recovery after failures of all kinds.
use super::*;

fn address(name: &str) -> Address {
    Address::parse(&format!("https://{name}:6443")).unwrap()
}

fn elsewhere(avoid: &[&str]) -> Route {
    Route::Elsewhere(avoid.iter().copied().map(address).collect())
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_at_once_only_before_the_first_grant() {
    let mut recovery = Recovery::new();
    assert!(recovery.refused(None, true));
    recovery.succeeded();
    assert!(!recovery.refused(None, true));
    tokio::time::advance(LASTING).await;
    assert!(
        !recovery.refused(None, true),
        "two refusals may be two accidents"
    );
    assert!(recovery.refused(None, true));
    recovery.succeeded();
    assert!(!recovery.refused(None, true));
    recovery.type_removed();
    assert!(recovery.refused(None, true));
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_state_that_was_followed_earlier_may_last_half_a_minute() {
    let mut recovery = Recovery::new();
    recovery.was_granted();
    assert!(recovery.refused(None, false), "it is the same everywhere");
    assert!(!recovery.refused(None, true));
    tokio::time::advance(LASTING / 2).await;
    recovery.failed();
    assert!(!recovery.refused(None, true));
    tokio::time::advance(LASTING / 2).await;
    assert!(recovery.refused(None, true));
    recovery.forget_earlier_grant();
    assert!(recovery.refused(None, true), "as before any first list");
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_is_over_delays_no_list() {
    let mut recovery = Recovery::new();
    recovery.succeeded();
    let connected = watch::Sender::default();
    for _ in 0..10 {
        recovery.unanswered(None);
        recovery.back_off_until_connected(connected.subscribe());
        recovery.wait().await;
    }
    let up = Instant::now();
    recovery.back_off_until_connected(connected.subscribe());
    connected.send_modify(|number| *number += 1);
    recovery.wait().await;
    assert!(up.elapsed() <= 2 * CONNECTED, "{:?}", up.elapsed());
    while !recovery.expired(None, 1) {}
    recovery.list_lost();
    recovery.list_again();
    recovery.back_off();
    recovery.wait().await;
    let longest = 2 * CONNECTED + SPREAD + LISTS.first;
    assert!(up.elapsed() <= longest, "{:?}", up.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lists_after_a_change_of_the_schema_wait_for_no_failure_of_before() {
    let mut recovery = Recovery::new();
    recovery.succeeded();
    let waits = async |recovery: &mut Recovery| {
        let began = Instant::now();
        recovery.wait().await;
        began.elapsed()
    };
    for _ in 0..10 {
        recovery.list_again();
        recovery.back_off();
    }
    recovery.list_at_once();
    assert_eq!(waits(&mut recovery).await, Duration::ZERO);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        recovery.list_rebuilt();
        longest = longest.max(waits(&mut recovery).await);
    }
    assert!(
        longest >= LISTS.first && longest <= REBUILT_LISTS.longest,
        "{longest:?}"
    );
    recovery.schema_changed();
    recovery.list_rebuilt();
    assert_eq!(waits(&mut recovery).await, Duration::ZERO);
    recovery.pause_until(Instant::now() + LASTING);
    recovery.list_at_once();
    assert!(waits(&mut recovery).await >= LASTING, "the caller's wish");
}

#[tokio::test(start_paused = true)]
async fn lists_whose_version_expires_again_and_again_become_rare() {
    let mut recovery = Recovery::new();
    recovery.succeeded();
    let began = Instant::now();
    for _ in 0..20 {
        recovery.expired(None, 1);
        recovery.back_off();
        recovery.wait().await;
    }
    assert!(
        began.elapsed() > 5 * ATTEMPTS.longest,
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_is_lost_once_its_failures_last_and_lists_are_answered() {
    let mut recovery = Recovery::new();
    let lasts = |recovery: &mut Recovery| {
        let is_lost = recovery.version_failed();
        assert!(!is_lost, "no list was answered");
        recovery.asks_if_lists_are_answered()
    };
    assert!(!lasts(&mut recovery));
    tokio::time::advance(LASTING).await;
    assert!(!lasts(&mut recovery), "two may be two accidents");
    tokio::time::advance(APART).await;
    assert!(!lasts(&mut recovery), "so may a third, much later");
    tokio::time::advance(LASTING / 2).await;
    assert!(!lasts(&mut recovery));
    tokio::time::advance(LASTING / 2).await;
    assert!(lasts(&mut recovery));
    recovery.set_lists_answered(false);
    assert!(lasts(&mut recovery));
    recovery.set_lists_answered(true);
    assert!(!recovery.asks_if_lists_are_answered());
    assert!(recovery.version_failed());
    recovery.version_not_shown();
    assert!(!lasts(&mut recovery), "it was something else");
}

#[tokio::test(start_paused = true)]
async fn refusals_with_other_failures_between_them_are_not_final() {
    let mut recovery = Recovery::new();
    recovery.succeeded();
    for _ in 0..20 {
        assert!(!recovery.refused(None, true));
        tokio::time::advance(LASTING / 2).await;
        recovery.failed();
    }
}

#[test]
fn a_server_that_fails_twice_in_a_row_is_avoided() {
    let mut recovery = Recovery::new();
    for _ in 0..2 {
        recovery.succeeded();
        recovery.unanswered(Some(address("a")));
        recovery.back_off();
        assert_eq!(
            recovery.route(),
            Route::Any,
            "it was restarted, for example"
        );
    }
    recovery.unanswered(Some(address("a")));
    assert_eq!(recovery.route(), elsewhere(&["a"]));
}

#[test]
fn every_server_is_asked_for_the_history_before_the_type_is_listed() {
    let mut recovery = Recovery::new();
    recovery.succeeded();
    let mut avoided = Vec::new();
    for server in ["a", "b", "c"] {
        assert!(!recovery.expired(Some(address(server)), 3));
        avoided.push(server);
        assert_eq!(recovery.route(), elsewhere(&avoided));
    }
    assert!(recovery.expired(Some(address("a")), 3));
    assert_eq!(recovery.route(), elsewhere(&["b", "c", "a"]));
    for number in 0..2 * AVOIDED {
        recovery.expired(Some(address(&number.to_string())), 3);
    }
    assert_eq!(recovery.avoid.len(), AVOIDED);
}

#[test]
fn attempts_after_a_bad_answer_avoid_its_server() {
    let mut recovery = Recovery::new();
    recovery.succeeded();
    assert_eq!(recovery.route(), Route::Any);
    recovery.refused(Some(address("a")), true);
    assert_eq!(recovery.route(), elsewhere(&["a"]));
    recovery.refused(Some(address("b")), true);
    assert_eq!(recovery.route(), elsewhere(&["a", "b"]));
    // All servers refuse: not every attempt makes a connection.
    let routes: Vec<_> = (0..10)
        .map(|_| {
            recovery.refused(Some(address("a")), true);
            recovery.route() == Route::Any
        })
        .collect();
    assert_eq!(routes.iter().filter(|any| **any).count(), 5, "{routes:?}");
    recovery.succeeded();
    assert_eq!(recovery.route(), Route::Any);
}
