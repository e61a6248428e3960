//! Closes HTTP/2 connections without losing the last answers.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Longest time for which a closed connection is still read.
///
/// As long as Go's server waits after its GOAWAY (`net/http`, `http2goAwayTimeout`).
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are read and dropped at a time.
const DROPPED_BYTES: usize = 512;

/// A stream that is read for a moment after it was shut down, and whose bytes are then dropped.
///
/// A client sends window updates while it reads the last answers. A socket that is closed before it
/// has read them resets the connection, and the client loses what it has not read yet.
pub(super) struct LingeringStream<I> {
    inner: I,
    phase: LingerPhase,
}

/// Progress of the end of a [`LingeringStream`].
enum LingerPhase {
    /// Its own side is open.
    Open,
    /// Its own side is shut down, and it waits until the client has closed too, or until the timer ends.
    Reading(Pin<Box<Sleep>>),
}

impl<I> LingeringStream<I> {
    pub(super) fn new(inner: I) -> Self {
        Self {
            inner,
            phase: LingerPhase::Open,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for LingeringStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, into)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    /// Completes when the client has closed its side too, or has had its time to read.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, phase } = &mut *self;
        if matches!(phase, LingerPhase::Open) {
            ready!(Pin::new(&mut *inner).poll_shutdown(context))?;
            *phase = LingerPhase::Reading(Box::pin(sleep(LINGER)));
        }
        let LingerPhase::Reading(timer) = phase else {
            return Poll::Ready(Ok(()));
        };
        while timer.as_mut().poll(context).is_pending() {
            let mut bytes = [0; DROPPED_BYTES];
            let mut dropped = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut *inner).poll_read(context, &mut dropped));
            // An error after the end of the answers concerns nobody.
            if read.is_err() || dropped.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_still_writes_gets_the_last_answer() {
        let (server, mut client) = duplex(64);
        let closing = tokio::spawn(async move {
            let mut server = LingeringStream::new(server);
            server.write_all(b"answer").await.unwrap();
            server.shutdown().await
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

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_is_not_waited_for() {
        for writes in [false, true] {
            let (server, mut client) = duplex(64);
            let begun = Instant::now();
            let writing = async {
                while writes && client.write_all(&[b'w'; 100]).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                std::future::pending::<()>().await;
            };
            let mut server = LingeringStream::new(server);
            tokio::select! {
                ended = server.shutdown() => ended.unwrap(),
                () = writing => unreachable!("it writes until its end is dropped"),
            }
            assert_eq!(begun.elapsed().as_secs(), LINGER.as_secs(), "{writes}");
        }
    }
}
