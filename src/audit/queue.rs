//! What stands between serving and a sink: bounded, and never waited for.
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics;
use crate::metric::Counter;

/// Events that wait, whatever number of them is allowed.
const MAX_BYTES: usize = 64 << 20;
/// Losses are logged once in so long.
const COMPLAIN_EVERY: Duration = Duration::from_mins(1);

/// The serving side.
pub(super) struct Queue {
    sender: mpsc::Sender<Message>,
    waiting: Arc<AtomicUsize>,
    losses: Arc<Losses>,
    /// Cancelled at the end: nothing is to be waited for any more.
    ending: CancellationToken,
}

/// The sink's side.
pub(super) struct Outlet {
    receiver: mpsc::Receiver<Message>,
    waiting: Arc<AtomicUsize>,
    pub(super) losses: Arc<Losses>,
    pub(super) ending: CancellationToken,
}

enum Message {
    Event(Bytes),
    /// Everything before it has arrived once this is told.
    Flush(oneshot::Sender<()>),
}

/// What a sink is to do next.
pub(super) enum Next {
    Event(Bytes),
    /// To be told once everything before it has arrived.
    Flush(oneshot::Sender<()>),
    /// Nobody will send anything any more.
    End,
}

/// Counts and tells what a sink loses.
pub(super) struct Losses {
    sink: &'static str,
    counter: Counter,
    complaints: Mutex<Complaints>,
}

#[derive(Default)]
struct Complaints {
    last: Option<Instant>,
    /// Lost since then.
    lost: usize,
}

/// A queue with room for so many events; `sink` is kube-apiserver's word for what is behind it.
pub(super) fn queue(sink: &'static str, size: usize) -> (Queue, Outlet) {
    // What an operator asks for beyond this would not fit into the bytes anyway.
    let (sender, receiver) = mpsc::channel(size.clamp(1, MAX_BYTES / 64));
    let losses = Arc::new(Losses {
        sink,
        counter: metrics::DROPPED.with([sink.into()]),
        complaints: Mutex::default(),
    });
    // The series is there from the start.
    losses.counter.increment(0);
    let (waiting, ending) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let queue = Queue {
        sender,
        waiting: Arc::clone(&waiting),
        losses: Arc::clone(&losses),
        ending: ending.clone(),
    };
    (
        queue,
        Outlet {
            receiver,
            waiting,
            losses,
            ending,
        },
    )
}

impl Queue {
    /// Takes an event if there is room.
    pub(super) fn push(&self, event: Bytes) {
        let size = event.len();
        let fits = self.waiting.fetch_add(size, Ordering::Relaxed) + size <= MAX_BYTES;
        if !fits || self.sender.try_send(Message::Event(event)).is_err() {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            self.losses.count(1, &"its queue is full");
        }
    }

    /// Waits until all that was taken has arrived, but not longer than this.
    pub(super) async fn flush(&self, patience: Duration) {
        self.ending.cancel();
        let (told, done) = oneshot::channel();
        let flushed =
            async { self.sender.send(Message::Flush(told)).await.is_ok() && done.await.is_ok() };
        if tokio::time::timeout(patience, flushed).await != Ok(true) {
            tracing::warn!(
                sink = self.losses.sink,
                "audit events that still waited are lost"
            );
        }
    }
}

impl Outlet {
    pub(super) async fn next(&mut self) -> Next {
        let message = self.receiver.recv().await;
        self.took(message)
    }

    pub(super) fn blocking_next(&mut self) -> Next {
        let message = self.receiver.blocking_recv();
        self.took(message)
    }

    /// What is there already.
    pub(super) fn ready(&mut self) -> Option<Next> {
        let message = self.receiver.try_recv().ok()?;
        Some(self.took(Some(message)))
    }

    fn took(&self, message: Option<Message>) -> Next {
        match message {
            Some(Message::Event(event)) => {
                self.waiting.fetch_sub(event.len(), Ordering::Relaxed);
                Next::Event(event)
            }
            Some(Message::Flush(told)) => Next::Flush(told),
            None => Next::End,
        }
    }
}

impl Losses {
    pub(super) fn count(&self, events: usize, why: &dyn Display) {
        self.counter.increment(events as u64);
        let mut complaints = self.complaints.lock();
        complaints.lost += events;
        if complaints
            .last
            .is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY)
        {
            let lost = std::mem::take(&mut complaints.lost);
            complaints.last = Some(Instant::now());
            drop(complaints);
            tracing::warn!(sink = self.sink, lost, %why, "audit events are lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(outlet: &Outlet) -> usize {
        outlet.waiting.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn what_does_not_fit_is_left_out() {
        let (queue, mut outlet) = queue("test", 2);
        for text in ["one", "two", "three"] {
            queue.push(Bytes::from_static(text.as_bytes()));
        }
        assert_eq!(waiting(&outlet), 6);
        let Next::Event(first) = outlet.next().await else {
            panic!("an event")
        };
        assert_eq!(first, "one");
        queue.push(Bytes::from_static(b"four"));
        for wanted in ["two", "four"] {
            assert!(matches!(outlet.ready(), Some(Next::Event(text)) if text == wanted));
        }
        assert!(outlet.ready().is_none());
        assert_eq!(waiting(&outlet), 0);
    }

    #[tokio::test]
    async fn bytes_are_bounded_too() {
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
    async fn the_end_is_not_waited_for_too_long() {
        let (queue, mut outlet) = queue("test", 1);
        queue.push(Bytes::from_static(b"one"));
        queue.flush(Duration::from_secs(5)).await;
        assert!(outlet.ending.is_cancelled());
        assert!(matches!(outlet.next().await, Next::Event(_)));
        let told = tokio::spawn(async move {
            while let Next::Event(_) | Next::Flush(_) = outlet.next().await {}
        });
        queue.flush(Duration::from_secs(5)).await;
        drop(queue);
        told.await.unwrap();
    }
}
