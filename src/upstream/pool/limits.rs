//! Limits of the connections of pools.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::upstream::class::ConnectionClass;

/// Limit of connections in a group.
///
/// With HTTP/2 they carry tens of thousands of requests. The limit stops a flood before the kernel
/// runs out of ports.
pub(in crate::upstream) const MAX_CONNECTIONS: usize = 1024;
/// Limit of connections that relayed requests have to themselves.
const MAX_ALONE: usize = 256;
/// Divisor: such connections are a part of all.
const ALONE_DIVISOR: usize = 8;
/// Divisor: connections of relayed requests are half of all at most, shared ones among them.
const RELAYED_DIVISOR: usize = 2;
/// Divisor: a quarter of all is left for short requests, while long ones have taken the rest.
const SHORT_DIVISOR: usize = 4;
/// Time in which idle connections end where there can be no more.
const ENDING_IDLE: Duration = Duration::from_millis(200);

/// Limits of each group of a pool. Cheap to clone.
#[derive(Clone)]
pub(in crate::upstream) struct PoolLimits {
    /// Connections of a group.
    pub(in crate::upstream) connections: usize,
    /// Connections of the group of relayed requests.
    pub(in crate::upstream) relayed: usize,
    /// Connections up to which a relayed request has one to itself.
    pub(in crate::upstream) alone: usize,
    /// The connections of all groups that have these limits, those of other pools among them.
    pub(in crate::upstream) shared: Arc<SharedConnections>,
}

/// The number of connections that several groups may have together.
pub(in crate::upstream) struct SharedConnections {
    all: Arc<Semaphore>,
    /// Those of all that requests may take which stay open.
    long: Arc<Semaphore>,
    /// Somebody needs a connection, and all are taken.
    wanted: Notify,
}

/// The permits of a connection: one of all, and of those for long requests if it is for such.
pub(in crate::upstream) type SharedPermits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl PoolLimits {
    /// Returns the limits of pools that may have so many connections together.
    pub(in crate::upstream) fn within(connections: usize) -> Self {
        let connections_of_group = MAX_CONNECTIONS.min(connections);
        Self {
            connections: connections_of_group,
            relayed: connections_of_group.min((connections / RELAYED_DIVISOR).max(1)),
            alone: MAX_ALONE.min(connections / ALONE_DIVISOR),
            shared: Arc::new(SharedConnections::new(connections)),
        }
    }

    /// Returns the limit of a class's group.
    pub(super) fn of_class(&self, class: ConnectionClass) -> usize {
        match class {
            ConnectionClass::Relayed => self.relayed,
            ConnectionClass::Watch | ConnectionClass::Short | ConnectionClass::LongForward => {
                self.connections
            }
        }
    }
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self::within(usize::MAX)
    }
}

impl SharedConnections {
    fn new(connections: usize) -> Self {
        let all = connections.clamp(1, Semaphore::MAX_PERMITS);
        let long = (all - all / SHORT_DIVISOR).max(1);
        Self {
            all: Arc::new(Semaphore::new(all)),
            long: Arc::new(Semaphore::new(long)),
            wanted: Notify::new(),
        }
    }

    /// Takes the permits of a connection. Where none is left, idle connections of other groups end for it.
    /// Returns `None` if none does.
    pub(super) async fn take(&self, class: ConnectionClass) -> Option<SharedPermits> {
        if let Some(permits) = self.try_take(class) {
            return Some(permits);
        }
        // Boxed: every request's future would hold it.
        Box::pin(timeout(ENDING_IDLE, self.take_of_idle(class)))
            .await
            .ok()?
    }

    fn try_take(&self, class: ConnectionClass) -> Option<SharedPermits> {
        let permit = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        let of_long = if class.is_long() {
            Some(permit(&self.long)?)
        } else {
            None
        };
        Some((permit(&self.all)?, of_long))
    }

    async fn take_of_idle(&self, class: ConnectionClass) -> Option<SharedPermits> {
        self.wanted.notify_waiters();
        let permit = async |of: &Arc<Semaphore>| Arc::clone(of).acquire_owned().await.ok();
        let of_long = if class.is_long() {
            Some(permit(&self.long).await?)
        } else {
            None
        };
        Some((permit(&self.all).await?, of_long))
    }

    /// Waits until idle connections should end, as somebody needs theirs.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}
