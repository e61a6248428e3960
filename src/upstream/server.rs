//! The API server as the proxy uses it: how to reach it, and what goes there.
use std::ops::Deref;
use std::sync::Arc;

use watershed_connect::{ApiServer, ConnectOptions, CredentialsError};

use super::traffic::UpstreamTraffic;
use super::via::ProxyChain;

/// The most connections that there may be to upstream at a time. Each takes an open file.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamCapacity {
    /// Connections of a client for the proxy's own requests.
    pub own: usize,
    /// Connections on which callers' requests are forwarded.
    pub forwarded: usize,
    /// Tunnels (exec, attach, port-forward), which have a connection each.
    pub tunnels: usize,
}

impl Default for UpstreamCapacity {
    fn default() -> Self {
        Self {
            own: usize::MAX,
            forwarded: usize::MAX,
            tunnels: usize::MAX,
        }
    }
}

/// An API server and the traffic to it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {
    server: ApiServer,
    traffic: Arc<UpstreamTraffic>,
    chain: Arc<ProxyChain>,
    capacity: UpstreamCapacity,
}

impl Upstream {
    /// Reads the credentials, and keeps them fresh from then on.
    pub async fn load(options: &ConnectOptions) -> Result<Self, CredentialsError> {
        let server = ApiServer::load(options).await?;
        Ok(Self {
            server,
            traffic: Arc::default(),
            chain: Arc::default(),
            capacity: UpstreamCapacity::default(),
        })
    }

    /// Limits the connections.
    #[must_use]
    pub fn within(self, capacity: UpstreamCapacity) -> Self {
        Self { capacity, ..self }
    }

    /// Returns the limits of connections.
    pub fn capacity(&self) -> UpstreamCapacity {
        self.capacity
    }

    /// Returns the counters of requests, bytes and connections.
    pub fn traffic(&self) -> &Arc<UpstreamTraffic> {
        &self.traffic
    }

    /// Returns this proxy's place in a tree of proxies.
    pub fn chain(&self) -> &Arc<ProxyChain> {
        &self.chain
    }
}

impl Deref for Upstream {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}
