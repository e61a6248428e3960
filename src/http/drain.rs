//! The end in three acts: stop accepting, let the running requests finish, cut what is left.
//!
//! [`Trigger::drain`] starts the first two at once and sets the time of the third. Long answers, as
//! watches, hold a [`Watch`] and end themselves when [`Watch::draining`] comes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Starts the end. Dropping it without a call never ends anything.
#[derive(Clone, Debug)]
pub struct Trigger {
    deadline: Arc<watch::Sender<Option<Instant>>>,
}

/// Sees the end coming. Cheap to clone; every connection and every watch has one.
#[derive(Clone, Debug)]
pub struct Watch {
    /// `None` while all is well, then the moment of the third act.
    deadline: watch::Receiver<Option<Instant>>,
}

/// A trigger and its first watch.
pub fn channel() -> (Trigger, Watch) {
    let (sender, receiver) = watch::channel(None);
    (Trigger { deadline: Arc::new(sender) }, Watch { deadline: receiver })
}

// === impl Trigger ===

impl Trigger {
    /// Stops accepting and asks everything running to end; what still runs after `grace` is cut.
    /// A second call can only bring the deadline forward.
    pub fn drain(&self, grace: Duration) {
        let wanted = Instant::now() + grace;
        self.deadline.send_modify(|deadline| {
            *deadline = Some(deadline.map_or(wanted, |set| set.min(wanted)));
        });
    }

    /// A further watch.
    pub fn watch(&self) -> Watch {
        Watch { deadline: self.deadline.subscribe() }
    }
}

// === impl Watch ===

impl Watch {
    /// Whether the end has begun.
    pub fn is_draining(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Waits for the beginning of the end: finish what can be finished.
    pub async fn draining(&self) {
        self.deadline_set().await;
    }

    /// Waits for the third act: whatever still runs is dropped.
    pub async fn forced(&self) {
        loop {
            let deadline = self.deadline_set().await;
            let mut receiver = self.deadline.clone();
            receiver.mark_unchanged();
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => {
                    // It may have been moved between reading it and waiting for it, only forward.
                    return;
                }
                Ok(()) = receiver.changed() => {}
            }
        }
    }

    async fn deadline_set(&self) -> Instant {
        let mut receiver = self.deadline.clone();
        match receiver.wait_for(Option::is_some).await.map(|deadline| *deadline) {
            Ok(Some(deadline)) => deadline,
            // The trigger is gone: the end can't come any more.
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_third_act_comes_after_the_grace() {
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
    async fn without_a_call_nothing_ends() {
        let (trigger, watch) = channel();
        drop(trigger);
        tokio::time::timeout(Duration::from_hours(1), watch.draining()).await.unwrap_err();
    }
}
