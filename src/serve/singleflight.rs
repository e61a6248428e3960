//! One call at a time. Its result counts for every caller that was waiting when the call began.
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Lets callers share calls. A result is given only to callers that came before its call began: the
/// result of a running call may be older than the caller.
pub(super) struct Singleflight<T> {
    state: Mutex<FlightState<T>>,
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
}

impl<T> Default for Singleflight<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(FlightState {
                running: false,
                next: None,
            }),
        }
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
        // Taken before the call begins: those who come later wait for the next one.
        while let Some(PendingCall { call, result }) = guard.begin() {
            result.send_replace(Some(call().await));
        }
    }
}

/// Leaves the state in order, however the task ends.
struct FlightGuard<'a, T>(&'a Singleflight<T>);

impl<T> FlightGuard<'_, T> {
    fn begin(&self) -> Option<PendingCall<T>> {
        let mut state = self.0.state.lock();
        let next = state.next.take();
        state.running = next.is_some();
        next
    }
}

impl<T> Drop for FlightGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        // A call failed. Its callers learn of it from their channel, which closes.
        if std::thread::panicking() {
            *state = FlightState {
                running: false,
                next: None,
            };
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
