//! The open connections of a listener, and the choice of one to close when there are too many.
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::activity::Activity;
use super::limits::ConnectionLimits;

/// Time after which another connection is closed, if none has ended until then.
const CLOSE_AFTER: Duration = Duration::from_millis(100);

/// The open connections of a listener, as many as it may have. Cheap to clone.
#[derive(Clone)]
pub(super) struct OpenConnections {
    permits: Arc<Semaphore>,
    all: Arc<Mutex<Slab<Arc<Activity>>>>,
    slow_stranger: Duration,
}

/// A connection that may be closed to make room, for as long as this lives.
pub(super) struct ClosableConnection {
    connections: OpenConnections,
    key: usize,
}

impl OpenConnections {
    pub(super) fn new(limits: &ConnectionLimits) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limits.connections)),
            all: Arc::default(),
            slow_stranger: limits.slow_stranger,
        }
    }

    /// Returns a permit for a new connection. If there is none left, closes the connection of an
    /// unknown client that has been idle for the longest time, or else one that has not ended a
    /// request for long, or waits until another ends.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => self.make_room().await,
        }
    }

    /// Allows a connection to be closed to make room for others, until the result is dropped.
    pub(super) fn may_close(&self, activity: &Arc<Activity>) -> ClosableConnection {
        let key = self.all.lock().insert(Arc::clone(activity));
        ClosableConnection {
            connections: self.clone(),
            key,
        }
    }

    async fn make_room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            self.close_one();
            let ended = Arc::clone(&self.permits).acquire_owned();
            if let Ok(permit) = timeout(CLOSE_AFTER, ended).await {
                return permit.ok();
            }
        }
    }

    fn close_one(&self) {
        let all = self.all.lock();
        let unknown = || {
            all.iter()
                .map(|(_, activity)| activity)
                .filter(|it| !it.is_known())
        };
        let idle = unknown().filter(|it| !it.is_busy());
        let longest_idle = idle.min_by_key(|it| it.last_ended());
        // A client that reads no answer stays busy.
        let is_slow = |it: &&Arc<Activity>| it.last_ended().elapsed() >= self.slow_stranger;
        let slowest = || unknown().filter(is_slow).min_by_key(|it| it.last_ended());
        if let Some(chosen) = longest_idle.or_else(slowest) {
            chosen.close();
        }
    }
}

impl Drop for ClosableConnection {
    fn drop(&mut self) {
        self.connections.all.lock().try_remove(self.key);
    }
}
