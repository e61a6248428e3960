//! What goes to upstream and comes from it: requests, bytes and connections, by what they are for.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pool::ConnectionClass;

/// What a request to upstream is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestPurpose {
    /// The proxy's own list of a scope.
    List,
    /// The proxy's own watch of a scope.
    Watch,
    /// A caller's request, sent on.
    Forward,
    /// The proxy's own questions: who a caller is, what they may, how new memory is, which types
    /// there are.
    #[default]
    Own,
}

impl RequestPurpose {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::List, Self::Watch, Self::Forward, Self::Own];

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Forward => "forward",
            Self::Own => "own",
        }
    }
}

/// What a connection to upstream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// The proxy's own watches and lists.
    Watch,
    /// Short requests.
    Short,
    /// Forwarded watches and logs.
    LongForward,
    /// One session of exec, attach, port-forward or WebSocket.
    Tunnel,
}

impl ConnectionPurpose {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Watch, Self::Short, Self::LongForward, Self::Tunnel];

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Short => "short",
            Self::LongForward => "long-forward",
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
        }
    }
}

/// Sums since the start of the process, and the connections of this moment.
#[derive(Debug, Default)]
pub struct UpstreamTraffic {
    requests: [AtomicU64; 4],
    received: [AtomicU64; 4],
    connections: [AtomicU64; 4],
}

impl UpstreamTraffic {
    /// Requests that were answered.
    pub fn requests(&self, purpose: RequestPurpose) -> u64 {
        self.requests[purpose as usize].load(Ordering::Relaxed)
    }

    /// Bytes of answers' bodies, as compressed as they came.
    pub fn received_bytes(&self, purpose: RequestPurpose) -> u64 {
        self.received[purpose as usize].load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub fn connections(&self, kind: ConnectionPurpose) -> u64 {
        self.connections[kind as usize].load(Ordering::Relaxed)
    }

    /// An answer begins, whose bytes are counted by what this gives.
    pub(super) fn answered(self: &Arc<Self>, purpose: RequestPurpose) -> Received {
        self.requests[purpose as usize].fetch_add(1, Ordering::Relaxed);
        Received {
            traffic: Arc::clone(self),
            purpose,
        }
    }

    /// Counts a connection for as long as this is kept.
    pub(super) fn connected(self: &Arc<Self>, kind: ConnectionPurpose) -> Open {
        self.connections[kind as usize].fetch_add(1, Ordering::Relaxed);
        Open {
            traffic: Arc::clone(self),
            kind,
        }
    }
}

/// Counts the bytes of one answer.
pub(super) struct Received {
    traffic: Arc<UpstreamTraffic>,
    purpose: RequestPurpose,
}

impl Received {
    pub(super) fn add(&self, bytes: usize) {
        self.traffic.received[self.purpose as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// An open connection.
pub(super) struct Open {
    traffic: Arc<UpstreamTraffic>,
    kind: ConnectionPurpose,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.traffic.connections[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Open").field(&self.kind).finish()
    }
}
