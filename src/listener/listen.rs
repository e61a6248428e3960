//! Accepts connections. Each is served by a task of its own, and none can end the listener.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::activity::{Activity, ActivityStream};
use super::connection::{Peer, Protocols, TlsPeer};
use super::limits::ConnectionLimits;
use super::metrics::{Cut, Listener, OpenGauge};
use super::open_connections::OpenConnections;
use super::peer_connection::PeerConnection;
use super::per_address::{AddressLimiter, ConnectionSlot};
use super::proxy_protocol;
use super::tls::ServerTls;
use super::trusted_proxies::TrustedProxies;
use crate::body::Body;
use crate::budget::{MemoryCharge, MemoryClass};
use crate::drain;

/// Pause after a failed accept (no file descriptors, no memory), doubling up to the maximum.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Bytes of a connection, as measured (docs/benchmarks.md, Memory of an idle watch).
const CONNECTION_BYTES: usize = 32 << 10;

/// Interval of TCP keepalive probes. They find dead HTTP/1.1 clients, as HTTP/1.1 has no ping.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Serves TLS clients over HTTP/2 and HTTP/1.1 until the drain is over.
///
/// Connections from `balancers` begin with a header of the PROXY protocol.
pub async fn serve<S, F>(
    listener: TcpListener,
    tls: ServerTls,
    service: S,
    limits: ConnectionLimits,
    balancers: TrustedProxies,
    drain: drain::DrainWatch,
) where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let which = Listener::Proxy;
    accept_all(
        listener,
        which,
        Some(tls),
        service,
        limits,
        balancers,
        drain,
    )
    .await;
}

/// Serves operators until the drain is over: over plain HTTP/1.1, or over TLS like [`serve`].
pub async fn serve_admin<S, F>(
    listener: TcpListener,
    tls: Option<ServerTls>,
    service: S,
    limits: ConnectionLimits,
    drain: drain::DrainWatch,
) where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (which, nobody) = (Listener::Admin, TrustedProxies::default());
    accept_all(listener, which, tls, service, limits, nobody, drain).await;
}

/// Serves the clients of a Unix socket over plain HTTP/1.1 until the drain is over.
pub async fn serve_socket<S, F>(
    listener: UnixListener,
    service: S,
    limits: ConnectionLimits,
    drain: drain::DrainWatch,
) where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (which, nobody) = (Listener::Proxy, TrustedProxies::default());
    accept_all(listener, which, None, service, limits, nobody, drain).await;
}

/// A listening socket.
trait ConnectionSource: Send + Sync {
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

/// The share of an open socket in limits, metrics and memory. The socket holds it, so a connection
/// that becomes a tunnel keeps it.
struct SocketShare {
    _place: OwnedSemaphorePermit,
    _open: OpenGauge,
    _charge: MemoryCharge,
}

async fn accept_all<L, S, F>(
    listener: L,
    which: Listener,
    tls: Option<ServerTls>,
    service: S,
    limits: ConnectionLimits,
    balancers: TrustedProxies,
    drain: drain::DrainWatch,
) where
    L: ConnectionSource,
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    which.set_limit(limits.connections);
    let places = OpenConnections::new(&limits);
    let memory = limits.memory.clone();
    let addresses = AddressLimiter::new(limits.connections_per_address);
    let protocols = Arc::new(Protocols::new(limits, which));
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            let (stream, address) = accept(&listener).await;
            let addresses = addresses.clone();
            let slot = if balancers.contains(address.ip()) {
                None
            } else {
                match slot(&addresses, which, address) {
                    Some(slot) => Some(slot),
                    None => continue,
                }
            };
            // Over the limit, this client waits here, and others in the kernel's backlog.
            let Some(place) = places.place().await else {
                return;
            };
            let activity = Activity::new();
            let closable = places.may_close(&activity);
            let share = SocketShare {
                _place: place,
                _open: which.connected(),
                _charge: memory.charge(MemoryClass::Connections, CONNECTION_BYTES),
            };
            let protocols = Arc::clone(&protocols);
            let (tls, service, drain) = (tls.clone(), service.clone(), drain.clone());
            connections.spawn(async move {
                let serving = async {
                    let accepted = if let Some(slot) = slot {
                        Some((stream, address, slot))
                    } else {
                        // Boxed, as few connections need its memory.
                        let stream = (stream, &activity);
                        let read = behind_balancer(&protocols, stream, address, &addresses);
                        tokio::select! {
                            accepted = Box::pin(read) => accepted,
                            () = drain.draining() => None,
                        }
                    };
                    if let Some((stream, address, slot)) = accepted {
                        let stream = ActivityStream::new(stream, &activity, (share, slot));
                        let stream = (stream, &activity);
                        connection(&protocols, stream, address, tls, service, drain).await;
                    }
                };
                tokio::select! {
                    () = serving => {}
                    () = activity.closing() => {
                        which.cut(Cut::Full);
                        tracing::debug!(%address, "an unknown client's connection closed: the listener is full");
                    }
                }
                drop(closable);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = drain.draining() => {}
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Returns a slot for a connection from this address, unless it has too many.
fn slot(
    addresses: &AddressLimiter,
    which: Listener,
    address: SocketAddr,
) -> Option<ConnectionSlot> {
    let slot = addresses.acquire(address.ip());
    if slot.is_none() {
        which.rejected();
        tracing::debug!(
            %address,
            "connection refused: too many from this address (see --max-connections-per-address)"
        );
    }
    slot
}

/// Reads the header of a connection from a load balancer. Returns the connection with the client's
/// address, which is limited like that of others.
async fn behind_balancer<I: AsyncRead + Unpin>(
    protocols: &Protocols,
    (mut stream, activity): (I, &Arc<Activity>),
    balancer: SocketAddr,
    addresses: &AddressLimiter,
) -> Option<(I, SocketAddr, ConnectionSlot)> {
    let (limit, which) = (protocols.limits().start, protocols.listener());
    let read = tokio::time::timeout(limit, proxy_protocol::read(&mut stream)).await;
    let address = match read {
        Ok(Ok(Some(client))) => client,
        Ok(Ok(None)) => {
            activity.set_unaddressed();
            balancer
        }
        Ok(Err(error)) => {
            which.cut(Cut::ProxyHeader);
            tracing::debug!(%balancer, %error, "connection closed (see --proxy-protocol)");
            return None;
        }
        Err(_elapsed) => {
            which.cut(Cut::ProxyHeader);
            tracing::debug!(%balancer, "the PROXY protocol header took too long");
            return None;
        }
    };
    let slot = slot(addresses, which, address)?;
    Some((stream, address, slot))
}

/// Waits for the next connection. No error of accept is a reason to stop serving.
async fn accept<L: ConnectionSource>(listener: &L) -> (L::Stream, SocketAddr) {
    let mut backoff = BACKOFF_MIN;
    loop {
        match listener.next().await {
            Ok(accepted) => return accepted,
            // Only this client is gone. The next one is waiting.
            Err(error) if affects_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot accept connections (out of file descriptors? see ulimit -n); \
                     trying again"
                );
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
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

/// Serves one connection to its end.
async fn connection<I, S, F>(
    protocols: &Protocols,
    (stream, activity): (ActivityStream<I>, &Arc<Activity>),
    address: SocketAddr,
    tls: Option<ServerTls>,
    service: S,
    drain: drain::DrainWatch,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let Some(tls) = tls else {
        let peer = Peer {
            address,
            tls: None,
            connection: PeerConnection::new(activity),
        };
        let requests = protocols.requests(activity, peer, service);
        return protocols
            .serve_http1(stream, requests, activity, address, drain)
            .await;
    };
    // Boxed: the memory of a handshake would be held for as long as the connection lives.
    let handshake = Box::pin(handshake(protocols, stream, address, &tls));
    let stream = tokio::select! {
        finished = handshake => match finished {
            Some(stream) => stream,
            None => return,
        },
        () = drain.draining() => return,
    };
    let session = stream.get_ref().1;
    let http2 = session.alpn_protocol() == Some(b"h2");
    let peer = Peer {
        address,
        tls: Some(Arc::new(TlsPeer {
            certificates: session.peer_certificates().unwrap_or_default().to_vec(),
            server_name: session.server_name().map(str::to_owned),
        })),
        connection: PeerConnection::new(activity),
    };
    let requests = protocols.requests(activity, peer, service);
    if http2 {
        protocols
            .serve_http2(*stream, requests, activity, address, drain)
            .await;
    } else {
        protocols
            .serve_http1(stream, requests, activity, address, drain)
            .await;
    }
}

/// Shakes hands with a TLS client. Returns `None` if that fails or takes too long.
///
/// The session is boxed: it is a kilobyte, and every future it passes through would have room for
/// it.
async fn handshake<I: AsyncRead + AsyncWrite + Unpin>(
    protocols: &Protocols,
    stream: I,
    address: SocketAddr,
    tls: &ServerTls,
) -> Option<Box<TlsStream<I>>> {
    let accepting = tls.acceptor().accept(stream);
    match tokio::time::timeout(protocols.limits().start, accepting).await {
        Ok(Ok(stream)) => Some(Box::new(stream)),
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake failed");
            None
        }
        Err(_elapsed) => {
            protocols.listener().cut(Cut::Handshake);
            tracing::debug!(%address, "TLS handshake took too long");
            None
        }
    }
}

#[cfg(test)]
mod tests;
