//! Shutdown in three steps: stop accepting, let running requests finish, cut what is left.
//!
//! [`DrainTrigger::drain`] starts the first two steps and sets the time of the third. Long answers,
//! such as watches, hold a [`DrainSignal`] and end themselves when it completes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::watch;
use tokio::time::Instant;

/// Starts the drain. Dropping it without a call ends nothing.
#[derive(Clone, Debug)]
pub struct DrainTrigger {
    deadline: Arc<watch::Sender<Option<Instant>>>,
    registry: Arc<SignalRegistry>,
}

/// Observes the drain. Cheap to clone; every connection has one.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    /// `None` before the drain, then the moment at which connections are cut.
    deadline: watch::Receiver<Option<Instant>>,
    registry: Arc<SignalRegistry>,
}

/// A future that completes when the drain begins.
///
/// It does what [`DrainWatch::draining`] does in a quarter of the memory: every open watch has one.
#[derive(Debug)]
pub struct DrainSignal {
    registry: Arc<SignalRegistry>,
    /// The registered waker and its key; `None` before the first poll.
    registration: Option<(usize, Waker)>,
}

/// The wakers of all drain signals.
#[derive(Debug, Default)]
struct SignalRegistry {
    signalled: AtomicBool,
    wakers: Mutex<Slab<Waker>>,
}

/// Returns a trigger and its first watch.
pub fn channel() -> (DrainTrigger, DrainWatch) {
    let (sender, receiver) = watch::channel(None);
    let registry = Arc::<SignalRegistry>::default();
    (
        DrainTrigger {
            deadline: Arc::new(sender),
            registry: Arc::clone(&registry),
        },
        DrainWatch {
            deadline: receiver,
            registry,
        },
    )
}

impl DrainTrigger {
    /// Stops accepting and asks everything running to end. What still runs after `grace` is cut.
    ///
    /// A second call can only bring the deadline forward.
    pub fn drain(&self, grace: Duration) {
        let wanted = Instant::now() + grace;
        self.deadline.send_modify(|deadline| {
            *deadline = Some(deadline.map_or(wanted, |set| set.min(wanted)));
        });
        self.registry.notify();
    }

    /// Returns another watch.
    pub fn watch(&self) -> DrainWatch {
        DrainWatch {
            deadline: self.deadline.subscribe(),
            registry: Arc::clone(&self.registry),
        }
    }
}

impl DrainWatch {
    /// Returns `true` once the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Waits until the drain begins. From then on, finish what can be finished.
    pub async fn draining(&self) {
        self.deadline_set().await;
    }

    /// Returns [`DrainWatch::draining`] as a small future.
    pub fn signal(&self) -> DrainSignal {
        DrainSignal {
            registry: Arc::clone(&self.registry),
            registration: None,
        }
    }

    /// Waits until the grace period is over. Then drop what still runs.
    pub async fn forced(&self) {
        self.deadline_set().await;
        let mut receiver = self.deadline.clone();
        loop {
            // It may be brought forward.
            let Some(deadline) = *receiver.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return,
                Ok(()) = receiver.changed() => {}
            }
        }
    }

    async fn deadline_set(&self) -> Instant {
        let mut receiver = self.deadline.clone();
        match receiver
            .wait_for(Option::is_some)
            .await
            .map(|deadline| *deadline)
        {
            Ok(Some(deadline)) => deadline,
            // Without a trigger the drain can never begin.
            _ => std::future::pending().await,
        }
    }
}

impl SignalRegistry {
    fn notify(&self) {
        self.signalled.store(true, Ordering::Release);
        // Cloned out: a woken task may drop its signal, which takes this lock.
        let wakers: Vec<_> = self
            .wakers
            .lock()
            .iter()
            .map(|(_, waker)| waker.clone())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for DrainSignal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            registry,
            registration,
        } = self.get_mut();
        let waker = context.waker();
        if registration
            .as_ref()
            .is_none_or(|(_, registered)| !registered.will_wake(waker))
        {
            let mut wakers = registry.wakers.lock();
            let key = match registration
                .as_ref()
                .and_then(|(key, _)| Some((*key, wakers.get_mut(*key)?)))
            {
                Some((key, registered)) => {
                    registered.clone_from(waker);
                    key
                }
                None => wakers.insert(waker.clone()),
            };
            drop(wakers);
            *registration = Some((key, waker.clone()));
        }
        // Read after registering: a notification in between would be missed otherwise.
        if registry.signalled.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for DrainSignal {
    fn drop(&mut self) {
        if let Some((key, _)) = self.registration {
            self.registry.wakers.lock().try_remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn signals_complete_when_the_drain_begins_and_leave_no_wakers() {
        let (trigger, watch) = channel();
        let mut waiting: Vec<_> = (0..3)
            .map(|_| {
                let mut signal = watch.signal();
                tokio::spawn(async move {
                    // The signal moves from one waker to another.
                    tokio::select! {
                        biased;
                        () = &mut signal => return,
                        () = std::future::ready(()) => {}
                    }
                    let woken_elsewhere =
                        futures_util::stream::FuturesUnordered::from_iter([signal]);
                    futures_util::StreamExt::collect::<()>(woken_elsewhere).await;
                })
            })
            .collect();
        while watch.registry.wakers.lock().len() < 3 {
            tokio::task::yield_now().await;
        }
        waiting.remove(0).abort();
        while watch.registry.wakers.lock().len() > 2 {
            tokio::task::yield_now().await;
        }
        assert!(waiting.iter().all(|signal| !signal.is_finished()));
        trigger.drain(Duration::from_secs(20));
        for signal in waiting {
            signal.await.unwrap();
        }
        watch.signal().await;
        assert!(watch.registry.wakers.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_cut_after_the_grace_period() {
        let (trigger, watch) = channel();
        assert!(!watch.is_draining());
        let begun = Instant::now();
        trigger.drain(Duration::from_secs(20));
        watch.draining().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        watch.forced().await;
        assert!(begun.elapsed() >= Duration::from_secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_call_brings_the_deadline_forward() {
        let (trigger, watch) = channel();
        let begun = Instant::now();
        trigger.drain(Duration::from_mins(10));
        let forced = tokio::spawn(async move { watch.forced().await });
        tokio::task::yield_now().await;
        trigger.drain(Duration::ZERO);
        forced.await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_trigger_ends_nothing() {
        let (trigger, watch) = channel();
        drop(trigger);
        tokio::time::timeout(Duration::from_hours(1), watch.draining())
            .await
            .unwrap_err();
    }
}
