//! HTTP/2 streams whose client takes nothing of their answer: they are reset, and their neighbours
//! on the connection go on.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use super::metrics;

tokio::task_local! {
    /// Of the stream whose task is polled.
    static PACE: Cell<Pace>;
}

/// What became of an answer's pieces while its stream was polled. hyper asks for the next piece
/// when the client's window and the stream's buffer have room, and not before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Nothing: whether one waits for the client is as it was.
    AsBefore,
    /// The next one is asked for: none waits.
    Asked,
    /// One was handed out, and waits.
    HandedOut,
}

/// Runs HTTP/2 streams, each until its client has taken nothing of its answer for too long.
/// Dropping a stream's task is what resets it.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) stall: Duration,
}

pin_project! {
    /// A stream's task.
    struct Stream<F> {
        #[pin]
        inner: F,
        stall: Duration,
        // While something waits for the client: an idle watch has none.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl Pace {
    /// Whether this task is a stream's. HTTP/1 has none.
    pub(super) fn is_kept() -> bool {
        PACE.try_with(|_| ()).is_ok()
    }

    /// Tells the stream whose task this is. Of HTTP/1 nobody is told.
    pub(super) fn tell(self) {
        let _ = PACE.try_with(|pace| pace.set(self));
    }
}

impl<F: Future<Output = ()>> Future for Stream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let (polled, pace) = PACE.sync_scope(Cell::new(Pace::AsBefore), || {
            (this.inner.poll(context), PACE.with(Cell::get))
        });
        if polled.is_ready() {
            return Poll::Ready(());
        }
        match pace {
            Pace::AsBefore => {}
            Pace::Asked => *this.timer = None,
            Pace::HandedOut if this.stall.is_zero() => {}
            Pace::HandedOut => {
                let until = Instant::now() + *this.stall;
                this.timer
                    .get_or_insert_with(|| Box::pin(sleep_until(until)))
                    .as_mut()
                    .reset(until);
            }
        }
        let Some(timer) = this.timer else {
            return Poll::Pending;
        };
        ready!(timer.as_mut().poll(context));
        metrics::answer_cut();
        tracing::debug!("the client takes nothing of an answer; the stream is reset");
        Poll::Ready(())
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(Stream {
            inner: stream,
            stall: self.stall,
            timer: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_and_who_asks_for_the_next_piece_is_not() {
        for (then, cut) in [
            (Pace::AsBefore, true),
            (Pace::HandedOut, true),
            (Pace::Asked, false),
        ] {
            let mut told = [Pace::HandedOut, then].into_iter();
            let inner = poll_fn(move |context| {
                if let Some(pace) = told.next() {
                    pace.tell();
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            });
            let begun = Instant::now();
            let stream = Stream {
                inner,
                stall: STALL,
                timer: None,
            };
            let ended = tokio::time::timeout(STALL * 2, stream).await.is_ok();
            assert_eq!(ended, cut, "{then:?}");
            assert!(begun.elapsed() >= STALL);
        }
        assert!(!Pace::is_kept());
    }
}
