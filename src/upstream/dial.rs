//! Connections outside of any pool, for instruments that decide themselves which requests share
//! one.
use http::HeaderMap;

use super::address::Address;
use super::connect::{Dialer, Stream};
use super::credentials::{Identity, Upstream};
use super::error::UpstreamError;

/// A connection on which no HTTP has been spoken yet.
pub struct OwnConnection {
    /// Bytes to and from the server.
    pub stream: Stream,
    /// Whether HTTP/2 was agreed on; HTTP/1.1 otherwise.
    pub http2: bool,
    /// Where it leads.
    pub address: Address,
}

impl Upstream {
    /// Connects to the first address that accepts, with the client certificate, if there is one.
    pub async fn connect(&self, http1_only: bool) -> Result<OwnConnection, UpstreamError> {
        let material = self.current();
        let dialed = Dialer::default()
            .dial(&material, Identity::Own, http1_only, None)
            .await?;
        Ok(OwnConnection {
            stream: dialed.stream,
            http2: dialed.http2,
            address: dialed.address,
        })
    }

    /// The headers that say who asks: the token, and whom it acts as. A token may end, so they are
    /// good for minutes.
    pub async fn authorization(&self) -> Result<HeaderMap, UpstreamError> {
        self.current().authorize(HeaderMap::new()).await
    }
}
