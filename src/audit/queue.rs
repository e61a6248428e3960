//! The bounded queue between serving and a sink. Serving never waits for it.
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::metrics::Counter;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics;
use crate::log_throttle::LogThrottle;

/// Limit of the waiting bytes, whatever number of events is allowed.
const MAX_BYTES: usize = 64 << 20;
/// Interval at which losses are logged at most.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The sending side of a queue.
pub(super) struct EventQueue {
    sender: mpsc::Sender<QueueMessage>,
    waiting_bytes: Arc<AtomicUsize>,
    losses: Arc<Losses>,
    /// Cancelled at shutdown: from then on sinks do not wait for anything.
    ending: CancellationToken,
}

impl EventQueue {
    /// Adds an event, or drops and counts it if the queue is full.
    pub(super) fn push(&self, event: Bytes) {
        let size = event.len();
        let fits = self.waiting_bytes.fetch_add(size, Ordering::Relaxed) + size <= MAX_BYTES;
        if !fits || self.sender.try_send(QueueMessage::Event(event)).is_err() {
            self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
            self.losses.count(1, &"its queue is full");
        }
    }

    /// Waits until all earlier events have arrived, or for `patience`.
    pub(super) async fn flush(&self, patience: Duration) {
        self.ending.cancel();
        let (sender, receiver) = oneshot::channel();
        let flushed = async {
            let flush = QueueMessage::Flush(sender);
            self.sender.send(flush).await.is_ok() && receiver.await.is_ok()
        };
        if tokio::time::timeout(patience, flushed).await != Ok(true) {
            tracing::warn!(
                sink = self.losses.sink,
                "audit events that still waited are lost"
            );
        }
    }
}

/// The receiving side of a queue.
pub(super) struct QueueOutlet {
    receiver: mpsc::Receiver<QueueMessage>,
    waiting_bytes: Arc<AtomicUsize>,
    pub(super) losses: Arc<Losses>,
    pub(super) ending: CancellationToken,
}

impl QueueOutlet {
    /// Waits for the next message. Returns `None` when none will follow.
    pub(super) async fn next(&mut self) -> Option<QueueMessage> {
        let message = self.receiver.recv().await?;
        Some(self.taken(message))
    }

    /// Blocks until the next message. Returns `None` when none will follow.
    pub(super) fn blocking_next(&mut self) -> Option<QueueMessage> {
        let message = self.receiver.blocking_recv()?;
        Some(self.taken(message))
    }

    /// Returns the next message if it is there already.
    pub(super) fn ready(&mut self) -> Option<QueueMessage> {
        let message = self.receiver.try_recv().ok()?;
        Some(self.taken(message))
    }

    fn taken(&self, message: QueueMessage) -> QueueMessage {
        if let QueueMessage::Event(event) = &message {
            self.waiting_bytes.fetch_sub(event.len(), Ordering::Relaxed);
        }
        message
    }
}

/// A message to a sink.
pub(super) enum QueueMessage {
    Event(Bytes),
    /// To be answered when all earlier events have arrived.
    Flush(oneshot::Sender<()>),
}

/// Counts and logs the events that a sink loses.
pub(super) struct Losses {
    sink: &'static str,
    counter: Counter,
    line: LogThrottle,
}

impl Losses {
    pub(super) fn count(&self, events: usize, reason: &dyn Display) {
        self.counter.increment(events as u64);
        if let Some(lost) = self.line.count(events) {
            tracing::warn!(sink = self.sink, lost, %reason, "audit events are lost");
        }
    }
}

/// Creates a queue for `size` events. `sink` is kube-apiserver's name of the sink.
pub(super) fn queue(sink: &'static str, size: usize) -> (EventQueue, QueueOutlet) {
    // More events than this would not fit into the limit of bytes anyway.
    let (sender, receiver) = mpsc::channel(size.clamp(1, MAX_BYTES / 64));
    let losses = Arc::new(Losses {
        sink,
        counter: metrics::DROPPED.with([sink.into()]),
        line: LogThrottle::new(LOG_INTERVAL),
    });
    // The series exists from the start.
    losses.counter.increment(0);
    let waiting_bytes = Arc::new(AtomicUsize::new(0));
    let ending = CancellationToken::new();
    let queue = EventQueue {
        sender,
        waiting_bytes: Arc::clone(&waiting_bytes),
        losses: Arc::clone(&losses),
        ending: ending.clone(),
    };
    let outlet = QueueOutlet {
        receiver,
        waiting_bytes,
        losses,
        ending,
    };
    (queue, outlet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(outlet: &QueueOutlet) -> usize {
        outlet.waiting_bytes.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn events_that_do_not_fit_are_dropped() {
        let (queue, mut outlet) = queue("test", 2);
        for text in ["one", "two", "three"] {
            queue.push(Bytes::from_static(text.as_bytes()));
        }
        assert_eq!(waiting(&outlet), 6);
        let Some(QueueMessage::Event(first)) = outlet.next().await else {
            panic!("an event")
        };
        assert_eq!(first, "one");
        queue.push(Bytes::from_static(b"four"));
        for wanted in ["two", "four"] {
            assert!(matches!(outlet.ready(), Some(QueueMessage::Event(text)) if text == wanted));
        }
        assert!(outlet.ready().is_none());
        assert_eq!(waiting(&outlet), 0);
    }

    #[tokio::test]
    async fn waiting_bytes_are_bounded() {
        let (queue, mut outlet) = queue("test", 100);
        let large = Bytes::from(vec![b'a'; MAX_BYTES / 2]);
        for _ in 0..3 {
            queue.push(large.clone());
        }
        assert_eq!(waiting(&outlet), 2 * large.len());
        while outlet.ready().is_some() {}
        queue.push(large.clone());
        assert_eq!(waiting(&outlet), large.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_waits_for_a_limited_time() {
        let (queue, mut outlet) = queue("test", 1);
        queue.push(Bytes::from_static(b"one"));
        queue.flush(Duration::from_secs(5)).await;
        assert!(outlet.ending.is_cancelled());
        assert!(matches!(outlet.next().await, Some(QueueMessage::Event(_))));
        let emptied = tokio::spawn(async move { while outlet.next().await.is_some() {} });
        queue.flush(Duration::from_secs(5)).await;
        drop(queue);
        emptied.await.unwrap();
    }
}
