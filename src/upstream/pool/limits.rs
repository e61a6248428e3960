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
/// Divisor: a quarter of all, at least one, is left for short requests, while long ones have taken the rest.
const SHORT_DIVISOR: usize = 4;
/// Time that requests wait where there can be no more connections: a burst is over by then. Shorter than the time
/// after which a review is sent again.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same in a part of the connections. Unknown callers may keep others waiting meanwhile.
const PATIENCE_WITH_PART: Duration = Duration::from_millis(200);
/// Idle time after which a connection ends where another one is needed. New ones have their first request by
/// then.
pub(super) const UNNEEDED_AFTER: Duration = Duration::from_millis(50);

/// Limits of each group of a pool. Cheap to clone.
#[derive(Clone)]
pub(in crate::upstream) struct PoolLimits {
    /// Connections of a group.
    pub(in crate::upstream) connections: usize,
    /// Connections of a group of relayed requests.
    pub(in crate::upstream) relayed: usize,
    /// Connections up to which a relayed request has one to itself.
    pub(in crate::upstream) alone: usize,
    /// Time that a request waits in the queue for a connection.
    pub(in crate::upstream) patience: Duration,
    /// The connections of all groups that have these limits, those of other pools among them.
    pub(in crate::upstream) shared: Arc<SharedConnections>,
}

/// The number of connections that several groups may have together.
pub(in crate::upstream) struct SharedConnections {
    all: Arc<Semaphore>,
    /// Those of all that requests may take which stay open.
    long: Arc<Semaphore>,
    /// Those of the long ones that relayed requests may take.
    relayed: Arc<Semaphore>,
    /// The connections of which these are a part.
    whole: Option<Arc<SharedConnections>>,
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

impl PoolLimits {
    /// Returns the limits of pools that may have so many connections together.
    pub(in crate::upstream) fn within(connections: usize) -> Self {
        Self::of(SharedConnections::new(connections, None), connections)
    }

    /// Returns the limits of other pools, which may have so many of these connections together. None of their
    /// relayed requests has a connection to itself, and none of their requests waits for long.
    pub(in crate::upstream) fn part(&self, connections: usize) -> Self {
        let whole = Some(Arc::clone(&self.shared));
        let part = SharedConnections::new(connections, whole);
        Self {
            alone: 0,
            patience: PATIENCE_WITH_PART,
            ..Self::of(part, connections)
        }
    }

    fn of(shared: SharedConnections, connections: usize) -> Self {
        let of_group = MAX_CONNECTIONS.min(connections);
        Self {
            connections: of_group,
            relayed: of_group.min(relayed_of(connections)),
            alone: MAX_ALONE.min(connections / ALONE_DIVISOR),
            patience: PATIENCE,
            shared: Arc::new(shared),
        }
    }

    /// Returns the limit of a class's group.
    pub(in crate::upstream) fn of_class(&self, class: ConnectionClass) -> usize {
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
    fn new(connections: usize, whole: Option<Arc<SharedConnections>>) -> Self {
        let all = connections.clamp(1, Semaphore::MAX_PERMITS);
        let long = (all - (all / SHORT_DIVISOR).max(1)).max(1);
        let [all, long, relayed] =
            [all, long, relayed_of(all)].map(|permits| Arc::new(Semaphore::new(permits)));
        Self {
            all,
            long,
            relayed,
            whole,
            groups: Mutex::default(),
        }
    }

    /// Adds a group to those that share the connections.
    pub(super) fn join(&self, group: Weak<dyn IdleConnections>) {
        if let Some(whole) = &self.whole {
            whole.join(Weak::clone(&group));
        }
        self.groups.lock().push(group);
    }

    /// Takes a connection's permits, of each limit that it counts for. Where none is left, connections that are
    /// idle end for it. Returns `None` if none is.
    pub(super) fn take(&self, class: ConnectionClass) -> Option<Vec<OwnedSemaphorePermit>> {
        let mut permits = self.take_own(class).or_else(|| {
            self.end_idle();
            self.take_own(class)
        })?;
        if let Some(whole) = &self.whole {
            permits.append(&mut whole.take(class)?);
        }
        Some(permits)
    }

    fn take_own(&self, class: ConnectionClass) -> Option<Vec<OwnedSemaphorePermit>> {
        // The rarest first: others need those of `all` that would be given back.
        let of = match class {
            ConnectionClass::Short => &[&self.all][..],
            ConnectionClass::Watch | ConnectionClass::LongForward => &[&self.long, &self.all],
            ConnectionClass::Relayed => &[&self.relayed, &self.long, &self.all],
        };
        let permit = |of: &&Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        of.iter().map(permit).collect()
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

/// Returns how many of so many connections relayed requests may take.
fn relayed_of(connections: usize) -> usize {
    (connections / RELAYED_DIVISOR).max(1)
}
