//! One call at a time. Its result counts for every caller that was waiting when the call began.
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Longest wait for a small crowd that is expected to come again.
pub const REUNION: Duration = Duration::from_millis(10);
/// The same for each caller of a large one: as long as it takes at most to send an answer and to read
/// the next request.
const REUNION_OF_EACH: Duration = Duration::from_micros(250);
/// The same for any crowd.
const LONGEST_REUNION: Duration = Duration::from_millis(60);
/// Calls in a row that show that callers come all the time.
const SHOWN_BY: u32 = 4;
/// The least share of those who came before, in as much time, that shows it. Some of a crowd are late.
const AS_OFTEN: f64 = 0.8;
/// Time for which it is remembered that they do.
const STREAM_REMEMBERED: Duration = Duration::from_secs(10);

/// Lets callers share calls. A result is given only to callers that came before its call began: the
/// result of a running call may be older than the caller.
pub struct Singleflight<T> {
    pace: FlightPace,
    state: Mutex<FlightState<T>>,
    /// Notified when a crowd is complete.
    reunited: Notify,
}

/// The rules for the start of the next call.
#[derive(Clone, Copy, Debug)]
pub struct FlightPace {
    /// Time after which a call that hangs no longer holds up the next one.
    pub patience: Duration,
    /// Callers that make a call one of many: those who share it, and those who come while it runs.
    /// Fewer wait for no interval, as they would not if each made its own calls.
    pub many: usize,
    /// Calls of many in a row that need not keep the interval.
    pub burst: u32,
    /// Average interval between calls of many after a burst. Callers that come meanwhile share one
    /// call.
    pub interval: Duration,
    /// Number of callers that are a crowd; `None` if none are.
    ///
    /// Clients that read in a loop come again as soon as they have their result. Those who come
    /// while a call runs would form a second group, and each group a call of its own. So once a
    /// crowd has its result, the next call waits for all of it: for as long as a call takes, or as it
    /// takes to answer a large one.
    ///
    /// When all of a crowd wait, nobody is left to come while the call runs. Where callers come then
    /// as often as before, they are a stream of others, and a long wait would be for nothing.
    pub crowd: Option<usize>,
    /// A call ends when all of its callers have left. Others go on, as their results are of use later.
    pub ends_unwanted: bool,
}

impl FlightPace {
    /// Calls one after the other, which crowds share.
    pub const OF_CROWDS: Self = Self {
        patience: Duration::MAX,
        many: 0,
        burst: 0,
        interval: Duration::ZERO,
        crowd: Some(4),
        ends_unwanted: false,
    };

    /// Returns the longest time for which so many callers are expected again.
    pub fn longest_reunion(callers: usize) -> Duration {
        let callers = u32::try_from(callers).unwrap_or(u32::MAX);
        let of_each = REUNION_OF_EACH.saturating_mul(callers);
        of_each.clamp(REUNION, LONGEST_REUNION)
    }

    /// Returns `true` if so many callers are a crowd.
    pub fn is_crowd(self, callers: usize) -> bool {
        self.crowd.is_some_and(|least| callers >= least)
    }
}

impl Default for FlightPace {
    /// The next call begins when the one before has ended.
    fn default() -> Self {
        Self {
            patience: Duration::MAX,
            many: 0,
            burst: 0,
            interval: Duration::ZERO,
            crowd: None,
            ends_unwanted: false,
        }
    }
}

/// The next call, as the first waiting caller makes it, and the channel of its result. It may hold
/// that caller's credentials, also once that one has left, as long as another waits.
struct PendingCall<T> {
    call: Box<dyn FnOnce() -> BoxFuture<'static, T> + Send>,
    result: watch::Sender<Option<T>>,
    callers: usize,
}

struct FlightState<T> {
    running: bool,
    /// The call of those who came after the running one began.
    next: Option<PendingCall<T>>,
    /// The moment of the next call if all calls of many kept the interval.
    due: Option<Instant>,
    /// The callers for which the next call waits.
    crowd: Option<ExpectedCrowd>,
    stream: CallerStream,
}

/// Tells a crowd that comes again from others that come all the time.
#[derive(Default)]
struct CallerStream {
    /// Time for which the last call waited for a crowd.
    waited: Duration,
    /// Calls in a row, after a long wait, during which as many callers came as before.
    shown_by: u32,
    /// The moment at which enough calls had shown it.
    found: Option<Instant>,
}

/// Callers that are expected together.
#[derive(Clone, Copy)]
struct ExpectedCrowd {
    callers: usize,
    since: Instant,
    /// Then those who have come share a call.
    until: Instant,
}

impl<T> Default for Singleflight<T> {
    fn default() -> Self {
        Self::paced(FlightPace::default())
    }
}

impl<T> Singleflight<T> {
    /// Creates one whose calls keep this pace.
    pub fn paced(pace: FlightPace) -> Self {
        Self {
            pace,
            state: Mutex::new(FlightState {
                running: false,
                next: None,
                due: None,
                crowd: None,
                stream: CallerStream::default(),
            }),
            reunited: Notify::new(),
        }
    }

    /// Lets the next call begin no earlier than after a pause.
    pub fn rest(&self, pause: Duration) {
        self.state.lock().due = Some(Instant::now() + pause);
    }
}

impl<T: Clone + Send + Sync + 'static> Singleflight<T> {
    /// Returns the result of a call that begins after this one; `None` if it failed. The call runs
    /// in a task of its own, because others may wait for it. It outlives all of its callers, unless
    /// the pace says otherwise.
    pub async fn join<F, A>(self: &Arc<Self>, call: F) -> Option<T>
    where
        F: FnOnce() -> A + Send + 'static,
        A: Future<Output = T> + Send + 'static,
    {
        let mut result = {
            let mut state = self.state.lock();
            let next = state.next.get_or_insert_with(|| PendingCall {
                call: Box::new(|| Box::pin(call())),
                result: watch::Sender::new(None),
                callers: 0,
            });
            next.callers += 1;
            let result = next.result.subscribe();
            if state.is_reunited() {
                self.reunited.notify_one();
            }
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
            guard.reunite().await;
            // Taken before the call begins: those who come later wait for the next one.
            let Some(pending) = guard.take() else {
                continue;
            };
            let (result, began) = (pending.result, Instant::now());
            let mut call = (pending.call)();
            let outcome = tokio::select! {
                outcome = timeout(self.pace.patience, &mut call) => outcome,
                () = result.closed(), if self.pace.ends_unwanted => continue,
            };
            guard.count(pending.callers, began);
            if let Ok(value) = outcome {
                guard.expect_again(pending.callers, began.elapsed());
                result.send_replace(Some(value));
            } else {
                // It goes on for its own callers.
                tokio::spawn(async move { result.send_replace(Some(call.await)) });
            }
        }
    }
}

/// The state as the task sees it that runs the calls. Left in order if a call panics.
struct FlightGuard<'a, T>(&'a Singleflight<T>);

impl<T> FlightGuard<'_, T> {
    /// Returns the earliest start of the next call. `None` ends the run: nobody waits for one.
    fn next_start(&self) -> Option<Instant> {
        let mut state = self.0.state.lock();
        state.running = state.next.is_some();
        state.running.then(|| state.start(self.0.pace))
    }

    /// Counts a call towards the pace, if it is one of many.
    fn count(&self, callers: usize, began: Instant) {
        let mut state = self.0.state.lock();
        let meanwhile = state.next.as_ref().map_or(0, |next| next.callers);
        if callers + meanwhile >= self.0.pace.many {
            let due = state.due.map_or(began, |due| due.max(began));
            state.due = Some(due + self.0.pace.interval);
        }
    }

    /// Expects these callers again, and with them those who came while their call ran.
    fn expect_again(&self, callers: usize, took: Duration) {
        let mut state = self.0.state.lock();
        let since = Instant::now();
        let meanwhile = state.next.as_ref().map_or(0, |next| next.callers);
        state.stream.called(callers, took, meanwhile);
        let callers = callers + meanwhile;
        let longest = FlightPace::longest_reunion(callers);
        let wait = if longest > REUNION && !state.stream.is_known() {
            longest
        } else {
            took.min(REUNION)
        };
        let is_crowd = self.0.pace.is_crowd(callers);
        state.crowd = is_crowd.then(|| ExpectedCrowd {
            callers,
            since,
            until: since + wait,
        });
    }

    /// Waits for the crowd that is expected.
    async fn reunite(&self) {
        loop {
            let until = {
                let state = self.0.state.lock();
                match state.crowd {
                    Some(crowd) if !state.is_reunited() => crowd.until,
                    _ => return,
                }
            };
            if timeout_at(until, self.0.reunited.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Takes the next call, unless all of its callers have left.
    fn take(&self) -> Option<PendingCall<T>> {
        let next = {
            let mut state = self.0.state.lock();
            let waited = state.crowd.map(|crowd| crowd.since.elapsed());
            state.stream.waited = waited.unwrap_or_default();
            state.next.take()
        };
        next.filter(|next| !next.result.is_closed())
    }
}

impl CallerStream {
    /// Returns `true` if callers were found to come all the time.
    fn is_known(&self) -> bool {
        self.found
            .is_some_and(|at| at.elapsed() < STREAM_REMEMBERED)
    }

    /// Notes the end of a call for so many, and that others came while it ran.
    fn called(&mut self, callers: usize, took: Duration, meanwhile: usize) {
        if self.waited <= REUNION {
            return;
        }
        let share = took.as_secs_f64() / (self.waited + took).as_secs_f64();
        let as_before = callers as f64 * share;
        let is_shown = meanwhile as f64 >= AS_OFTEN * as_before;
        self.shown_by = if is_shown { self.shown_by + 1 } else { 0 };
        if self.shown_by >= SHOWN_BY {
            self.shown_by = 0;
            self.found = Some(Instant::now());
        }
    }
}

impl<T> FlightState<T> {
    /// Returns `true` if as many wait for the next call as are expected.
    fn is_reunited(&self) -> bool {
        let waiting = self.next.as_ref().map_or(0, |next| next.callers);
        self.crowd.is_some_and(|crowd| waiting >= crowd.callers)
    }

    /// Returns the earliest start of a call.
    fn start(&self, pace: FlightPace) -> Instant {
        let now = Instant::now();
        let ahead = pace.interval * pace.burst.saturating_sub(1);
        let start = self.due.and_then(|due| due.checked_sub(ahead));
        start.map_or(now, |start| start.max(now))
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

    const CALL: Duration = Duration::from_millis(5);

    /// Counts calls, each of which takes a moment, and returns their number.
    async fn count(flight: &Arc<Singleflight<usize>>, calls: &Arc<AtomicUsize>) -> Option<usize> {
        let calls = Arc::clone(calls);
        let call = move || async move {
            tokio::time::sleep(CALL).await;
            calls.fetch_add(1, Ordering::Relaxed) + 1
        };
        flight.join(call).await
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_trickle_in_share_calls_and_a_lone_one_waits_for_nothing() {
        const LONE: usize = 50;
        let flight = Arc::new(Singleflight::paced(FlightPace {
            many: 4,
            burst: 3,
            interval: Duration::from_millis(100),
            ..FlightPace::default()
        }));
        let calls = Arc::default();
        let began = Instant::now();
        for call in 1..=LONE {
            assert_eq!(count(&flight, &calls).await, Some(call));
        }
        assert_eq!(began.elapsed(), CALL * LONE as u32);
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
        let made = calls.load(Ordering::Relaxed) - LONE;
        assert!((10..=16).contains(&made), "{made} calls in a second");
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
    async fn a_call_ends_without_callers_if_its_result_is_of_no_other_use() {
        for ends_unwanted in [false, true] {
            let flight = Arc::new(Singleflight::paced(FlightPace {
                ends_unwanted,
                ..FlightPace::default()
            }));
            let calls = Arc::default();
            let caller = timeout(CALL / 2, count(&flight, &calls));
            assert!(caller.await.is_err());
            tokio::time::sleep(CALL).await;
            assert_eq!(calls.load(Ordering::Relaxed), usize::from(!ends_unwanted));
            assert!(
                count(&flight, &calls).await.is_some(),
                "the next one is made"
            );
        }
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

    /// Makes calls of 10 ms. Each client comes after a while, and so many times, with a pause after
    /// each call. Returns the number of calls.
    async fn calls_of(clients: &[(Duration, usize, Duration)]) -> usize {
        let flight = Arc::new(Singleflight::paced(FlightPace::OF_CROWDS));
        let calls: Arc<AtomicUsize> = Arc::default();
        let clients = clients.iter().map(|&(first, times, pause)| {
            let (flight, calls) = (Arc::clone(&flight), Arc::clone(&calls));
            tokio::spawn(async move {
                tokio::time::sleep(first).await;
                for _ in 0..times {
                    let calls = Arc::clone(&calls);
                    let call = move || async move {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        calls.fetch_add(1, Ordering::Relaxed)
                    };
                    flight.join(call).await.unwrap();
                    tokio::time::sleep(pause).await;
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        calls.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_comes_again_shares_one_call() {
        let milli = Duration::from_millis(1);
        // They come while calls run, which would make two groups of them.
        let crowd: Vec<_> = (0..20).map(|number| (milli * number, 50, milli)).collect();
        let calls = calls_of(&crowd).await;
        assert!((50..60).contains(&calls), "{calls} calls for 50 rounds");
        let began = Instant::now();
        let pair = [(milli, 50, milli), (5 * milli, 50, milli)];
        let calls = calls_of(&pair).await;
        assert!(
            calls > 90,
            "{calls} calls: a pair does not wait for each other"
        );
        assert!(began.elapsed() < 50 * 22 * milli, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_crowd_is_waited_for_while_its_answers_are_sent() {
        let milli = Duration::from_millis(1);
        // Each comes again after its answer, of which six are sent in a millisecond.
        let answered = |number: u32| milli * number / 6;
        let crowd: Vec<_> = (0..200)
            .map(|number| (answered(number), 20, answered(number)))
            .collect();
        let calls = calls_of(&crowd).await;
        assert!((20..26).contains(&calls), "{calls} calls for 20 rounds");
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_come_all_the_time_do_not_wait_for_long() {
        let milli = Duration::from_millis(1);
        // Five come in each millisecond, for four seconds.
        let callers: Vec<_> = (0..20_000)
            .map(|number| (milli * number / 5, 1, milli))
            .collect();
        let calls = calls_of(&callers).await;
        // Each call takes ten milliseconds, after as long a wait at most.
        assert!(calls > 180, "{calls} calls in four seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_does_not_come_again_is_not_waited_for_longer_than_a_call_takes() {
        let milli = Duration::from_millis(1);
        let mut clients: Vec<_> = (0..20).map(|number| (milli * number, 1, milli)).collect();
        // They are the last ones, and one of them comes again.
        clients.push((19 * milli, 2, milli));
        let began = Instant::now();
        assert_eq!(calls_of(&clients).await, 4);
        let of_calls = 4 * 11 * milli;
        assert!(
            began.elapsed() < of_calls + 24 * milli,
            "{:?}",
            began.elapsed()
        );
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
