//! Counters of requests to upstream, bytes from it and connections, by purpose.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::class::ConnectionClass;

/// The purpose of a request to upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestPurpose {
    /// The proxy's own list of a scope.
    List,
    /// The proxy's own watch of a scope.
    Watch,
    /// A forwarded request of a caller.
    Forward,
    /// The proxy's own questions: authentication, authorization, freshness and discovery.
    #[default]
    Internal,
}

impl RequestPurpose {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::List, Self::Watch, Self::Forward, Self::Internal];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Forward => "forward",
            Self::Internal => "internal",
        }
    }
}

/// The purpose of a connection to upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// The proxy's own watches and lists.
    Watch,
    /// Short requests.
    Short,
    /// Forwarded watches.
    LongForward,
    /// Forwarded requests to pods, services and nodes, logs among them.
    Relayed,
    /// One session of exec, attach, port-forward or WebSocket.
    Tunnel,
}

impl ConnectionPurpose {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Watch,
        Self::Short,
        Self::LongForward,
        Self::Relayed,
        Self::Tunnel,
    ];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Short => "short",
            Self::LongForward => "long-forward",
            Self::Relayed => "relayed",
            Self::Tunnel => "tunnel",
        }
    }
}

impl From<ConnectionClass> for ConnectionPurpose {
    fn from(class: ConnectionClass) -> Self {
        match class {
            ConnectionClass::Watch => Self::Watch,
            ConnectionClass::Short => Self::Short,
            ConnectionClass::LongForward => Self::LongForward,
            ConnectionClass::Relayed => Self::Relayed,
        }
    }
}

/// Sums since the start of the process, and the connections open now.
#[derive(Debug, Default)]
pub struct UpstreamTraffic {
    requests: [AtomicU64; 4],
    received: [AtomicU64; 4],
    connections: [AtomicU64; 5],
    /// The number of connections that were made.
    made: watch::Sender<u64>,
}

impl UpstreamTraffic {
    /// Returns the number of answered requests.
    pub fn requests(&self, purpose: RequestPurpose) -> u64 {
        self.requests[purpose as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes of answers' bodies, compressed as they came.
    pub fn received_bytes(&self, purpose: RequestPurpose) -> u64 {
        self.received[purpose as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn connections(&self, kind: ConnectionPurpose) -> u64 {
        self.connections[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns what changes with each connection that is made from now on.
    pub(super) fn new_connections(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    /// Counts an answered request. The result counts the bytes of its answer.
    pub(super) fn answered(self: &Arc<Self>, purpose: RequestPurpose) -> ReceivedMeter {
        self.requests[purpose as usize].fetch_add(1, Ordering::Relaxed);
        ReceivedMeter {
            traffic: Arc::clone(self),
            purpose,
        }
    }

    /// Counts a connection until the result is dropped.
    pub(super) fn connected(self: &Arc<Self>, kind: ConnectionPurpose) -> OpenConnection {
        self.connections[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.made.send_modify(|number| *number += 1);
        OpenConnection {
            traffic: Arc::clone(self),
            kind,
        }
    }
}

/// Counts the bytes of one answer.
pub(super) struct ReceivedMeter {
    traffic: Arc<UpstreamTraffic>,
    purpose: RequestPurpose,
}

impl ReceivedMeter {
    pub(super) fn add(&self, bytes: usize) {
        self.traffic.received[self.purpose as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// An open connection.
pub(super) struct OpenConnection {
    traffic: Arc<UpstreamTraffic>,
    kind: ConnectionPurpose,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.traffic.connections[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenConnection").field(&self.kind).finish()
    }
}
