//! Calls that all share who want the same while they run.
use std::collections::HashMap;
use std::hash::Hash;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Lets callers of one key share the call that runs. It goes on for as long as any of them waits,
/// whoever began it.
///
/// Each call is a task. If the callers polled it, one that leaves could take the news of its progress
/// with it.
pub struct JoinedCalls<K, T>(Mutex<JoinedCallTable<K, T>>);

struct JoinedCallTable<K, T> {
    by_key: HashMap<K, JoinedCall<T>>,
    /// The number of the last call.
    last: u64,
}

struct JoinedCall<T> {
    number: u64,
    /// The result, once there is one. Closed without one if the call panicked.
    result: watch::Receiver<Option<T>>,
    callers: usize,
    _task: AbortOnDropHandle<()>,
}

/// One caller of a call.
struct CallPlace<'a, K: Eq + Hash, T> {
    calls: &'a JoinedCalls<K, T>,
    key: &'a K,
    number: u64,
}

impl<T: Send + Sync + 'static> JoinedCall<T> {
    fn begin(number: u64, call: BoxFuture<'static, T>) -> Self {
        let (sender, result) = watch::channel(None);
        let task = async move {
            sender.send_replace(Some(call.await));
        };
        Self {
            number,
            result,
            callers: 0,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }
}

impl<T> JoinedCall<T> {
    fn has_ended(&self) -> bool {
        self.result.borrow().is_some() || self.result.has_changed().is_err()
    }
}

impl<K, T> Default for JoinedCalls<K, T> {
    fn default() -> Self {
        Self(Mutex::new(JoinedCallTable {
            by_key: HashMap::new(),
            last: 0,
        }))
    }
}

impl<K: Clone + Eq + Hash, T: Clone + Send + Sync + 'static> JoinedCalls<K, T> {
    /// Returns the result of the call with this key that runs, which may have begun before this one
    /// came. Begins one if none runs. Needs a running runtime.
    ///
    /// # Panics
    ///
    /// Panics if the call that it began does. Those who joined it begin one of their own.
    pub async fn join(&self, key: &K, begin: impl Fn() -> BoxFuture<'static, T>) -> T {
        loop {
            let (_place, mut result, is_own) = self.enter(key, &begin);
            if let Ok(result) = result.wait_for(Option::is_some).await
                && let Some(result) = &*result
            {
                return result.clone();
            }
            assert!(!is_own, "a call panicked");
        }
    }

    /// Also returns `true` if the call is begun here.
    fn enter<'a>(
        &'a self,
        key: &'a K,
        begin: impl Fn() -> BoxFuture<'static, T>,
    ) -> (CallPlace<'a, K, T>, watch::Receiver<Option<T>>, bool) {
        let mut calls = self.0.lock();
        let JoinedCallTable { by_key, last } = &mut *calls;
        // The callers of one that has ended may not have taken the result yet.
        let is_own = by_key.get(key).is_none_or(JoinedCall::has_ended);
        if is_own {
            *last += 1;
            by_key.insert(key.clone(), JoinedCall::begin(*last, begin()));
        }
        let running = by_key.get_mut(key).expect("it runs, or was just begun");
        running.callers += 1;
        let place = CallPlace {
            calls: self,
            key,
            number: running.number,
        };
        (place, running.result.clone(), is_own)
    }
}

impl<K: Eq + Hash, T> Drop for CallPlace<'_, K, T> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        let Some(running) = calls.by_key.get_mut(self.key) else {
            return;
        };
        if running.number != self.number {
            return;
        }
        running.callers -= 1;
        if running.callers == 0 || running.has_ended() {
            calls.by_key.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::{join_all, poll_immediate};
    use tokio::sync::oneshot;

    use crate::test_support::eventually;

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
            self.calls.join(&"key", begin).await
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
        assert_eq!(counted.running(), 0);
        let ended = counted.ends.lock().pop().unwrap();
        eventually(|| ended.is_closed()).await;
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

    #[tokio::test]
    async fn a_panic_is_that_of_the_caller_who_began_the_call() {
        let counted = Arc::new(Counted::default());
        let join = || {
            let counted = Arc::clone(&counted);
            async move { counted.join().await }
        };
        let first = tokio::spawn(join());
        eventually(|| counted.begun() == 1).await;
        let second = tokio::spawn(join());
        let callers = || counted.calls.0.lock().by_key["key"].callers;
        eventually(|| callers() == 2).await;
        // The call unwraps its end.
        drop(counted.ends.lock().pop().unwrap());
        assert!(first.await.unwrap_err().is_panic());
        eventually(|| counted.begun() == 2).await;
        counted.end(7);
        assert_eq!((second.await.unwrap(), counted.running()), (7, 0));
    }
}
