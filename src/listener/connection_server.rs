//! Serves the connections of one listening socket, within its limits.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::accept::{ConnectionSource, accept};
use super::activity::Activity;
use super::activity_stream::ActivityStream;
use super::connection::{Peer, Protocols, RequestHandler, TlsPeer};
use super::fresh_streams::FreshStreams;
use super::input_memory::InputMemory;
use super::limits::ConnectionLimits;
use super::metrics::{Cut, Listener, OpenGauge};
use super::open_connections::OpenConnections;
use super::peer_connection::PeerConnection;
use super::per_address::{AddressLimiter, ConnectionSlot};
use super::proxy_protocol;
use super::tls::ServerTls;
use super::trusted_proxies::TrustedProxies;
use crate::budget::{MemoryBudget, MemoryCharge, MemoryClass};
use crate::drain::DrainWatch;
use crate::log_throttle::LogThrottle;

/// Tells in the log an address that has too many connections. One line stands for those of all in some seconds.
static REJECTED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Serves the connections of one listening socket. Their tasks share it.
pub(super) struct ConnectionServer<H> {
    listener: Listener,
    protocols: Protocols,
    handler: H,
    tls: Option<ServerTls>,
    /// Connections from them begin with a header of the PROXY protocol.
    balancers: TrustedProxies,
    addresses: AddressLimiter,
    open: OpenConnections,
    input: Arc<InputMemory>,
    streams: Arc<FreshStreams>,
    memory: MemoryBudget,
    drain: DrainWatch,
}

/// A connection whose client's address is known.
struct AddressedConnection<I> {
    stream: I,
    address: SocketAddr,
    slot: ConnectionSlot,
}

/// The share of an open socket in limits, metrics and memory. The socket holds it, so a connection
/// that becomes a tunnel keeps it.
struct SocketShare {
    _place: OwnedSemaphorePermit,
    _open: OpenGauge,
    _charge: MemoryCharge,
}

impl<H: RequestHandler> ConnectionServer<H> {
    /// Prepares a server that speaks plain HTTP/1.1.
    pub(super) fn new(
        listener: Listener,
        limits: ConnectionLimits,
        handler: H,
        drain: DrainWatch,
    ) -> Self {
        listener.set_limit(limits.connections);
        Self {
            listener,
            handler,
            tls: None,
            balancers: TrustedProxies::default(),
            addresses: AddressLimiter::new(limits.of_address()),
            open: OpenConnections::new(&limits),
            input: InputMemory::within(&limits.memory),
            streams: FreshStreams::within(&limits.memory),
            memory: limits.memory.clone(),
            protocols: Protocols::new(limits, listener),
            drain,
        }
    }

    /// Speaks TLS, and HTTP/2 with those who want it, if there is a certificate.
    pub(super) fn over(self, tls: Option<ServerTls>) -> Self {
        Self { tls, ..self }
    }

    /// Expects a header of the PROXY protocol from these addresses.
    pub(super) fn behind(self, balancers: TrustedProxies) -> Self {
        Self { balancers, ..self }
    }

    /// Serves the connections of a socket until the drain is over.
    pub(super) async fn run<L: ConnectionSource>(self, socket: L) {
        let server = Arc::new(self);
        let connections = TaskTracker::new();
        tokio::select! {
            () = server.accept_all(&socket, &connections) => {}
            () = server.drain.draining() => {}
        }
        drop(socket);
        connections.close();
        connections.wait().await;
    }

    /// Accepts connections, and starts a task for each.
    async fn accept_all<L: ConnectionSource>(
        self: &Arc<Self>,
        socket: &L,
        connections: &TaskTracker,
    ) {
        loop {
            let (stream, address) = accept(socket).await;
            let slot = if self.balancers.contains(address.ip()) {
                None
            } else if let Some(slot) = self.slot(address) {
                Some(slot)
            } else {
                continue;
            };
            // Over the limit, this client waits here, and others in the kernel's backlog.
            let Some(place) = self.open.place().await else {
                return;
            };
            let activity = Activity::new(&self.input, &self.streams);
            let closable = self.open.may_close(&activity);
            let share = SocketShare {
                _place: place,
                _open: self.listener.connected(),
                _charge: self
                    .memory
                    .charge(MemoryClass::Connections, ConnectionLimits::CONNECTION_BYTES),
            };
            let server = Arc::clone(self);
            connections.spawn(async move {
                let serving = async {
                    let connection = match slot {
                        Some(slot) => AddressedConnection {
                            stream,
                            address,
                            slot,
                        },
                        None => server.learn_address(stream, address, &activity).await?,
                    };
                    server.serve(connection, share, &activity).await;
                    Some(())
                };
                tokio::select! {
                    _ = serving => {}
                    () = activity.closing() => {
                        server.listener.cut(Cut::Full);
                        tracing::debug!(%address, "an unknown client's connection closed: the listener is full");
                    }
                }
                drop(closable);
            });
        }
    }

    /// Returns a slot for a connection from this address, unless it has too many.
    fn slot(&self, address: SocketAddr) -> Option<ConnectionSlot> {
        let slot = self.addresses.acquire(address.ip());
        if slot.is_none() {
            self.listener.rejected();
            if let Some(connections) = REJECTED.count(1) {
                tracing::info!(
                    listener = self.listener.as_str(),
                    %address,
                    connections,
                    "connections refused: too many from one address (see --max-connections-per-address)"
                );
            }
        }
        slot
    }

    /// Reads the header of a connection from a load balancer. Returns the connection with the
    /// client's address, which is limited like that of others.
    async fn learn_address<I: AsyncRead + Unpin>(
        &self,
        mut stream: I,
        balancer: SocketAddr,
        activity: &Activity,
    ) -> Option<AddressedConnection<I>> {
        // Boxed, as few connections need its memory.
        let reading = Box::pin(proxy_protocol::read(&mut stream));
        let read = tokio::select! {
            read = timeout(self.protocols.limits().start, reading) => read,
            () = self.drain.draining() => return None,
        };
        let address = match read {
            Ok(Ok(Some(client))) => client,
            Ok(Ok(None)) => {
                activity.set_unaddressed();
                balancer
            }
            Ok(Err(error)) => {
                self.listener.cut(Cut::ProxyHeader);
                tracing::debug!(%balancer, %error, "connection closed (see --proxy-protocol)");
                return None;
            }
            Err(_elapsed) => {
                self.listener.cut(Cut::ProxyHeader);
                tracing::debug!(%balancer, "the PROXY protocol header took too long");
                return None;
            }
        };
        let slot = self.slot(address)?;
        Some(AddressedConnection {
            stream,
            address,
            slot,
        })
    }

    /// Serves one connection to its end.
    async fn serve<I>(
        &self,
        connection: AddressedConnection<I>,
        share: SocketShare,
        activity: &Arc<Activity>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let AddressedConnection {
            stream,
            address,
            slot,
        } = connection;
        let stream = ActivityStream::new(stream, activity, (share, slot));
        let mut peer = Peer {
            address,
            tls: None,
            connection: PeerConnection::new(activity),
        };
        let protocols = &self.protocols;
        let Some(tls) = &self.tls else {
            let requests = protocols.requests(activity, peer, self.handler.clone());
            return protocols
                .serve_http1(stream, requests, activity, address, &self.drain)
                .await;
        };
        // Boxed: the memory of a handshake would be held for as long as the connection lives.
        let handshake = Box::pin(self.shake_hands(tls, stream, address));
        let stream = tokio::select! {
            finished = handshake => match finished {
                Some(stream) => stream,
                None => return,
            },
            () = self.drain.draining() => return,
        };
        let session = stream.get_ref().1;
        let http2 = session.alpn_protocol() == Some(b"h2");
        peer.tls = Some(Arc::new(TlsPeer {
            certificates: session.peer_certificates().unwrap_or_default().to_vec(),
            server_name: session.server_name().map(str::to_owned),
        }));
        let requests = protocols.requests(activity, peer, self.handler.clone());
        if http2 {
            protocols
                .serve_http2(*stream, requests, activity, address, &self.drain)
                .await;
        } else {
            protocols
                .serve_http1(stream, requests, activity, address, &self.drain)
                .await;
        }
    }

    /// Shakes hands with a TLS client. Returns `None` if that fails or takes too long.
    ///
    /// The session is boxed: it is a kilobyte, and every future it passes through would have room
    /// for it.
    async fn shake_hands<I: AsyncRead + AsyncWrite + Unpin>(
        &self,
        tls: &ServerTls,
        stream: I,
        address: SocketAddr,
    ) -> Option<Box<TlsStream<I>>> {
        let accepting = tls.acceptor().accept(stream);
        match timeout(self.protocols.limits().start, accepting).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "TLS handshake failed");
                None
            }
            Err(_elapsed) => {
                self.listener.cut(Cut::Handshake);
                tracing::debug!(%address, "TLS handshake took too long");
                None
            }
        }
    }
}
