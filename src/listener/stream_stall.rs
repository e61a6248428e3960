//! Resets HTTP/2 streams whose client reads nothing of the answer.
//!
//! The other streams of the connection go on.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use super::metrics::{self, AnswerCut};

/// Time for which a chunk may wait if the client's user has too much waiting, or if it is a refusal that
/// nothing else counts. A client that reads takes a chunk as soon as it comes.
const SHORT_WAIT: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// The progress of the stream whose task is polled.
    static PROGRESS: Cell<StreamProgress>;
}

/// Progress of an answer's body during one poll of its stream.
///
/// hyper asks for the next chunk once it has handed the last one to h2, which it does as soon as the
/// client's window takes a byte of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamProgress {
    /// The body was not polled: a chunk still waits if one did before.
    Unchanged,
    /// The next chunk was asked for: none waits.
    Requested,
    /// A chunk was handed out and waits for the client.
    HandedOut(Unread),
}

/// The kind of answer that a client leaves unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Its user may leave as much waiting as there is.
    WithinShare,
    /// Its user has too much waiting.
    BeyondShare,
    /// A refusal that nothing else counts.
    Refusal,
}

/// Runs HTTP/2 streams, each until its client has read nothing for too long.
///
/// Dropping a stream's task resets the stream.
#[derive(Clone, Debug)]
pub(super) struct StreamExecutor {
    pub(super) stall: Duration,
}

pin_project! {
    /// The task of one stream.
    struct StreamTask<F> {
        #[pin]
        inner: F,
        stall: Duration,
        // Set only while a chunk waits for the client, so that idle watches have none.
        timer: Option<Pin<Box<StallTimer>>>,
    }
}

pin_project! {
    /// Ends when a chunk has waited too long.
    struct StallTimer {
        #[pin]
        sleep: Sleep,
        cause: AnswerCut,
    }
}

impl StreamProgress {
    /// Returns `true` in the task of an HTTP/2 stream. HTTP/1 has none.
    pub(super) fn is_tracked() -> bool {
        PROGRESS.try_with(|_| ()).is_ok()
    }

    /// Records the progress for the stream of this task. Does nothing on HTTP/1.
    pub(super) fn report(self) {
        let _ = PROGRESS.try_with(|progress| progress.set(self));
    }
}

/// Returns how long a chunk may wait for its client, and why not longer; `None` for as long as it
/// likes.
pub(super) fn allowed(stall: Duration, unread: Unread) -> Option<(Duration, AnswerCut)> {
    let cause = match unread {
        Unread::WithinShare => AnswerCut::Stall,
        Unread::BeyondShare => AnswerCut::MemoryShare,
        Unread::Refusal => AnswerCut::Refusal,
    };
    if cause != AnswerCut::Stall && (stall.is_zero() || stall > SHORT_WAIT) {
        return Some((SHORT_WAIT, cause));
    }
    (!stall.is_zero()).then_some((stall, AnswerCut::Stall))
}

impl<F: Future<Output = ()>> Future for StreamTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let (polled, progress) = PROGRESS.sync_scope(Cell::new(StreamProgress::Unchanged), || {
            (this.inner.poll(context), PROGRESS.with(Cell::get))
        });
        if polled.is_ready() {
            return Poll::Ready(());
        }
        match progress {
            StreamProgress::Unchanged => {}
            StreamProgress::Requested => *this.timer = None,
            StreamProgress::HandedOut(unread) => {
                *this.timer = allowed(*this.stall, unread).map(|(wait, cause)| {
                    let sleep = sleep_until(Instant::now() + wait);
                    Box::pin(StallTimer { sleep, cause })
                });
            }
        }
        let Some(timer) = this.timer else {
            return Poll::Pending;
        };
        let timer = timer.as_mut().project();
        ready!(timer.sleep.poll(context));
        metrics::answer_cut(*timer.cause);
        tracing::debug!("stream reset: the client reads nothing of the answer");
        Poll::Ready(())
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(StreamTask {
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
    async fn a_stalled_reader_is_cut_and_one_that_asks_for_the_next_chunk_is_not() {
        let within = StreamProgress::HandedOut(Unread::WithinShare);
        for (then, cut) in [
            (StreamProgress::Unchanged, true),
            (within, true),
            (StreamProgress::Requested, false),
        ] {
            let mut told = [within, then].into_iter();
            let inner = poll_fn(move |context| {
                if let Some(progress) = told.next() {
                    progress.report();
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            });
            let begun = Instant::now();
            let stream = StreamTask {
                inner,
                stall: STALL,
                timer: None,
            };
            let ended = tokio::time::timeout(STALL * 2, stream).await.is_ok();
            assert_eq!(ended, cut, "{then:?}");
            assert!(begun.elapsed() >= STALL);
        }
        assert!(!StreamProgress::is_tracked());
    }
}
