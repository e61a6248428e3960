//! The queue of requests that wait for a connection, or for a stream of one.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// Requests that wait at a time. More are refused at once.
const MAX_WAITING: usize = 1_000;
/// Time after which the first request of a queue looks again. Other groups share some limits, and notify only
/// requests of their own.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The queue of requests that found neither a free stream in a group nor room for another connection.
/// Cheap to clone.
///
/// Only the first request of the queue looks, as each look passes over all connections.
#[derive(Clone)]
pub(in crate::upstream) struct ConnectionQueue(Arc<QueueState>);

struct QueueState {
    freed: Notify,
    waiting: Semaphore,
    first: Semaphore,
}

/// The first place of a queue.
pub(in crate::upstream) struct FirstPlace<'a> {
    freed: &'a Notify,
    deadline: Instant,
    _permits: [SemaphorePermit<'a>; 2],
}

/// The permits of a connection, which are given back when it has ended.
pub(in crate::upstream) struct ConnectionPermits {
    permits: Vec<OwnedSemaphorePermit>,
    queue: ConnectionQueue,
}

impl ConnectionQueue {
    /// Wakes the first request: a stream or a connection may be free.
    pub(in crate::upstream) fn notify_first(&self) {
        self.0.freed.notify_one();
    }

    /// Returns `true` if nobody waits.
    pub(in crate::upstream) fn is_empty(&self) -> bool {
        self.0.waiting.available_permits() == MAX_WAITING
    }

    /// Waits until all requests that came before have left the queue; `None` if they have not by the deadline, or
    /// if too many wait.
    pub(in crate::upstream) async fn first_place(
        &self,
        deadline: Instant,
    ) -> Option<FirstPlace<'_>> {
        let QueueState {
            freed,
            waiting,
            first,
        } = &*self.0;
        let waiting = waiting.try_acquire().ok()?;
        let first = timeout_at(deadline, first.acquire()).await.ok()?.ok()?;
        Some(FirstPlace {
            freed,
            deadline,
            _permits: [first, waiting],
        })
    }
}

impl Default for ConnectionQueue {
    fn default() -> Self {
        Self(Arc::new(QueueState {
            freed: Notify::new(),
            waiting: Semaphore::new(MAX_WAITING),
            first: Semaphore::new(1),
        }))
    }
}

impl FirstPlace<'_> {
    /// Returns the next notification. To miss none, it is taken before a look.
    pub(in crate::upstream) fn notified(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Returns `true` if the request has waited for long enough.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Waits until it is time to look again.
    pub(in crate::upstream) async fn look_again(&self, notified: Notified<'_>) {
        let latest = self.deadline.min(Instant::now() + LOOK_AGAIN);
        // Without a notification, it is time as well.
        let _ = timeout_at(latest, notified).await;
    }
}

impl ConnectionPermits {
    /// Creates the permits of a connection for which `queue` waits.
    pub(in crate::upstream) fn new(
        permits: Vec<OwnedSemaphorePermit>,
        queue: ConnectionQueue,
    ) -> Self {
        Self { permits, queue }
    }

    /// Returns the queue for the connection's streams.
    pub(super) fn queue(&self) -> &ConnectionQueue {
        &self.queue
    }
}

impl Drop for ConnectionPermits {
    fn drop(&mut self) {
        self.permits.clear();
        self.queue.notify_first();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    fn later() -> Instant {
        Instant::now() + PATIENCE
    }

    #[tokio::test]
    async fn requests_come_first_one_after_the_other() {
        let queue = ConnectionQueue::default();
        assert!(queue.is_empty());
        let first = queue.first_place(later()).await.unwrap();
        assert!(!queue.is_empty());
        let mut second = Box::pin(queue.first_place(later()));
        let mut third = Box::pin(queue.first_place(later()));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        // Whoever gives up leaves its place to the next one.
        drop(second);
        drop(first);
        assert!(matches!(third.now_or_never(), Some(Some(_))));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let queue = ConnectionQueue::default();
        let mut waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| Box::pin(queue.first_place(later())))
            .collect();
        let first = waiting[0].as_mut().await;
        for place in &mut waiting[1..] {
            assert!(place.as_mut().now_or_never().is_none());
        }
        assert!(matches!(
            queue.first_place(later()).now_or_never(),
            Some(None)
        ));
        drop((first, waiting));
        assert!(queue.first_place(later()).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_notification_before_the_wait_counts_and_patience_ends() {
        let queue = ConnectionQueue::default();
        let place = queue.first_place(later()).await.unwrap();
        let begun = Instant::now();
        let notified = place.notified();
        queue.notify_first();
        place.look_again(notified).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        place.look_again(place.notified()).await;
        assert!(begun.elapsed() >= LOOK_AGAIN, "others may have made room");
        let late = queue.first_place(Instant::now() + LOOK_AGAIN).await;
        assert!(late.is_none(), "the first one still looks");
        tokio::time::advance(PATIENCE).await;
        assert!(place.is_over());
    }
}
