//! Serves the clients of a listening socket.
use tokio::net::{TcpListener, UnixListener};

use super::connection::RequestHandler;
use super::connection_server::ConnectionServer;
use super::limits::ConnectionLimits;
use super::metrics::Listener;
use super::tls::ServerTls;
use super::trusted_proxies::TrustedProxies;
use crate::drain::DrainWatch;

/// Serves TLS clients over HTTP/2 and HTTP/1.1 until the drain is over.
///
/// Connections from `balancers` begin with a header of the PROXY protocol.
pub async fn serve(
    listener: TcpListener,
    tls: ServerTls,
    handler: impl RequestHandler,
    limits: ConnectionLimits,
    balancers: TrustedProxies,
    drain: DrainWatch,
) {
    ConnectionServer::new(Listener::Proxy, limits, handler, drain)
        .over(Some(tls))
        .behind(balancers)
        .run(listener)
        .await;
}

/// Serves operators until the drain is over: over plain HTTP/1.1, or over TLS like [`serve`].
pub async fn serve_admin(
    listener: TcpListener,
    tls: Option<ServerTls>,
    handler: impl RequestHandler,
    limits: ConnectionLimits,
    drain: DrainWatch,
) {
    ConnectionServer::new(Listener::Admin, limits, handler, drain)
        .over(tls)
        .run(listener)
        .await;
}

/// Serves the clients of a Unix socket over plain HTTP/1.1 until the drain is over.
pub async fn serve_socket(
    listener: UnixListener,
    handler: impl RequestHandler,
    mut limits: ConnectionLimits,
    drain: DrainWatch,
) {
    // All of them have the same address.
    limits.connections_per_address = Some(usize::MAX);
    ConnectionServer::new(Listener::Proxy, limits, handler, drain)
        .run(listener)
        .await;
}

#[cfg(test)]
mod tests;
