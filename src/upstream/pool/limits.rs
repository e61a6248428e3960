//! Limits of the connections of a pool.

/// Limit of connections in a group.
///
/// With HTTP/2 they carry tens of thousands of requests. The limit stops a flood before the kernel
/// runs out of ports.
pub(in crate::upstream) const MAX_CONNECTIONS: usize = 1024;

/// Limits of each group of a pool.
#[derive(Clone, Copy)]
pub(in crate::upstream) struct PoolLimits {
    pub(in crate::upstream) connections: usize,
    /// Connections up to which a relayed request has one to itself.
    pub(in crate::upstream) alone: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            connections: MAX_CONNECTIONS,
            alone: 256,
        }
    }
}
