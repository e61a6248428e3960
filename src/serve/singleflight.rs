//! One call at a time. Its result counts for every caller that was waiting when the call began.
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Lets callers share calls. A result is given only to callers that came before its call began: the
/// result of a running call may be older than the caller.
pub(super) struct Singleflight<T> {
    pace: FlightPace,
    state: Mutex<FlightState<T>>,
}

/// The rules for the start of the next call.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlightPace {
    /// Time after which a call that hangs no longer holds up the next one.
    pub(super) patience: Duration,
    /// Calls in a row that need not keep the interval.
    pub(super) burst: u32,
    /// Average interval between calls after a burst. Callers that come meanwhile share one call.
    pub(super) interval: Duration,
}

impl Default for FlightPace {
    /// The next call begins when the one before has ended.
    fn default() -> Self {
        Self {
            patience: Duration::MAX,
            burst: 0,
            interval: Duration::ZERO,
        }
    }
}

/// The next call, as the first waiting caller makes it, and the channel of its result. It may hold
/// that caller's credentials. Those of a caller who has left are not used for others.
struct PendingCall<T> {
    call: Box<dyn FnOnce() -> BoxFuture<'static, T> + Send>,
    result: watch::Sender<Option<T>>,
}

struct FlightState<T> {
    running: bool,
    /// The call of those who came after the running one began.
    next: Option<PendingCall<T>>,
    /// The moment of the next call if all calls kept the interval.
    due: Option<Instant>,
}

impl<T> Default for Singleflight<T> {
    fn default() -> Self {
        Self::paced(FlightPace::default())
    }
}

impl<T> Singleflight<T> {
    /// Creates one whose calls keep this pace.
    pub(super) fn paced(pace: FlightPace) -> Self {
        Self {
            pace,
            state: Mutex::new(FlightState {
                running: false,
                next: None,
                due: None,
            }),
        }
    }

    /// Lets the next call begin no earlier than after a pause.
    pub(super) fn rest(&self, pause: Duration) {
        self.state.lock().due = Some(Instant::now() + pause);
    }
}

impl<T: Clone + Send + Sync + 'static> Singleflight<T> {
    /// Returns the result of a call that begins after this one; `None` if it failed. The call runs
    /// in a task of its own and outlives its caller, because others may wait for it.
    pub(super) async fn join<F, A>(self: &Arc<Self>, call: F) -> Option<T>
    where
        F: FnOnce() -> A + Send + 'static,
        A: Future<Output = T> + Send + 'static,
    {
        let mut result = {
            let mut state = self.state.lock();
            let next = state.next.get_or_insert_with(|| PendingCall {
                call: Box::new(|| Box::pin(call())),
                result: watch::Sender::new(None),
            });
            let result = next.result.subscribe();
            if !std::mem::replace(&mut state.running, true) {
                tokio::spawn(Arc::clone(self).run());
            }
            result
        };
        let result = result.wait_for(Option::is_some).await.ok()?;
        (*result).clone()
    }

    async fn run(self: Arc<Self>) {
        let guard = FlightGuard(&self);
        while let Some(start) = guard.next_start() {
            if start > Instant::now() {
                sleep_until(start).await;
            }
            // Taken before the call begins: those who come later wait for the next one.
            let Some(PendingCall { call, result }) = guard.take() else {
                continue;
            };
            let mut call = call();
            if let Ok(value) = timeout(self.pace.patience, &mut call).await {
                result.send_replace(Some(value));
            } else {
                // It goes on for its own callers.
                tokio::spawn(async move { result.send_replace(Some(call.await)) });
            }
        }
    }
}

/// Leaves the state in order, however the task ends.
struct FlightGuard<'a, T>(&'a Singleflight<T>);

impl<T> FlightGuard<'_, T> {
    /// Returns the earliest start of the next call. `None` ends the run: nobody waits for one.
    fn next_start(&self) -> Option<Instant> {
        let mut state = self.0.state.lock();
        state.running = state.next.is_some();
        state.running.then(|| state.schedule(self.0.pace))
    }

    /// Takes the next call, unless all of its callers have left.
    fn take(&self) -> Option<PendingCall<T>> {
        let next = self.0.state.lock().next.take();
        next.filter(|next| !next.result.is_closed())
    }
}

impl<T> FlightState<T> {
    /// Returns the start of a call, and counts it.
    fn schedule(&mut self, pace: FlightPace) -> Instant {
        let now = Instant::now();
        let due = self.due.unwrap_or(now);
        let ahead = pace.interval * pace.burst.saturating_sub(1);
        let start = due.checked_sub(ahead).unwrap_or(now).max(now);
        self.due = Some(due.max(start) + pace.interval);
        start
    }
}

impl<T> Drop for FlightGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        // A call failed. Its callers learn of it from their channel, which closes.
        if std::thread::panicking() {
            state.running = false;
            state.next = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_result_is_for_callers_that_came_before_its_call() {
        let flight = Arc::new(Singleflight::default());
        let (asked, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let come = || {
            let (flight, asked, may_answer) = (flight.clone(), asked.clone(), may_answer.clone());
            tokio::spawn(async move {
                flight
                    .join(move || {
                        let call = asked.fetch_add(1, Ordering::Relaxed) + 1;
                        let may_answer = may_answer.clone();
                        async move {
                            may_answer.acquire().await.unwrap().forget();
                            call
                        }
                    })
                    .await
            })
        };
        let settle = || async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        let first = come();
        settle().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let later: Vec<_> = (0..100).map(|_| come()).collect();
        settle().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one call at a time");
        // A caller that goes away takes nothing with it.
        first.abort();
        may_answer.add_permits(2);
        for caller in later {
            assert_eq!(caller.await.unwrap(), Some(2));
        }
        let after = come();
        may_answer.add_permits(1);
        assert_eq!(after.await.unwrap(), Some(3));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    /// Counts calls, and returns their number.
    async fn count(flight: &Arc<Singleflight<usize>>, calls: &Arc<AtomicUsize>) -> Option<usize> {
        let calls = Arc::clone(calls);
        let call = move || async move { calls.fetch_add(1, Ordering::Relaxed) + 1 };
        flight.join(call).await
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_trickle_in_share_calls_after_a_burst() {
        let flight = Arc::new(Singleflight::paced(FlightPace {
            burst: 3,
            interval: Duration::from_millis(100),
            ..FlightPace::default()
        }));
        let calls = Arc::default();
        let began = Instant::now();
        for call in 1..=3 {
            assert_eq!(count(&flight, &calls).await, Some(call));
        }
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "a lone caller waits for nothing"
        );
        let callers: Vec<_> = (0..1000)
            .map(|number| {
                let (flight, calls) = (Arc::clone(&flight), Arc::clone(&calls));
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(number)).await;
                    count(&flight, &calls).await
                })
            })
            .collect();
        for caller in callers {
            assert!(caller.await.unwrap().is_some());
        }
        let made = calls.load(Ordering::Relaxed);
        assert!((10..=14).contains(&made), "{made} calls in a second");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        for _ in 0..3 {
            count(&flight, &calls).await;
        }
        assert_eq!(
            began.elapsed(),
            Duration::ZERO,
            "after a rest there is a burst again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_does_not_hold_up_later_callers() {
        let flight = Arc::new(Singleflight::paced(FlightPace {
            patience: Duration::from_secs(2),
            ..FlightPace::default()
        }));
        let (answer, hangs) = tokio::sync::oneshot::channel();
        let first = tokio::spawn({
            let flight = Arc::clone(&flight);
            async move {
                let call = move || async move { hangs.await.unwrap_or(0) };
                flight.join(call).await
            }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(flight.join(|| async { 2 }).await, Some(2));
        assert_eq!(flight.join(|| async { 3 }).await, Some(3));
        answer.send(1).unwrap();
        assert_eq!(
            first.await.unwrap(),
            Some(1),
            "its own caller still gets it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_waits_for_is_not_made() {
        let flight = Arc::new(Singleflight::paced(FlightPace {
            burst: 1,
            interval: Duration::from_secs(1),
            ..FlightPace::default()
        }));
        let calls = Arc::default();
        count(&flight, &calls).await;
        let impatient = timeout(Duration::from_millis(1), count(&flight, &calls));
        assert!(impatient.await.is_err());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(count(&flight, &calls).await, Some(2));
    }

    #[tokio::test]
    async fn a_failed_call_does_not_block_later_ones() {
        let flight = Arc::new(Singleflight::default());
        let failed = flight
            .join(|| async { if true { panic!("as planned") } else { 0 } })
            .await;
        assert_eq!(failed, None);
        assert_eq!(flight.join(|| async { 7 }).await, Some(7));
    }
}
