//! Calls that all share who want the same while they run.
use std::collections::HashMap;
use std::hash::Hash;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

/// Lets callers of one key share the call that runs. It goes on for as long as any of them waits,
/// whoever began it.
pub struct JoinedCalls<K, T: Clone>(Mutex<JoinedCallTable<K, T>>);

struct JoinedCallTable<K, T: Clone> {
    by_key: HashMap<K, JoinedCall<T>>,
    /// The number of the last call.
    last: u64,
}

struct JoinedCall<T: Clone> {
    number: u64,
    call: Shared<BoxFuture<'static, T>>,
    callers: usize,
}

/// One caller of a call.
struct CallPlace<'a, K: Clone + Eq + Hash, T: Clone> {
    calls: &'a JoinedCalls<K, T>,
    key: K,
    number: u64,
}

impl<T: Clone> JoinedCall<T> {
    fn has_ended(&self) -> bool {
        self.call.peek().is_some()
    }
}

impl<K, T: Clone> Default for JoinedCalls<K, T> {
    fn default() -> Self {
        Self(Mutex::new(JoinedCallTable {
            by_key: HashMap::new(),
            last: 0,
        }))
    }
}

impl<K: Clone + Eq + Hash, T: Clone> JoinedCalls<K, T> {
    /// Returns the result of the call with this key that runs, which may have begun before this one
    /// came. Begins one if none runs.
    pub async fn join(&self, key: K, begin: impl FnOnce() -> BoxFuture<'static, T>) -> T {
        let (_place, call) = self.enter(key, begin);
        call.await
    }

    fn enter(
        &self,
        key: K,
        begin: impl FnOnce() -> BoxFuture<'static, T>,
    ) -> (CallPlace<'_, K, T>, Shared<BoxFuture<'static, T>>) {
        let mut calls = self.0.lock();
        let JoinedCallTable { by_key, last } = &mut *calls;
        // Its callers may not have taken the result yet.
        if by_key.get(&key).is_some_and(JoinedCall::has_ended) {
            by_key.remove(&key);
        }
        let running = by_key.entry(key.clone()).or_insert_with(|| {
            *last += 1;
            JoinedCall {
                number: *last,
                call: begin().shared(),
                callers: 0,
            }
        });
        running.callers += 1;
        let place = CallPlace {
            calls: self,
            key,
            number: running.number,
        };
        (place, running.call.clone())
    }
}

impl<K: Clone + Eq + Hash, T: Clone> Drop for CallPlace<'_, K, T> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        let Some(running) = calls.by_key.get_mut(&self.key) else {
            return;
        };
        if running.number != self.number {
            return;
        }
        running.callers -= 1;
        let is_over = running.callers == 0 || running.has_ended();
        let ended = is_over.then(|| calls.by_key.remove(&self.key));
        drop(calls);
        // A call that is given up may hold anything.
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::{join_all, poll_immediate};
    use tokio::sync::oneshot;

    use super::*;

    /// Calls of one key, counted, each of which ends with what is sent.
    #[derive(Default)]
    struct Counted {
        calls: JoinedCalls<&'static str, usize>,
        begun: AtomicUsize,
        ends: Mutex<Vec<oneshot::Sender<usize>>>,
    }

    impl Counted {
        async fn join(&self) -> usize {
            let begin = || {
                self.begun.fetch_add(1, Ordering::SeqCst);
                let (sender, end) = oneshot::channel();
                self.ends.lock().push(sender);
                async { end.await.unwrap() }.boxed()
            };
            self.calls.join("key", begin).await
        }

        fn end(&self, with: usize) {
            self.ends.lock().pop().unwrap().send(with).unwrap();
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }

        fn running(&self) -> usize {
            self.calls.0.lock().by_key.len()
        }
    }

    #[tokio::test]
    async fn callers_share_the_call_that_runs() {
        let counted = Arc::new(Counted::default());
        let mut callers: Vec<_> = (0..3).map(|_| Box::pin(counted.join())).collect();
        for caller in &mut callers {
            assert_eq!(poll_immediate(caller).await, None);
        }
        counted.end(5);
        assert_eq!(join_all(callers).await, [5, 5, 5]);
        assert_eq!((counted.begun(), counted.running()), (1, 0));
    }

    #[tokio::test]
    async fn a_call_goes_on_for_whoever_waits() {
        let counted = Counted::default();
        let mut waiting = Box::pin(counted.join());
        for _ in 0..300 {
            let mut leaving = Box::pin(counted.join());
            assert_eq!(poll_immediate(&mut leaving).await, None);
            assert_eq!(poll_immediate(&mut waiting).await, None);
            // Whoever began the call leaves first.
            drop(std::mem::replace(&mut waiting, leaving));
        }
        counted.end(5);
        assert_eq!((waiting.await, counted.begun()), (5, 1));
    }

    #[tokio::test]
    async fn a_call_ends_with_its_last_caller() {
        let counted = Counted::default();
        assert_eq!(poll_immediate(Box::pin(counted.join())).await, None);
        assert!(counted.ends.lock()[0].is_closed());
        assert_eq!(counted.running(), 0);
        let mut next = Box::pin(counted.join());
        assert_eq!(poll_immediate(&mut next).await, None);
        counted.end(6);
        assert_eq!((next.await, counted.begun()), (6, 2));
    }

    #[tokio::test]
    async fn a_result_is_not_for_those_who_come_after_it() {
        let counted = Counted::default();
        let (mut first, mut slow) = (Box::pin(counted.join()), Box::pin(counted.join()));
        assert_eq!(poll_immediate(&mut first).await, None);
        assert_eq!(poll_immediate(&mut slow).await, None);
        counted.end(5);
        assert_eq!(first.await, 5);
        let mut late = Box::pin(counted.join());
        assert_eq!(poll_immediate(&mut late).await, None);
        // The caller that is slow to take its result is none of the next call's.
        assert_eq!(slow.await, 5);
        counted.end(6);
        assert_eq!((late.await, counted.running()), (6, 0));
    }
}
