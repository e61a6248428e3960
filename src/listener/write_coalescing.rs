//! Write coalescing: what an HTTP/2 connection's task writes in one poll is sent together.
//!
//! h2 flushes after every data frame. On TLS, each flush would be a system call, and would wake the
//! reader. A large list is thousands of frames of 16 KiB. hyper's HTTP/1 coalesces by itself.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::body::BoxError;

/// Pending bytes at which a write sends them, without waiting for the end of the poll.
///
/// As much as hyper hands out of one answer at a time: larger writes save no more wake-ups.
const FLUSH_THRESHOLD: usize = 64 * 1024;
/// Limit of rustls' buffer: room for a frame above the threshold, and for what TLS adds.
///
/// rustls takes a part of a write that does not fit. So a client that reads nothing never has more
/// than this pending.
const MAX_PENDING: usize = FLUSH_THRESHOLD + 32 * 1024;
/// Payload of a TLS record, and an upper bound of what TLS adds to it (header, nonce and tag).
const RECORD_BYTES: usize = 16 * 1024;
const RECORD_OVERHEAD: usize = 32;

/// A TLS stream that encrypts writes at once and sends them later.
///
/// They are sent when [`FLUSH_THRESHOLD`] bytes wait, or by [`TurnFlusher`].
pub(super) struct CoalescingStream<I>(Arc<Mutex<CoalescingState<I>>>);

/// Sends the pending writes of a [`CoalescingStream`] after each poll of its connection.
///
/// It is apart from the stream because hyper owns the stream: only the caller of hyper knows when a
/// poll is over.
pub(super) struct TurnFlusher<I>(Arc<Mutex<CoalescingState<I>>>);

struct CoalescingState<I> {
    tls: TlsStream<I>,
    /// Upper bound of the encrypted bytes that wait to be sent. rustls does not tell their number.
    pending: usize,
}

impl<I> CoalescingStream<I> {
    pub(super) fn new(mut tls: TlsStream<I>) -> (Self, TurnFlusher<I>) {
        tls.get_mut().1.set_buffer_limit(Some(MAX_PENDING));
        let shared = Arc::new(Mutex::new(CoalescingState { tls, pending: 0 }));
        (Self(Arc::clone(&shared)), TurnFlusher(shared))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> TurnFlusher<I> {
    /// Polls the connection with `turn`, then sends what it wrote.
    ///
    /// If the socket does not take all of it, it wakes the task, and a later poll sends the rest.
    ///
    /// # Errors
    ///
    /// Returns the errors of `turn` and of the socket.
    pub(super) fn poll<T, E: Into<BoxError>>(
        &self,
        context: &mut Context<'_>,
        turn: impl FnOnce(&mut Context<'_>) -> Poll<Result<T, E>>,
    ) -> Poll<Result<T, BoxError>> {
        let polled = turn(context);
        match (polled, self.0.lock().poll_send(context)) {
            // Without this, a broken socket would go unnoticed until the next read.
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error.into())),
            (polled, _) => polled.map_err(Into::into),
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> CoalescingState<I> {
    /// Sends everything pending. While the socket is full, `pending` stays as it is.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.tls).poll_flush(context))?;
        self.pending = 0;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for CoalescingStream<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().tls).poll_read(context, into)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CoalescingStream<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut shared = self.0.lock();
        // Back-pressure: no more is encrypted until the socket has taken what waits.
        if shared.pending >= FLUSH_THRESHOLD {
            ready!(shared.poll_send(context))?;
        }
        // Into rustls' own writer: tokio-rustls would write to the socket at once.
        let written = shared.tls.get_mut().1.writer().write_vectored(bytes)?;
        shared.pending += written + RECORD_OVERHEAD * (written / RECORD_BYTES + 1);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: h2 flushes after each frame, and [`TurnFlusher`] sends them together.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // tokio-rustls sends what is pending before it closes.
        Pin::new(&mut self.0.lock().tls).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::Waker;

    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::listener::tls::ServerTls;
    use crate::test_support::{connect, roots, tls_options};

    /// A socket whose writes are counted, and which can be full.
    struct Socket {
        inner: TcpStream,
        writes: Arc<AtomicUsize>,
        full: Arc<AtomicBool>,
    }

    impl AsyncRead for Socket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(context, into)
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(context, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            if self.full.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_shutdown(context)
        }
    }

    struct CoalescedPair {
        server: CoalescingStream<Socket>,
        flusher: TurnFlusher<Socket>,
        client: tokio_rustls::client::TlsStream<TcpStream>,
        writes: Arc<AtomicUsize>,
        full: Arc<AtomicBool>,
    }

    impl CoalescedPair {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let tls = ServerTls::load(tls_options(&dir)).await.unwrap();
            let roots = roots(&std::fs::read_to_string(tls.ca_file().unwrap()).unwrap());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (writes, full) = (
                Arc::new(AtomicUsize::new(0)),
                Arc::new(AtomicBool::new(false)),
            );
            let accepting = async {
                let (inner, _) = listener.accept().await.unwrap();
                let socket = Socket {
                    inner,
                    writes: Arc::clone(&writes),
                    full: Arc::clone(&full),
                };
                tls.acceptor().accept(socket).await.unwrap()
            };
            let connecting = async { connect(address, &roots, b"h2", None).await.unwrap() };
            let (server, client) = tokio::join!(accepting, connecting);
            writes.store(0, Ordering::Relaxed);
            let (server, flusher) = CoalescingStream::new(server);
            Self {
                server,
                flusher,
                client,
                writes,
                full,
            }
        }

        /// Writes the frame this many times in one poll, flushing after each as h2 does. Returns
        /// what was accepted.
        fn poll_turn(&mut self, frame: &[u8], times: usize) -> io::Result<Vec<u8>> {
            let mut taken = Vec::new();
            let writing = |context: &mut Context<'_>| -> Poll<io::Result<()>> {
                for _ in 0..times {
                    match ready!(Pin::new(&mut self.server).poll_write(context, frame))? {
                        0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        written => taken.extend_from_slice(&frame[..written]),
                    }
                    ready!(Pin::new(&mut self.server).poll_flush(context))?;
                }
                Poll::Pending
            };
            match self
                .flusher
                .poll(&mut Context::from_waker(Waker::noop()), writing)
            {
                Poll::Ready(Err(error)) => Err(io::Error::other(error)),
                _ => Ok(taken),
            }
        }

        fn writes(&self) -> usize {
            self.writes.swap(0, Ordering::Relaxed)
        }

        async fn read(&mut self, count: usize) -> Vec<u8> {
            let mut read = vec![0; count];
            self.client.read_exact(&mut read).await.unwrap();
            read
        }
    }

    #[tokio::test]
    async fn writes_of_one_poll_are_sent_together() {
        let mut pair = CoalescedPair::new().await;
        for times in [1, 10] {
            let taken = pair.poll_turn(b"event", times).unwrap();
            assert_eq!(pair.writes(), 1);
            assert_eq!(pair.read(5 * times).await, taken);
        }
        let frame = [b'x'; 16 * 1024];
        let taken = pair.poll_turn(&frame, 10).unwrap();
        assert_eq!(
            pair.writes(),
            3,
            "one write for every {FLUSH_THRESHOLD} bytes"
        );
        assert!(pair.read(10 * frame.len()).await == taken);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_has_few_bytes_pending() {
        for frame in [13, 1_000, 16_393, 1 << 20] {
            let mut pair = CoalescedPair::new().await;
            pair.full.store(true, Ordering::Relaxed);
            let bytes: Vec<u8> = (0..=250).cycle().take(frame).collect();
            let mut taken = Vec::new();
            // The number of polls must not matter.
            for _ in 0..10_000 {
                taken.extend(pair.poll_turn(&bytes, 1).unwrap());
            }
            assert!(
                (1..=MAX_PENDING).contains(&taken.len()),
                "{frame}: {}",
                taken.len()
            );
            // All of it arrives once the socket has room, without another write.
            pair.full.store(false, Ordering::Relaxed);
            pair.poll_turn(&[], 0).unwrap();
            assert!(pair.read(taken.len()).await == taken);
        }
    }

    #[tokio::test]
    async fn a_broken_socket_ends_the_connection_at_the_next_write() {
        let mut pair = CoalescedPair::new().await;
        pair.poll_turn(b"event", 1).unwrap();
        let socket = socket2::SockRef::from(&pair.server.0.lock().tls.get_ref().0.inner)
            .try_clone()
            .unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(pair.poll_turn(b"event", 1).is_err());
    }
}
