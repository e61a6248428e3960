//! Limits of the connections of pools.
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
/// Idle time after which a connection ends where another one is needed. New ones have their first request by
/// then.
const UNNEEDED_AFTER: Duration = Duration::from_millis(50);

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
    /// The groups, whose idle connections end where there can be no more.
    groups: Mutex<Vec<Weak<dyn IdleConnections>>>,
}

/// The connections of a group, some of which may be idle.
pub(super) trait IdleConnections: Send + Sync {
    /// Returns the class of the requests on them.
    fn class(&self) -> ConnectionClass;

    /// Drops those that have been idle for this long.
    fn sweep(&self, idle: Duration);
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
            ConnectionClass::Relayed => self.relayed.min(self.connections),
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
            groups: Mutex::default(),
        }
    }

    /// Adds a group to those that share the connections.
    pub(super) fn join(&self, group: Weak<dyn IdleConnections>) {
        self.groups.lock().push(group);
    }

    /// Takes the permits of a connection. Where none is left, connections that are idle end for it.
    /// Returns `None` if none is.
    pub(super) fn take(&self, class: ConnectionClass) -> Option<SharedPermits> {
        self.try_take(class).or_else(|| {
            self.end_idle();
            self.try_take(class)
        })
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

    fn end_idle(&self) {
        // Those of short requests would make no room for long ones.
        let is_any = self.all.available_permits() == 0;
        let mut groups = self.groups.lock();
        groups.retain(|group| {
            let Some(group) = group.upgrade() else {
                return false;
            };
            if is_any || group.class().is_long() {
                group.sweep(UNNEEDED_AFTER);
            }
            true
        });
    }
}
