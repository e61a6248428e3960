//! Connections that several of the demo's clients share.
use tokio::sync::Mutex;

use crate::client::{ClientConnection, Endpoint, Protocol};

/// A connection that several clients may share. It is opened with the first request, and again
/// after it broke.
pub(crate) struct SharedConnection {
    endpoint: Endpoint,
    protocol: Protocol,
    open: Mutex<Option<ClientConnection>>,
}

impl SharedConnection {
    pub(crate) fn new(endpoint: Endpoint, protocol: Protocol) -> Self {
        Self {
            endpoint,
            protocol,
            open: Mutex::new(None),
        }
    }

    /// Returns the open connection, or opens one.
    pub(crate) async fn get(&self) -> anyhow::Result<ClientConnection> {
        // HTTP/1.1 carries one request at a time, so its connection cannot be kept for others.
        if self.protocol == Protocol::Http1 {
            return self.endpoint.connect(Protocol::Http1).await;
        }
        let mut open = self.open.lock().await;
        if let Some(connection) = open.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = self.endpoint.connect(self.protocol).await?;
        Ok(open.insert(connection).clone())
    }
}
