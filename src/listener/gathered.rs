//! What the task of an HTTP/2 connection writes in one turn goes out together.
//!
//! h2 flushes after every frame of data. With TLS below, each of them became a call of the kernel
//! of its own, and a wake-up of who reads; a list of everything is thousands of frames of 16 KiB.
//! hyper's HTTP/1 gathers by itself.
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::body::BoxError;

/// So many bytes are sent without waiting for the turn's end.
const MANY: usize = 64 * 1024;
/// No more are held, that is a frame and what TLS adds to many small ones. Of a larger write rustls
/// takes a part.
const MOST: usize = MANY + 32 * 1024;
/// The bytes in a record of TLS, and no fewer than what TLS adds to them.
const RECORD: usize = 16 * 1024;
const RECORD_HEAD: usize = 32;

/// A TLS connection whose writes are encrypted at once, and sent when there are many or by
/// [`Turns`].
pub(super) struct Gathered<I>(Arc<Mutex<Shared<I>>>);

/// What sends them.
pub(super) struct Turns<I>(Arc<Mutex<Shared<I>>>);

struct Shared<I> {
    tls: TlsStream<I>,
    /// No fewer bytes than wait to be sent.
    held: usize,
}

impl<I> Gathered<I> {
    pub(super) fn new(mut tls: TlsStream<I>) -> (Self, Turns<I>) {
        tls.get_mut().1.set_buffer_limit(Some(MOST));
        let shared = Arc::new(Mutex::new(Shared { tls, held: 0 }));
        (Self(Arc::clone(&shared)), Turns(shared))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Turns<I> {
    /// Polls what writes to the connection, and sends what it wrote. What the client does not take
    /// yet is sent by a later turn, which the socket wakes.
    ///
    /// # Errors
    ///
    /// Those of what is polled, and of the connection.
    pub(super) fn poll<T, E: Into<BoxError>>(
        &self,
        context: &mut Context<'_>,
        turn: impl FnOnce(&mut Context<'_>) -> Poll<Result<T, E>>,
    ) -> Poll<Result<T, BoxError>> {
        let polled = turn(context);
        match (polled, self.0.lock().poll_send(context)) {
            // Nobody else would hear of it before the next byte is read.
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error.into())),
            (polled, _) => polled.map_err(Into::into),
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Shared<I> {
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.tls).poll_flush(context))?;
        self.held = 0;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathered<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().tls).poll_read(context, into)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gathered<I> {
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
        if shared.held >= MANY {
            ready!(shared.poll_send(context))?;
        }
        let written = shared.tls.get_mut().1.writer().write_vectored(bytes)?;
        shared.held += written + RECORD_HEAD * (written / RECORD + 1);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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

    struct Pair {
        server: Gathered<Socket>,
        turns: Turns<Socket>,
        client: tokio_rustls::client::TlsStream<TcpStream>,
        writes: Arc<AtomicUsize>,
        full: Arc<AtomicBool>,
    }

    impl Pair {
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
            let (server, turns) = Gathered::new(server);
            Self {
                server,
                turns,
                client,
                writes,
                full,
            }
        }

        /// A turn that writes so often, as h2 does, which flushes after each frame. Says what was
        /// taken.
        fn turn(&mut self, frame: &[u8], times: usize) -> io::Result<Vec<u8>> {
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
                .turns
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
    async fn what_a_turn_writes_goes_out_together() {
        let mut pair = Pair::new().await;
        for times in [1, 10] {
            let taken = pair.turn(b"event", times).unwrap();
            assert_eq!(pair.writes(), 1);
            assert_eq!(pair.read(5 * times).await, taken);
        }
        let frame = [b'x'; 16 * 1024];
        let taken = pair.turn(&frame, 10).unwrap();
        assert_eq!(pair.writes(), 3, "as soon as there are {MANY} bytes");
        assert!(pair.read(10 * frame.len()).await == taken);
    }

    #[tokio::test]
    async fn who_takes_nothing_has_little_held_for_them() {
        for frame in [13, 1_000, 16_393, 1 << 20] {
            let mut pair = Pair::new().await;
            pair.full.store(true, Ordering::Relaxed);
            let bytes: Vec<u8> = (0..=250).cycle().take(frame).collect();
            let mut taken = Vec::new();
            // However many turns there are.
            for _ in 0..10_000 {
                taken.extend(pair.turn(&bytes, 1).unwrap());
            }
            assert!(
                (1..=MOST).contains(&taken.len()),
                "{frame}: {}",
                taken.len()
            );
            // All of it comes once there is room, without another write.
            pair.full.store(false, Ordering::Relaxed);
            pair.turn(&[], 0).unwrap();
            assert!(pair.read(taken.len()).await == taken);
        }
    }

    #[tokio::test]
    async fn a_broken_connection_ends_with_the_turn_that_finds_out() {
        let mut pair = Pair::new().await;
        pair.turn(b"event", 1).unwrap();
        let socket = socket2::SockRef::from(&pair.server.0.lock().tls.get_ref().0.inner)
            .try_clone()
            .unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(pair.turn(b"event", 1).is_err());
    }
}
