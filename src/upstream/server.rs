//! The API server as the proxy uses it: how to reach it, and what goes there.
use std::ops::Deref;
use std::sync::Arc;

use watershed_connect::{ApiServer, ConnectOptions, CredentialsError};

use super::traffic::UpstreamTraffic;
use super::via::ProxyChain;

/// An API server and the traffic to it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {
    server: ApiServer,
    traffic: Arc<UpstreamTraffic>,
    chain: Arc<ProxyChain>,
}

impl Upstream {
    /// Reads the credentials, and keeps them fresh from then on.
    pub async fn load(options: &ConnectOptions) -> Result<Self, CredentialsError> {
        let server = ApiServer::load(options).await?;
        Ok(Self {
            server,
            traffic: Arc::default(),
            chain: Arc::default(),
        })
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
