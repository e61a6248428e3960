//! Accepts connections. None of them, and no error, ends the listener.
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::backoff::PauseRange;
use crate::log_throttle::LogThrottle;

/// Pauses after a failed accept (no file descriptors, no memory).
const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(5), Duration::from_secs(1));

/// One line stands for the failures of some seconds.
static FAILURES: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Interval of TCP keepalive probes. They find dead HTTP/1.1 clients, as HTTP/1.1 has no ping.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A listening socket.
pub(super) trait ConnectionSource: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

impl ConnectionSource for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, address) = self.accept().await?;
        // Events are small and wanted at once. Errors are ignored: a dead socket shows soon enough.
        let _ = stream.set_nodelay(true);
        let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(
            &socket2::TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE),
        );
        Ok((stream, address))
    }
}

impl ConnectionSource for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
    }
}

/// Waits for the next connection. No error of accept is a reason to stop serving.
pub(super) async fn accept<L: ConnectionSource>(listener: &L) -> (L::Stream, SocketAddr) {
    let mut failed = 0_u32;
    loop {
        match listener.next().await {
            Ok(accepted) => return accepted,
            // Only this client is gone. The next one is waiting.
            Err(error) if affects_one_connection(&error) => {}
            Err(error) => {
                if let Some(failures) = FAILURES.count(1) {
                    tracing::warn!(
                        %error,
                        failures,
                        "cannot accept connections (out of file descriptors? see ulimit -n); \
                         trying again"
                    );
                }
                tokio::time::sleep(PAUSES.after(failed)).await;
                failed = failed.saturating_add(1);
            }
        }
    }
}

fn affects_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}
