//! The listener for clients.
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use tokio::net::{TcpListener, UnixListener};

use super::config::Listen;
use crate::drain;
use crate::listener::socket::{self, SocketFile};
use crate::listener::tls::ServerTls;
use crate::listener::{ConnectionLimits, TrustedProxies, listen};
use crate::serve::ProxyService;
use crate::telemetry;

/// A listener that clients can connect to.
pub(super) enum BoundListener {
    Tls(TcpListener, ServerTls),
    Socket(UnixListener, SocketFile),
}

impl BoundListener {
    pub(super) async fn new(listen: &Listen, tls: Option<ServerTls>) -> anyhow::Result<Self> {
        match (listen, tls) {
            (Listen::Tls(address), Some(tls)) => {
                Ok(Self::Tls(bind(*address, "--listen").await?, tls))
            }
            (Listen::Tls(_), None) => anyhow::bail!("an address is served by TLS only"),
            (Listen::Socket { path, mode }, _) => {
                let (listener, file) = socket::bind(path, *mode)
                    .await
                    .with_context(|| format!("cannot listen on {} (--listen)", path.display()))?;
                Ok(Self::Socket(listener, file))
            }
        }
    }

    /// Returns the address, or `None` for a Unix socket.
    pub(super) fn address(&self) -> anyhow::Result<Option<SocketAddr>> {
        match self {
            Self::Tls(listener, _) => Ok(Some(listener.local_addr()?)),
            Self::Socket(..) => Ok(None),
        }
    }

    /// Serves clients until the drain is over.
    pub(super) async fn serve(
        self,
        server: ProxyService,
        limits: ConnectionLimits,
        balancers: TrustedProxies,
        draining: drain::DrainWatch,
    ) {
        let service = move |request, peer| {
            let server = server.clone();
            async move { telemetry::traced(request, |request| server.handle(request, peer)).await }
        };
        match self {
            Self::Tls(listener, tls) => {
                listen::serve(listener, tls, service, limits, balancers, draining).await;
            }
            Self::Socket(listener, _file) => {
                listen::serve_socket(listener, service, limits, draining).await;
            }
        }
    }
}

/// Returns the message about a place that cannot be listened on.
pub(super) fn refusal(place: &dyn Display, flag: &str, error: &io::Error) -> String {
    let hint = if error.kind() == io::ErrorKind::AddrInUse {
        ": by another program, or by a proxy that runs already?"
    } else {
        ""
    };
    format!("cannot listen on {place} ({flag}): {error}{hint}")
}

/// Binds an address, whose flag is `flag`.
pub(super) async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let refused = |error| anyhow!(refusal(&address, flag, &error));
    TcpListener::bind(address).await.map_err(refused)
}
