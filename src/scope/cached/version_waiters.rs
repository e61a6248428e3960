//! Readers that wait for a version, ordered by it.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;
use watershed_protocol::ResourceVersion;

/// Wakes each reader when the version arrives that it waits for. Events before it wake nobody: a
/// thousand readers of a busy type would otherwise be woken a thousand times a second, each.
#[derive(Debug, Default)]
pub(in crate::scope) struct VersionWaiters {
    waiting: Mutex<BTreeMap<WaiterKey, oneshot::Sender<()>>>,
    /// Number of waiters so far. It tells apart those that wait for the same version.
    count: AtomicU64,
    vain: Mutex<VainWait>,
}

/// The last wait that was in vain.
#[derive(Clone, Copy, Debug, Default)]
struct VainWait {
    /// The version that was reached.
    reached: ResourceVersion,
    /// The version that was waited for.
    wanted: ResourceVersion,
    lasted: Duration,
}

/// The version that a reader waits for, and the reader's number.
type WaiterKey = (ResourceVersion, u64);

/// The entry of one reader, for as long as this lives.
struct VersionWaiter<'a> {
    waiters: &'a VersionWaiters,
    key: WaiterKey,
}

impl VersionWaiters {
    /// Waits until `reached` returns `version` or a later one. Returns at once if it does already.
    pub(in crate::scope) async fn wait(
        &self,
        version: ResourceVersion,
        reached: impl Fn() -> ResourceVersion,
    ) {
        while reached() < version {
            let (arrival, arrived) = oneshot::channel();
            let number = self.count.fetch_add(1, Ordering::Relaxed);
            let waiter = VersionWaiter {
                waiters: self,
                key: (version, number),
            };
            self.waiting.lock().insert(waiter.key, arrival);
            // The version may have arrived before the entry was there.
            if reached() >= version {
                return;
            }
            // An entry that is dropped ends the wait, too; then the version is looked at again.
            let _ = arrived.await;
        }
    }

    /// Waits until `reached` returns `version` or a later one. Returns `false` if it does not within
    /// `wait`, or at once if it returns the same as when such a wait, or a longer one, for this or an
    /// earlier version was in vain.
    pub(in crate::scope) async fn catch_up(
        &self,
        version: ResourceVersion,
        reached: impl Fn() -> ResourceVersion,
        wait: Duration,
    ) -> bool {
        let before = reached();
        if before >= version {
            return true;
        }
        let vain = *self.vain.lock();
        if vain.reached == before && vain.wanted <= version && wait <= vain.lasted {
            return false;
        }
        let is_reached = timeout(wait, self.wait(version, &reached)).await.is_ok();
        if !is_reached && reached() == before {
            let mut vain = self.vain.lock();
            // An earlier version that others waited for has not arrived either.
            let is_same = vain.reached == before;
            let earlier = is_same.then_some(vain.wanted);
            *vain = VainWait {
                reached: before,
                wanted: earlier.map_or(version, |earlier| earlier.min(version)),
                lasted: wait,
            };
        }
        is_reached
    }

    /// Wakes the readers that wait for `version` or an earlier one. It must be called after the
    /// version has become visible.
    pub(in crate::scope) fn arrived(&self, version: ResourceVersion) {
        let reached = {
            let mut waiting = self.waiting.lock();
            match waiting.first_key_value() {
                Some(((first, _), _)) if *first <= version => {
                    let later =
                        waiting.split_off(&(ResourceVersion(version.0.saturating_add(1)), 0));
                    std::mem::replace(&mut *waiting, later)
                }
                _ => return,
            }
        };
        for arrival in reached.into_values() {
            let _ = arrival.send(());
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.waiting.lock().len()
    }
}

impl Drop for VersionWaiter<'_> {
    fn drop(&mut self) {
        self.waiters.waiting.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Poll, Wake, Waker};

    use tokio::time::Instant;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct CountedWakeUps(AtomicUsize);

    impl Wake for CountedWakeUps {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waiter_is_woken_once_when_its_version_arrives() {
        let (waiters, now) = (VersionWaiters::default(), AtomicU64::new(0));
        let reached = || ResourceVersion(now.load(Ordering::Relaxed));
        let wake_ups = Arc::new(CountedWakeUps::default());
        let waker = Waker::from(Arc::clone(&wake_ups));
        let mut context = Context::from_waker(&waker);
        // Ten wait for each of a hundred versions, among a thousand events.
        let mut waits: Vec<_> = (1..=1000)
            .map(|number| {
                Box::pin(waiters.wait(ResourceVersion(u64::div_ceil(number, 10) * 10), reached))
            })
            .collect();
        for wait in &mut waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        for version in 1..=1000 {
            now.store(version, Ordering::Relaxed);
            waiters.arrived(ResourceVersion(version));
            let woken = usize::try_from(version / 10 * 10).unwrap();
            assert_eq!(wake_ups.0.load(Ordering::Relaxed), woken, "at {version}");
        }
        for wait in &mut waits {
            assert_eq!(wait.as_mut().poll(&mut context), Poll::Ready(()));
        }
        assert_eq!(waiters.len(), 0);
    }

    #[test]
    fn a_reader_that_gives_up_leaves_nothing() {
        let waiters = VersionWaiters::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut wait = Box::pin(waiters.wait(ResourceVersion(7), ResourceVersion::default));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        assert_eq!(waiters.len(), 1);
        drop(wait);
        assert_eq!(waiters.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn readers_of_a_scope_to_which_nothing_comes_wait_once() {
        let (waiters, now) = (VersionWaiters::default(), AtomicU64::new(3));
        let reached = || ResourceVersion(now.load(Ordering::Relaxed));
        let (began, wait) = (Instant::now(), Duration::from_secs(1));
        let wanted = ResourceVersion(7);
        for _ in 0..3 {
            assert!(!waiters.catch_up(wanted, reached, wait).await);
            assert_eq!(began.elapsed(), wait);
        }
        // A watch waits for longer than a list.
        assert!(!waiters.catch_up(wanted, reached, 2 * wait).await);
        assert_eq!(began.elapsed(), 3 * wait);
        // What came may not be all.
        now.store(5, Ordering::Relaxed);
        assert!(!waiters.catch_up(wanted, reached, wait).await);
        assert_eq!(began.elapsed(), 4 * wait);
        // A reader of the far future does not speak for others, and they do for it.
        let (early, late) = (ResourceVersion(6), ResourceVersion(u64::MAX));
        assert!(!waiters.catch_up(late, reached, wait).await);
        assert_eq!(began.elapsed(), 4 * wait);
        assert!(!waiters.catch_up(early, reached, wait).await);
        assert_eq!(began.elapsed(), 5 * wait);
        assert!(!waiters.catch_up(late, reached, 2 * wait).await);
        assert!(!waiters.catch_up(early, reached, wait).await);
        assert_eq!(began.elapsed(), 7 * wait);
        now.store(7, Ordering::Relaxed);
        assert!(waiters.catch_up(wanted, reached, wait).await);
        assert_eq!(began.elapsed(), 7 * wait);
    }

    /// A scope may be listed again at an older version between an arrival and the wake-up.
    #[test]
    fn a_version_that_is_gone_again_is_waited_for() {
        let (waiters, now) = (VersionWaiters::default(), AtomicU64::new(0));
        let reached = || ResourceVersion(now.load(Ordering::Relaxed));
        let mut context = Context::from_waker(Waker::noop());
        let mut wait = Box::pin(waiters.wait(ResourceVersion(7), reached));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        waiters.arrived(ResourceVersion(8));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        now.store(7, Ordering::Relaxed);
        waiters.arrived(ResourceVersion(7));
        assert!(wait.as_mut().poll(&mut context).is_ready());
    }
}
