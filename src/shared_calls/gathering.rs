//! Lets callers share calls. A call counts for the callers that came before it began. Those who come
//! later wait for the next one, which waits for a running call only at the limit of running calls.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// The rules for the start of a call that gathers callers.
#[derive(Clone, Copy, Debug)]
pub struct Gathering {
    /// From this number of callers on, the call begins when none has come for `lull`.
    pub enough: usize,
    /// A pause after which those who have come are not kept waiting.
    pub lull: Duration,
    /// The call begins after a pause of this length: no more callers are expected.
    pub silence: Duration,
    /// Longest wait of a caller for the begin of the call, unless it is held or too many are running.
    pub longest: Duration,
    /// Delays the begin of the call while enough callers wait.
    pub hold: Option<Hold>,
    /// Number of calls that may run at the same time.
    pub most_running: usize,
}

/// A longer wait for the begin of a call, which would end no sooner if it began earlier.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// The call begins no sooner.
    pub until: Instant,
    /// Fewer callers than this are not held.
    pub fewest: usize,
}

/// Lets callers share calls, each of which they wait for together.
pub struct Gatherings<T>(Arc<GatheringState<T>>);

struct GatheringState<T> {
    next: Mutex<Option<GatheringCall<T>>>,
    /// Calls that have begun and not ended.
    running: AtomicUsize,
    /// Notified at the end of a call.
    ended: Notify,
}

/// The next call, as its first caller makes it. It learns the number of its callers.
struct GatheringCall<T> {
    call: Box<dyn FnOnce(usize) -> BoxFuture<'static, T> + Send>,
    result: watch::Sender<Option<T>>,
    rules: Gathering,
    callers: usize,
    first: Instant,
    last: Instant,
    is_enough: Arc<Notify>,
}

impl<T> Default for Gatherings<T> {
    fn default() -> Self {
        Self(Arc::new(GatheringState {
            next: Mutex::new(None),
            running: AtomicUsize::new(0),
            ended: Notify::new(),
        }))
    }
}

impl<T> Gatherings<T> {
    /// Returns `true` if a call waits for more callers.
    pub fn is_open(&self) -> bool {
        self.0.next.lock().is_some()
    }

    /// Returns the number of calls that have begun and not ended.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }
}

impl<T: Clone + Send + Sync + 'static> Gatherings<T> {
    /// Returns the result of a call that begins after this one; `None` if it failed. The first
    /// caller says when it begins. The call runs in a task of its own and outlives its caller,
    /// because others may wait for it.
    pub async fn join<F, A>(&self, rules: Gathering, call: F) -> Option<T>
    where
        F: FnOnce(usize) -> A + Send + 'static,
        A: Future<Output = T> + Send + 'static,
    {
        let mut result = {
            let now = Instant::now();
            let mut next = self.0.next.lock();
            let gathering = next.get_or_insert_with(|| {
                let is_enough = Arc::new(Notify::new());
                tokio::spawn(Arc::clone(&self.0).run(Arc::clone(&is_enough)));
                GatheringCall {
                    call: Box::new(move |callers| Box::pin(call(callers))),
                    result: watch::Sender::new(None),
                    rules,
                    callers: 0,
                    first: now,
                    last: now,
                    is_enough,
                }
            });
            gathering.callers += 1;
            gathering.last = now;
            if gathering.callers == gathering.rules.enough {
                gathering.is_enough.notify_one();
            }
            gathering.result.subscribe()
        };
        let result = result.wait_for(Option::is_some).await.ok()?;
        (*result).clone()
    }
}

impl<T> GatheringState<T> {
    /// Waits until the next call should begin, and makes it.
    async fn run(self: Arc<Self>, is_enough: Arc<Notify>) {
        let (gathered, _running) = loop {
            let start = {
                let mut next = self.next.lock();
                let running = self.running.load(Ordering::Relaxed);
                match next.as_ref().map(|next| (next.start(), next.rules)) {
                    Some((start, _)) if start > Instant::now() => Some(start),
                    Some((_, rules)) if running >= rules.most_running => None,
                    // It counts before another one can gather.
                    _ => break (next.take(), RunningCall::begin(&self)),
                }
            };
            match start {
                // Ended early, the wait is for a lull only.
                Some(start) => {
                    let _ = timeout_at(start, is_enough.notified()).await;
                }
                None => self.ended.notified().await,
            }
        };
        // Those who have left need no answer.
        let Some(gathered) = gathered.filter(|gathered| !gathered.result.is_closed()) else {
            return;
        };
        let result = (gathered.call)(gathered.callers).await;
        gathered.result.send_replace(Some(result));
    }
}

impl<T> GatheringCall<T> {
    /// Returns the moment at which the call begins if nobody else comes.
    fn start(&self) -> Instant {
        let silence = if self.callers >= self.rules.enough {
            self.rules.lull
        } else {
            self.rules.silence
        };
        let gathered = (self.last + silence).min(self.first + self.rules.longest);
        let hold = self.rules.hold.filter(|hold| self.callers >= hold.fewest);
        hold.map_or(gathered, |hold| gathered.max(hold.until))
    }
}

/// A call that has begun, for as long as this lives.
struct RunningCall<'a, T>(&'a GatheringState<T>);

impl<'a, T> RunningCall<'a, T> {
    fn begin(state: &'a GatheringState<T>) -> Self {
        state.running.fetch_add(1, Ordering::Relaxed);
        Self(state)
    }
}

impl<T> Drop for RunningCall<'_, T> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;
    use tokio::time::{sleep, timeout};

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const RULES: Gathering = Gathering {
        enough: 10,
        lull: MILLI,
        silence: Duration::from_millis(8),
        longest: Duration::from_millis(25),
        hold: None,
        most_running: 2,
    };

    /// Calls that return their number and that of their callers.
    #[derive(Clone, Default)]
    struct CountedCalls {
        calls: Arc<Gatherings<(usize, usize)>>,
        made: Arc<AtomicUsize>,
    }

    impl CountedCalls {
        /// Comes after a while. The call ends when `may_end` has a permit.
        fn come(
            &self,
            after: Duration,
            may_end: &Arc<Semaphore>,
        ) -> JoinHandle<Option<(usize, usize)>> {
            let (counted, may_end) = (self.clone(), Arc::clone(may_end));
            tokio::spawn(async move {
                sleep(after).await;
                let made = counted.made;
                let call = move |callers| async move {
                    let number = made.fetch_add(1, Ordering::Relaxed) + 1;
                    drop(may_end.acquire().await);
                    (number, callers)
                };
                counted.calls.join(RULES, call).await
            })
        }
    }

    fn at_once() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_enough_callers_and_then_for_a_lull() {
        let (counted, began) = (CountedCalls::default(), Instant::now());
        let half = MILLI / 2;
        let burst: Vec<_> = (0..20)
            .map(|number| counted.come(number * half, &at_once()))
            .collect();
        for caller in burst {
            assert_eq!(caller.await.unwrap(), Some((1, 20)), "one call for all");
        }
        assert!(began.elapsed() <= 20 * half + 3 * MILLI);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_expects_nobody_else_begins() {
        let (counted, began) = (CountedCalls::default(), Instant::now());
        let alone = counted.come(Duration::ZERO, &at_once());
        assert_eq!(alone.await.unwrap(), Some((1, 1)));
        assert!(began.elapsed() <= RULES.silence + 2 * MILLI);
    }

    #[tokio::test(start_paused = true)]
    async fn only_callers_that_are_many_enough_are_held() {
        let (calls, until) = (Gatherings::default(), Duration::from_millis(90));
        for (callers, held) in [(4, RULES.silence), (5, until)] {
            let began = Instant::now();
            let rules = Gathering {
                hold: Some(Hold {
                    until: began + until,
                    fewest: 5,
                }),
                ..RULES
            };
            let call = |callers| async move { callers };
            let callers = (0..callers).map(|_| calls.join(rules, call));
            futures_util::future::join_all(callers).await;
            let took = began.elapsed();
            assert!((held..held + 2 * MILLI).contains(&took), "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_the_begin_longer_than_the_longest_wait() {
        let (counted, began) = (CountedCalls::default(), Instant::now());
        let trickle: Vec<_> = (0..8)
            .map(|number| counted.come(number * 6 * MILLI, &at_once()))
            .collect();
        let mut trickle = trickle.into_iter();
        let first = trickle.next().unwrap().await.unwrap();
        assert_eq!(first, Some((1, 5)));
        assert!(began.elapsed() <= RULES.longest + 2 * MILLI);
        for later in trickle {
            assert!(later.await.unwrap().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_does_not_wait_for_the_end_of_the_one_before() {
        let counted = CountedCalls::default();
        let hanging = Arc::new(Semaphore::new(0));
        let first = counted.come(Duration::ZERO, &hanging);
        let second = counted.come(RULES.longest, &at_once());
        let later = timeout(Duration::from_secs(1), second).await;
        let later = later.expect("a call of its own").unwrap();
        assert_eq!(later, Some((2, 1)));
        assert_eq!((first.is_finished(), counted.calls.running()), (false, 1));
        hanging.add_permits(1);
        assert_eq!(first.await.unwrap(), Some((1, 1)));
        assert_eq!(counted.calls.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_gather_until_one_of_the_most_calls_ends() {
        let counted = CountedCalls::default();
        let hanging = Arc::new(Semaphore::new(0));
        let running: Vec<_> = (0..2)
            .map(|number| counted.come(number * RULES.longest, &hanging))
            .collect();
        let later: Vec<_> = (4..8)
            .map(|number| counted.come(number * RULES.longest, &at_once()))
            .collect();
        sleep(20 * RULES.longest).await;
        assert_eq!(
            (counted.calls.is_open(), counted.calls.running()),
            (true, 2)
        );
        hanging.add_permits(1);
        for caller in later {
            assert_eq!(caller.await.unwrap(), Some((3, 4)), "one call for all");
        }
        for caller in running {
            assert!(caller.await.unwrap().is_some());
        }
        assert_eq!(counted.calls.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_waits_for_is_not_made() {
        let counted = CountedCalls::default();
        let caller = counted.come(Duration::ZERO, &at_once());
        sleep(MILLI).await;
        caller.abort();
        sleep(2 * RULES.longest).await;
        assert!(!counted.calls.is_open());
        let next = counted.come(Duration::ZERO, &at_once());
        assert_eq!(next.await.unwrap(), Some((1, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_does_not_block_later_ones() {
        let calls = Arc::new(Gatherings::default());
        let failed = calls.join(RULES, |_| async {
            if true { panic!("as planned") } else { 0 }
        });
        assert_eq!(failed.await, None);
        assert_eq!((calls.is_open(), calls.running()), (false, 0));
        assert_eq!(calls.join(RULES, |_| async { 7 }).await, Some(7));
    }
}
