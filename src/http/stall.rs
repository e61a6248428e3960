//! HTTP/2 streams whose client takes nothing of their answer: they are reset, and their neighbours on
//! the connection go on.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

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

pin_project! {
    /// A stream's task.
    struct Stream<F> {
        #[pin]
        inner: F,
        pace: Arc<Pace>,
        stall: Duration,
        // While something waits for the client: an idle watch has none.
        timer: Option<Pin<Box<Sleep>>>,
    }
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

    /// When the client will have taken nothing for too long; `None` when nothing waits for it.
    fn stalls_at(&self, stall: Duration) -> Option<Instant> {
        match self.waiting.load(Ordering::Acquire) {
            0 => None,
            since => Some(self.opened + Duration::from_millis(since) + stall),
        }
    }
}

impl<F: Future<Output = ()>> Future for Stream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if PACE.sync_scope(Arc::clone(this.pace), || this.inner.poll(context)).is_ready() {
            return Poll::Ready(());
        }
        if this.stall.is_zero() {
            return Poll::Pending;
        }
        // Only its own task hands out pieces, so now is the time to look.
        while let Some(until) = this.pace.stalls_at(*this.stall) {
            if until <= Instant::now() {
                metrics::answer_cut();
                tracing::debug!("the client takes nothing of an answer; the stream is reset");
                return Poll::Ready(());
            }
            let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Set for a piece that was taken since.
            timer.as_mut().reset(until);
        }
        *this.timer = None;
        Poll::Pending
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let pace = Arc::new(Pace::new());
        tokio::spawn(Stream { inner: stream, pace, stall: self.stall, timer: None });
    }
}
