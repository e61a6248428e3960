//! Work that waits for its turn, a few pieces of each caller at a time.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::caller_key::CallerKey;

/// Number of callers from which on those without work are forgotten.
const MANY_CALLERS: usize = 1024;

/// Pieces of work that may run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Those of all callers together.
    pub all: usize,
    /// Those of each caller.
    pub each: usize,
}

/// Bounds the work that runs at a time, of all callers and of each.
///
/// Only as much work of a caller as may run at a time competes with that of others, which get
/// their turn in the order of their arrival. The rest of it waits behind its own.
#[derive(Debug)]
pub struct FairQueue {
    all: Arc<Semaphore>,
    each: usize,
    callers: Mutex<QueueCallers>,
}

#[derive(Debug)]
struct QueueCallers {
    own: HashMap<CallerKey, Arc<Semaphore>>,
    /// Number of callers at which those without work are forgotten.
    sweep_at: usize,
}

/// Permission of one piece of work to run, until it is dropped.
#[derive(Debug)]
pub struct QueueTurn {
    _own: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

impl QueueTurn {
    /// Lets others have the place. The work still counts for its caller.
    pub fn leave_to_others(&mut self) {
        self.all = None;
    }
}

impl FairQueue {
    /// Creates a queue for this much work at a time.
    pub fn new(seats: Seats) -> Self {
        Self {
            all: Arc::new(Semaphore::new(seats.all)),
            each: seats.each,
            callers: Mutex::new(QueueCallers {
                own: HashMap::new(),
                sweep_at: MANY_CALLERS,
            }),
        }
    }

    /// Waits for the turn of a caller's next piece of work, at most for so long.
    pub async fn turn_within(&self, caller: CallerKey, wait: Duration) -> Option<QueueTurn> {
        timeout(wait, self.turn(caller)).await.ok()
    }

    /// Waits for the turn of a caller's next piece of work.
    pub async fn turn(&self, caller: CallerKey) -> QueueTurn {
        let own = self.callers.lock().semaphore(caller, self.each);
        // Nobody closes them, so both are acquired.
        let own = own.acquire_owned().await.ok();
        let all = Arc::clone(&self.all).acquire_owned().await.ok();
        QueueTurn { _own: own, all }
    }
}

impl QueueCallers {
    fn semaphore(&mut self, caller: CallerKey, each: usize) -> Arc<Semaphore> {
        if self.own.len() >= self.sweep_at {
            // Permits and waiting tasks hold the semaphore, too.
            self.own.retain(|_, own| Arc::strong_count(own) > 1);
            self.sweep_at = MANY_CALLERS.max(self.own.len() * 2);
        }
        let own = self.own.entry(caller);
        Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(each))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn user(number: usize) -> CallerKey {
        CallerKey::user(&format!("user-{number}"))
    }

    #[tokio::test]
    async fn a_caller_with_much_work_delays_no_other() {
        let queue = FairQueue::new(Seats { all: 4, each: 2 });
        let running = [queue.turn(user(0)).await, queue.turn(user(0)).await];
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(queue.turn(user(0)))).collect();
        for turn in &mut waiting {
            assert!(turn.now_or_never_ref().is_none(), "its share is used");
        }
        let others = [queue.turn(user(1)).await, queue.turn(user(2)).await];
        let mut third = Box::pin(queue.turn(user(3)));
        assert!(third.now_or_never_ref().is_none(), "all turns are taken");
        drop(others);
        assert!(third.now_or_never_ref().is_some());
        drop(running);
        let begun = waiting
            .iter_mut()
            .filter_map(PollOnce::now_or_never_ref)
            .collect::<Vec<_>>();
        assert_eq!(begun.len(), 2, "its own work goes on, two at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_does_not_come_is_given_up_and_holds_nobody_up() {
        let queue = FairQueue::new(Seats { all: 1, each: 1 });
        let wait = Duration::from_secs(15);
        let running = queue.turn_within(user(0), wait).await;
        assert!(running.is_some());
        for number in 0..2 {
            assert!(queue.turn_within(user(number), wait).await.is_none());
        }
        drop(running);
        assert!(queue.turn_within(user(1), wait).await.is_some());
    }

    #[tokio::test]
    async fn callers_without_work_are_forgotten() {
        let queue = FairQueue::new(Seats {
            all: 10_000,
            each: 1,
        });
        let busy = queue.turn(user(usize::MAX)).await;
        for number in 0..10 * MANY_CALLERS {
            drop(queue.turn(user(number)).await);
        }
        assert!(queue.callers.lock().own.len() <= 2 * MANY_CALLERS);
        assert!(queue.callers.lock().own.contains_key(&user(usize::MAX)));
        drop(busy);
    }

    /// Polls a pinned future once.
    trait PollOnce: Future {
        fn now_or_never_ref(&mut self) -> Option<Self::Output>;
    }

    impl<F: Future> PollOnce for std::pin::Pin<Box<F>> {
        fn now_or_never_ref(&mut self) -> Option<Self::Output> {
            self.as_mut().now_or_never()
        }
    }
}
