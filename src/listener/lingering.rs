//! Closes connections without losing the last answers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::activity::Activity;

/// Longest time for which a closed connection is still read.
///
/// As long as Go's server waits after its GOAWAY (`net/http`, `http2goAwayTimeout`). Over HTTP/1, it waits
/// half of it (`rstAvoidanceDelay`).
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are read and dropped, and the part of them that is at a time. A client that sends more waits
/// for the end.
const DROPPED_BYTES: usize = 1 << 20;
const DROPPED_AT_ONCE: usize = 4096;

/// The end of a connection, which is read for a moment after it was shut down, and whose bytes are then
/// dropped.
///
/// A client sends window updates while it reads the last answers, or the rest of a body that was refused.
/// A socket that is closed before it has read them resets the connection, and the client loses what it has
/// not read yet.
pub(super) struct LingeringEnd {
    activity: Arc<Activity>,
    phase: LingerPhase,
}

/// Progress of a [`LingeringEnd`].
enum LingerPhase {
    /// The own side is open.
    Open,
    /// The own side is shut down, and it waits until the client has closed too, or until the timer ends.
    Reading {
        timer: Pin<Box<Sleep>>,
        /// Bytes that are still read.
        left: usize,
    },
}

impl LingeringEnd {
    /// The end of a connection that has not been shut down.
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self {
            activity: Arc::clone(activity),
            phase: LingerPhase::Open,
        }
    }

    /// Shuts the stream down. Completes when the client has closed its side too, or has had its time to read.
    /// A tunnel goes on in the other direction: it completes at once.
    pub(super) fn poll_shutdown<I: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut I,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.activity.is_upgraded() {
            return Pin::new(stream).poll_shutdown(context);
        }
        if matches!(self.phase, LingerPhase::Open) {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
            self.phase = LingerPhase::Reading {
                timer: Box::pin(sleep(LINGER)),
                left: DROPPED_BYTES,
            };
        }
        let LingerPhase::Reading { timer, left } = &mut self.phase else {
            return Poll::Ready(Ok(()));
        };
        while timer.as_mut().poll(context).is_pending() {
            if *left == 0 {
                return Poll::Pending;
            }
            let mut bytes = [0; DROPPED_AT_ONCE];
            let mut dropped = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut dropped));
            // An error after the end of the answers concerns nobody.
            if read.is_err() || dropped.filled().is_empty() {
                break;
            }
            *left = left.saturating_sub(dropped.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{Instant, timeout};

    use super::super::activity::RunningRequest;
    use super::*;

    async fn shut_down(stream: &mut DuplexStream, activity: &Arc<Activity>) -> io::Result<()> {
        let mut end = LingeringEnd::new(activity);
        poll_fn(|context| end.poll_shutdown(stream, context)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_still_writes_gets_the_last_answer() {
        let (mut server, mut client) = duplex(64);
        let closing = tokio::spawn(async move {
            server.write_all(b"answer").await.unwrap();
            shut_down(&mut server, &Activity::alone()).await
        });
        // More than the pipe holds, so somebody reads it.
        client.write_all(&[b'w'; 10_000]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        drop(client);
        let ended = timeout(LINGER / 2, closing).await;
        ended.expect("the client has closed").unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_tunnel_is_read_on() {
        let (mut server, mut client) = duplex(64);
        let activity = Activity::alone();
        RunningRequest::new(&activity).upgraded();
        shut_down(&mut server, &activity).await.unwrap();
        client.write_all(b"carried").await.unwrap();
        let mut carried = [0; 7];
        server.read_exact(&mut carried).await.unwrap();
        assert_eq!(&carried, b"carried");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_is_not_waited_for() {
        for bytes in [0, 100, 2 * DROPPED_BYTES] {
            let (mut server, mut client) = duplex(64);
            let activity = Activity::alone();
            let begun = Instant::now();
            let writing = async {
                let _ = client.write_all(&vec![b'w'; bytes]).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                ended = shut_down(&mut server, &activity) => ended.unwrap(),
                () = writing => unreachable!("it does not end"),
            }
            assert_eq!(begun.elapsed().as_secs(), LINGER.as_secs(), "{bytes}");
        }
    }
}
