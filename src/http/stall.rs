//! HTTP/2 streams whose client takes nothing of their answer: they are reset, and their neighbours on
//! the connection go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::Instant;

use super::metrics;

tokio::task_local! {
    /// Of the stream whose task this is.
    static PACE: Arc<Pace>;
}

/// How an answer is taken.
pub(super) struct Pace {
    opened: Instant,
    /// Since when a piece that was handed out is not asked after: milliseconds after `opened`, plus
    /// one, or 0 when nothing waits for the client. hyper asks for the next piece when the client's
    /// window and the stream's buffer have room, and not before.
    waiting: AtomicU64,
}

/// Runs HTTP/2 streams, each until its client has taken nothing of its answer for too long. Dropping a
/// stream's task is what resets it.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) stall: Duration,
}

impl Pace {
    fn new() -> Self {
        Pace { opened: Instant::now(), waiting: AtomicU64::new(0) }
    }

    /// That of the stream that this task serves; `None` on HTTP/1.
    pub(super) fn of_this_task() -> Option<Arc<Self>> {
        PACE.try_with(Arc::clone).ok()
    }

    /// A piece is asked for.
    pub(super) fn asked(&self) {
        self.waiting.store(0, Ordering::Release);
    }

    /// A piece is handed out.
    pub(super) fn handed_out(&self) {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.waiting.store(now.saturating_add(1), Ordering::Release);
    }

    async fn stalled(&self, stall: Duration) {
        loop {
            let now = Instant::now();
            let until = match self.waiting.load(Ordering::Acquire) {
                0 => now + stall,
                since => self.opened + Duration::from_millis(since) + stall,
            };
            if until <= now {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let stall = self.stall;
        // Boxed, as the task would have room for it three times over, and it is kilobytes.
        let mut stream = Box::pin(stream);
        let pace = Arc::new(Pace::new());
        let own = Arc::clone(&pace);
        tokio::spawn(PACE.scope(pace, async move {
            if stall.is_zero() {
                return stream.await;
            }
            tokio::select! {
                () = &mut stream => {}
                () = own.stalled(stall) => {
                    metrics::answer_cut();
                    tracing::debug!("the client takes nothing of an answer; the stream is reset");
                }
            }
        }));
    }
}
