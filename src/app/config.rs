//! Configuration of the program.
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use watershed_connect::ConnectOptions;

use crate::access::AccessConfig;
use crate::audit::AuditConfig;
use crate::listener::tls::TlsPolicy;
use crate::scope::{CheckpointConfig, ScopeConfig};
use crate::serve::{CachingPolicy, RequestFilter};
use crate::{admin, listener};

/// Configuration of `watershed serve`.
#[derive(Clone, Debug)]
pub struct AppConfig {
    /// The API server, and the proxy's own identity there.
    pub upstream: ConnectOptions,
    /// The address or socket for clients.
    pub listen: Listen,
    /// The serving certificate and its key (PEM files). Without them a self-signed pair is created.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Folder of the self-signed pair and its CA.
    pub cert_dir: PathBuf,
    /// Further names and addresses in the self-signed certificate.
    pub names: Vec<String>,
    /// The address of metrics and health.
    pub admin_listen: SocketAddr,
    /// Protection of the admin listener.
    pub admin: admin::Protection,
    /// Authentication and authorization of callers.
    pub access: AccessConfig,
    /// Windows and snapshots of scopes.
    pub scopes: ScopeConfig,
    /// Checkpoints of scopes on disk; `None` for none.
    pub checkpoints: Option<CheckpointConfig>,
    /// Kubeconfig of another replica, from which scopes take their first states.
    pub state_from: Option<PathBuf>,
    /// Memory that the process may use, in bytes; `None` for no limit.
    pub memory_limit: Option<usize>,
    /// Caching of types and treatment of requests.
    pub policy: CachingPolicy,
    /// Aggregated API groups whose types are cached, too. Their servers must give every user the
    /// same answer.
    pub aggregated: Vec<String>,
    /// The audit log of requests that this process answers, if there is one.
    pub audit: Option<AuditConfig>,
    /// Limits of connections.
    pub limits: listener::ConnectionLimits,
    /// The oldest TLS version and the cipher suites of both listeners.
    pub tls_policy: TlsPolicy,
    /// The value of `Strict-Transport-Security` in answers to clients.
    pub hsts: Option<HeaderValue>,
    /// Requests that are refused, whoever sends them.
    pub filter: Option<RequestFilter>,
    /// Proxies and load balancers that are believed when they tell a client's address.
    pub trusted_proxies: listener::TrustedProxies,
    /// Connections of the trusted proxies begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// Time for open requests and watches to end at shutdown.
    pub drain: Duration,
}

impl AppConfig {
    /// Returns the defaults for these addresses.
    pub fn new(
        upstream: ConnectOptions,
        listen: impl Into<Listen>,
        admin_listen: SocketAddr,
        cert_dir: PathBuf,
    ) -> Self {
        Self {
            upstream,
            listen: listen.into(),
            certificate: None,
            cert_dir,
            names: Vec::new(),
            admin_listen,
            admin: admin::Protection::default(),
            access: AccessConfig::default(),
            scopes: ScopeConfig::default(),
            checkpoints: None,
            state_from: None,
            memory_limit: None,
            policy: CachingPolicy::default(),
            aggregated: Vec::new(),
            audit: None,
            limits: listener::ConnectionLimits::default(),
            tls_policy: TlsPolicy::default(),
            hsts: None,
            filter: None,
            trusted_proxies: listener::TrustedProxies::default(),
            proxy_protocol: false,
            // kube-apiserver and most balancers give up on a server within a minute.
            drain: Duration::from_secs(20),
        }
    }
}

impl AppConfig {
    /// Returns the networks whose connections begin with a header of the PROXY protocol.
    pub(super) fn balancers(&self) -> listener::TrustedProxies {
        if self.proxy_protocol {
            self.trusted_proxies.clone()
        } else {
            listener::TrustedProxies::default()
        }
    }
}

/// The address or socket for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TLS on an address.
    Tls(SocketAddr),
    /// Plain HTTP on a Unix socket.
    Socket {
        /// The socket's file.
        path: PathBuf,
        /// The file's mode. A user who may write to it may connect.
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
