//! Waiting for a condition, with a limit, on a machine that may stall.
use std::fmt::Debug;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::client::Answer;

/// The longest wait. It is generous because it only decides how long a failing test takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// The time limit of proofs of freshness for consistent reads (`src/serve/`), and of the first
/// answer to a review.
const PROOF: Duration = Duration::from_secs(3);

/// Time after a late proof in which reads may be forwarded without one: twice as long as the proxy
/// does that.
const UNPROVEN: Duration = Duration::from_secs(10);

/// Tries of a check that stalls can fail.
const TRIES: usize = 10;

/// Further tries of it without a stall: a machine may be slow and never stop.
const RETRIES: usize = 5;

/// A delay that a thread has on a machine that is too busy for such checks.
const STALL: Duration = Duration::from_millis(20);

/// Waits until a condition holds. Panics with the condition's last error if it never does.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(10);
    loop {
        match holds().await {
            Ok(()) => return,
            Err(why) if Instant::now() >= deadline => {
                panic!("{what}: not after {PATIENCE:?}: {why}")
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        // Each check costs processor time, too.
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
}

/// Waits until `now` returns the wanted value.
pub(crate) async fn becomes<T: PartialEq + Debug>(
    what: &str,
    wanted: T,
    mut now: impl AsyncFnMut() -> T,
) {
    eventually(what, async || {
        let now = now().await;
        if now == wanted {
            Ok(())
        } else {
            Err(format!("it is {now:?}, wanted is {wanted:?}"))
        }
    })
    .await;
}

/// Retries a check that can fail when the machine stalls. `holds` returns `Err` for such a failure.
/// It panics for any other failure. Few tries may fail while the clock shows no stall.
pub(crate) async fn unless_stalled(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let (mut whys, mut without_stall) = (Vec::new(), 0);
    while whys.len() < TRIES && without_stall <= RETRIES {
        // Boxed: a check with everything that it does is large.
        let (held, stall) = with_longest_stall(Box::pin(holds())).await;
        match held {
            Ok(()) => return,
            Err(why) => whys.push(format!("{why} (the longest stall was {stall:?})")),
        }
        without_stall += usize::from(stall < STALL);
    }
    panic!("{what}: not once: {whys:#?}");
}

/// Returns how late a thread wakes up meanwhile that only sleeps.
async fn with_longest_stall<T>(work: impl Future<Output = T>) -> (T, Duration) {
    const TICK: Duration = Duration::from_millis(5);
    // Dropped at the end of the work, or when it panics.
    let (end, ended) = mpsc::channel::<()>();
    let clock = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        loop {
            let slept = Instant::now();
            if ended.recv_timeout(TICK) != Err(mpsc::RecvTimeoutError::Timeout) {
                return longest;
            }
            longest = longest.max(slept.elapsed().saturating_sub(TICK));
        }
    });
    let outcome = work.await;
    drop(end);
    (outcome, clock.join().unwrap())
}

/// Returns an answer that came from memory with a proof of freshness. A stall longer than the time
/// limit of proofs makes the answer upstream's, and those of the seconds after it: then this asks
/// again.
pub(crate) async fn proven(mut ask: impl AsyncFnMut() -> Answer) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    let mut stalled = None;
    while Instant::now() < deadline {
        let asked = Instant::now();
        let answer = ask().await;
        if answer.header("x-watershed-source") == "linearizable" {
            return answer;
        }
        if asked.elapsed() >= PROOF {
            stalled = Some(Instant::now());
        }
        assert!(
            stalled.is_some_and(|since: Instant| since.elapsed() < UNPROVEN),
            "not from memory: {:?}",
            answer.headers
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("this machine is too slow for a proof");
}

/// Returns `true` if counts of requests at upstream are reliable. After a stall they are not,
/// because a request that is not answered in time is sent again.
pub(crate) fn at_leisure(since: Instant) -> bool {
    since.elapsed() < PROOF
}
