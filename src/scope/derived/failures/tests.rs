//! Attempts over simulated hours.
use super::*;

const FIRST: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn pods() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "pods")
}

/// Counts the attempts within some hours. Each takes this time, and `end` tells how it ends.
async fn attempts(
    failures: &DerivationFailures,
    hours: u32,
    takes: Duration,
    end: impl Fn(&DerivationFailures),
) -> u32 {
    let (until, mut count) = (Instant::now() + HOUR * hours, 0);
    while Instant::now() < until {
        match failures.begin_attempt(&pods(), false) {
            Ok(()) => {
                count += 1;
                tokio::time::sleep(takes).await;
                failures.end_attempt(&pods(), false);
                end(failures);
            }
            Err(next) => tokio::time::sleep_until(next).await,
        }
    }
    count
}

fn unexplained(failures: &DerivationFailures) {
    failures.add(&FallbackReason::SelfCheck, &pods(), false);
}

fn release(version: &str) -> Release {
    serde_json::from_str(&format!(r#"{{"gitVersion":"{version}"}}"#)).unwrap()
}

fn is_due(failures: &DerivationFailures) -> bool {
    failures.begin_attempt(&pods(), false).is_ok()
}

#[tokio::test(start_paused = true)]
async fn attempts_become_rarer_while_they_fail() {
    for takes in [Duration::ZERO, LONGEST_ATTEMPT] {
        let failures = DerivationFailures::new(FIRST);
        unexplained(&failures);
        let first = attempts(&failures, 1, takes, unexplained).await;
        assert!((3..=6).contains(&first), "{first} in the first hour");
        let later = attempts(&failures, 10, takes, unexplained).await;
        assert!((7..=15).contains(&later), "{later} in ten hours");
        let days = attempts(&failures, 100, takes, unexplained).await;
        assert!((75..=135).contains(&days), "{days} in a hundred hours");
    }
}

#[tokio::test(start_paused = true)]
async fn successes_that_do_not_last_become_rarer() {
    for lasts in [Duration::ZERO, LONGEST_ATTEMPT, Duration::from_mins(30)] {
        let failures = DerivationFailures::new(FIRST);
        unexplained(&failures);
        let end = |failures: &DerivationFailures| {
            failures.succeeded(&pods(), false);
            assert!(!failures.contains(&pods(), false));
        };
        let (until, mut count) = (Instant::now() + HOUR * 10, 0);
        while Instant::now() < until {
            match failures.begin_attempt(&pods(), false) {
                Ok(()) => {
                    count += 1;
                    failures.end_attempt(&pods(), false);
                    end(&failures);
                    tokio::time::sleep(lasts).await;
                    unexplained(&failures);
                }
                Err(next) => tokio::time::sleep_until(next).await,
            }
        }
        assert!((6..=20).contains(&count), "{count} in ten hours");
        // A day later it is another trouble.
        failures.succeeded(&pods(), false);
        tokio::time::sleep(HOUR * 24).await;
        let next = failures.add(&FallbackReason::SelfCheck, &pods(), false);
        assert!(next <= Instant::now() + FIRST * 2, "{next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn scopes_that_fail_together_are_tried_one_after_the_other() {
    let failures = DerivationFailures::new(FIRST);
    for _ in 0..10 {
        let next = failures.add(&FallbackReason::SelfCheck, &pods(), false);
        assert!(next <= Instant::now() + FIRST * 2, "they count once");
    }
    tokio::time::sleep(FIRST * 2).await;
    assert!(is_due(&failures));
    // The attempt may take so long.
    tokio::time::sleep(LONGEST_ATTEMPT).await;
    assert!(!is_due(&failures));
    failures.end_attempt(&pods(), false);
    failures.succeeded(&pods(), false);
    assert!(is_due(&failures));
    // Nobody tells that it ended.
    tokio::time::sleep(LONGEST_ATTEMPT + FIRST).await;
    assert!(is_due(&failures));
    // Its scope was closed.
    failures.end_attempt(&pods(), false);
    tokio::time::sleep(FIRST).await;
    assert!(is_due(&failures));
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_while_another_runs() {
    let failures = DerivationFailures::new(FIRST);
    unexplained(&failures);
    tokio::time::sleep(FIRST * 2).await;
    assert!(is_due(&failures));
    // Another scope of the type fails, and upstream is of another release.
    let next = failures.add(&FallbackReason::SelfCheck, &pods(), false);
    assert!(next >= Instant::now() + LONGEST_ATTEMPT, "{next:?}");
    failures.begin_release();
    tokio::time::sleep(LONGEST_ATTEMPT).await;
    assert!(!is_due(&failures));
    failures.end_attempt(&pods(), false);
    assert!(is_due(&failures));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_release_is_tried_no_more_until_upstream_is_of_another() {
    let failures = DerivationFailures::new(FIRST);
    let unknown = release("v1.99.0");
    let reason = FallbackReason::UnknownRelease(unknown.clone());
    failures.add(&reason, &pods(), false);
    let tried = attempts(&failures, 24, Duration::ZERO, unexplained).await;
    assert_eq!(tried, 0);
    for same in [Some(&unknown), None] {
        failures.meet_release(same);
        assert!(failures.contains(&pods(), false), "{same:?}");
    }
    failures.meet_release(Some(&release("v1.37.0")));
    assert!(!failures.contains(&pods(), false));
    // Other types did not fail by themselves, and are not all tried at this moment.
    let services = GroupVersionResource::new("", "v1", "services");
    let next = failures.begin_attempt(&services, false).unwrap_err();
    assert!(next > Instant::now() + FIRST / 2, "{next:?}");
    tokio::time::sleep_until(next).await;
    assert_eq!(failures.begin_attempt(&services, false), Ok(()));
    assert!(is_due(&failures));
}

#[tokio::test(start_paused = true)]
async fn attempts_at_another_release_come_soon() {
    let failures = DerivationFailures::new(FIRST);
    unexplained(&failures);
    attempts(&failures, 10, Duration::ZERO, unexplained).await;
    assert!(failures.contains(&pods(), false));
    failures.begin_release();
    assert!(!failures.contains(&pods(), false));
    tokio::time::sleep(FIRST * 2).await;
    assert!(is_due(&failures));
}

#[tokio::test(start_paused = true)]
async fn releases_that_take_turns_hasten_few_attempts() {
    let failures = DerivationFailures::new(FIRST);
    unexplained(&failures);
    attempts(&failures, 10, Duration::ZERO, unexplained).await;
    let count = attempts(&failures, 10, Duration::ZERO, |failures| {
        unexplained(failures);
        failures.begin_release();
    });
    let count = count.await;
    assert!((7..=30).contains(&count), "{count} in ten hours");
}

#[tokio::test(start_paused = true)]
async fn types_that_a_server_did_not_stream_are_tried_once_an_hour() {
    let not_streamed = |failures: &DerivationFailures| {
        failures.add(&FallbackReason::NotStreamed, &pods(), false);
        // Servers of two releases take turns.
        failures.begin_release();
    };
    for lasts in [Duration::ZERO, Duration::from_mins(30)] {
        let failures = DerivationFailures::new(FIRST);
        not_streamed(&failures);
        // A new scope has no watches that could end.
        assert!(!failures.contains(&pods(), false));
        let began = Instant::now();
        let end = |failures: &DerivationFailures| {
            assert!(began.elapsed() >= HOUR * 3 / 4, "too early");
            failures.succeeded(&pods(), false);
            not_streamed(failures);
        };
        let count = attempts(&failures, 24, lasts, end).await;
        assert!((13..=32).contains(&count), "{count} in a day");
    }
}
