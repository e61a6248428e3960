//! Limits of the connections of a pool.
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Limit of connections in a group.
///
/// With HTTP/2 they carry tens of thousands of requests. The limit stops a flood before the kernel
/// runs out of ports.
pub(in crate::upstream) const MAX_CONNECTIONS: usize = 1024;
/// Limit of connections that relayed requests have to themselves.
const MAX_ALONE: usize = 256;
/// Divisor: such connections are a part of all, so that others can be made beside them.
const ALONE_DIVISOR: usize = 8;

/// Limits of each group of a pool. Cheap to clone.
#[derive(Clone)]
pub(in crate::upstream) struct PoolLimits {
    /// Connections of a group.
    pub(in crate::upstream) connections: usize,
    /// Connections up to which a relayed request has one to itself.
    pub(in crate::upstream) alone: usize,
    /// Connections of all groups that have these limits, those of other pools among them.
    pub(in crate::upstream) all: Arc<Semaphore>,
}

impl PoolLimits {
    /// Returns the limits of pools that may have so many connections together.
    pub(in crate::upstream) fn within(connections: usize) -> Self {
        Self {
            connections: MAX_CONNECTIONS.min(connections),
            alone: MAX_ALONE.min(connections / ALONE_DIVISOR),
            all: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
        }
    }
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self::within(usize::MAX)
    }
}
