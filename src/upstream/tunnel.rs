//! The bytes of an upgraded connection, which are copied both ways.
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use watershed_connect::Address;

/// Bytes in flight in each direction.
const BUFFER: usize = 32 * 1024;
/// Time that a client has to end its side after it has got all that upstream sent before its own end.
/// kube-apiserver gives none: what a client sends then has no reader.
/// Source: `apimachinery/pkg/util/proxy/upgradeaware.go`.
const CLIENT_END: Duration = Duration::from_secs(10);

/// The open tunnels of a forwarder.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    tasks: TaskTracker,
    cut: CancellationToken,
}

impl Tunnels {
    /// Runs a tunnel on a task of its own, which drops `held` when it has ended or is cut.
    pub(super) fn open(
        &self,
        tunnel: impl Future<Output = ()> + Send + 'static,
        held: impl Send + 'static,
    ) {
        let cut = self.cut.clone();
        self.tasks.spawn(async move {
            cut.run_until_cancelled(tunnel).await;
            drop(held);
        });
    }

    /// Returns the number of open tunnels.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until all tunnels have ended.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Ends all tunnels.
    pub(super) fn cut(&self) {
        self.cut.cancel();
    }
}

/// Runs a tunnel to its end, once both sides have changed the protocol.
pub(super) async fn tunnel(client: OnUpgrade, upstream: OnUpgrade, address: Address) {
    let (client, upstream) = match tokio::try_join!(client, upstream) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%address, %error, "tunnel not established: an upgrade failed");
            return;
        }
    };
    match copy_both(TokioIo::new(client), TokioIo::new(upstream)).await {
        Ok(()) => tracing::debug!(%address, "tunnel ended"),
        // Dropping both ends passes the cut on to the side that is still open.
        Err(error) => tracing::debug!(%address, %error, "tunnel broke"),
    }
}

/// Copies both ways until both sides have ended, or upstream's side and the client's time.
///
/// The end of the client's side is passed on, and the other goes on: a command's output may follow the
/// end of its input.
async fn copy_both(
    client: impl AsyncRead + AsyncWrite,
    upstream: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let (client_reader, client_writer) = split(client);
    let (upstream_reader, upstream_writer) = split(upstream);
    let mut sending = pin!(copy(client_reader, upstream_writer));
    let mut receiving = pin!(copy(upstream_reader, client_writer));
    let ended = tokio::select! {
        sent = &mut sending => match sent {
            Ok(()) => receiving.await,
            Err(BrokenSide::Writer(error)) => {
                // The last output of a command that ended while its client wrote may still be on the way.
                let _ = timeout(CLIENT_END, receiving).await;
                return Err(error);
            }
            Err(gone @ BrokenSide::Reader(_)) => Err(gone),
        },
        received = &mut receiving => match received {
            Ok(()) => timeout(CLIENT_END, sending).await.unwrap_or(Ok(())),
            broken @ Err(_) => broken,
        },
    };
    ended.map_err(|broken| match broken {
        BrokenSide::Reader(error) | BrokenSide::Writer(error) => error,
    })
}

/// The side at which copying one way broke off.
enum BrokenSide {
    Reader(io::Error),
    Writer(io::Error),
}

/// Copies one way, and passes the end on.
async fn copy(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> Result<(), BrokenSide> {
    let mut buffer = BytesMut::with_capacity(BUFFER);
    loop {
        let read = reader.read_buf(&mut buffer).await;
        if read.map_err(BrokenSide::Reader)? == 0 {
            return writer.shutdown().await.map_err(BrokenSide::Writer);
        }
        let written = async {
            writer.write_all_buf(&mut buffer).await?;
            // A session waits for each of its messages.
            writer.flush().await
        };
        written.await.map_err(BrokenSide::Writer)?;
        buffer.reserve(BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{ReadBuf, duplex, join, sink};
    use tokio::time::Instant;

    use super::*;

    /// A side whose connection is broken.
    struct Closed;

    impl AsyncRead for Closed {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn the_last_output_arrives_although_the_input_is_not_taken() {
        let output = b"no space left on device: exit status 1";
        let (mut client, side) = duplex(8);
        client.write_all(b"input").await.unwrap();
        let copied = tokio::spawn(copy_both(side, join(&output[..], Closed)));
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, output);
        let error = copied.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_not_waited_for() {
        let (_server, side) = duplex(8);
        let begun = Instant::now();
        let error = copy_both(join(Closed, sink()), side).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
