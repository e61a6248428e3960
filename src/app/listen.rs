//! Where clients connect, and serving them there.
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use tokio::net::{TcpListener, UnixListener};

use super::bind;
use crate::drain;
use crate::listener::socket::{self, SocketFile};
use crate::listener::tls::ServerTls;
use crate::listener::{ConnectionLimits, listen};
use crate::serve::ProxyService;
use crate::telemetry;

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// By TLS.
    Tls(SocketAddr),
    /// By plain HTTP over a Unix socket.
    Socket {
        /// Its file.
        path: PathBuf,
        /// The file's mode: who may write to it may connect.
        mode: u32,
    },
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Tls(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(address) => address.fmt(f),
            Self::Socket { path, mode } => write!(f, "unix:{} (mode {mode:04o})", path.display()),
        }
    }
}

/// A listener that clients can connect to.
pub(super) enum Bound {
    Tls(TcpListener, ServerTls),
    Socket(UnixListener, SocketFile),
}

impl Bound {
    pub(super) async fn new(listen: &Listen, tls: Option<ServerTls>) -> anyhow::Result<Self> {
        match (listen, tls) {
            (Listen::Tls(address), Some(tls)) => {
                Ok(Self::Tls(bind(*address, "--listen").await?, tls))
            }
            (Listen::Tls(_), None) => anyhow::bail!("an address is served by TLS only"),
            (Listen::Socket { path, mode }, _) => {
                let bound = socket::bind(path, *mode).await;
                let (listener, file) = bound
                    .with_context(|| format!("cannot listen on {} (--listen)", path.display()))?;
                Ok(Self::Socket(listener, file))
            }
        }
    }

    /// `None` for a Unix socket.
    pub(super) fn address(&self) -> anyhow::Result<Option<SocketAddr>> {
        match self {
            Self::Tls(listener, _) => Ok(Some(listener.local_addr()?)),
            Self::Socket(..) => Ok(None),
        }
    }

    /// Until the drain is over.
    pub(super) async fn serve(
        self,
        server: ProxyService,
        limits: ConnectionLimits,
        draining: drain::DrainWatch,
    ) {
        let service = move |request, peer| {
            let server = server.clone();
            async move { telemetry::traced(request, |request| server.handle(request, peer)).await }
        };
        match self {
            Self::Tls(listener, tls) => {
                listen::serve(listener, tls, service, limits, draining).await
            }
            Self::Socket(listener, _file) => {
                listen::serve_socket(listener, service, limits, draining).await
            }
        }
    }
}
