//! Room for connections, and for requests on them.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;

/// Time after which a waiting request looks for room again. Other groups share some limits, and wake only
/// requests of their own.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Wakes requests that found neither a free stream nor room for another connection. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::upstream) struct Room(Arc<Notify>);

/// The permits of a connection, which are given back when it has ended.
pub(in crate::upstream) struct ConnectionPermits {
    permits: Vec<OwnedSemaphorePermit>,
    room: Room,
}

impl Room {
    /// Wakes the request that has waited longest: there is room for one.
    pub(in crate::upstream) fn one_is_free(&self) {
        self.0.notify_one();
    }

    /// Wakes all requests that wait: there is another connection, with many streams.
    pub(in crate::upstream) fn has_grown(&self) {
        self.0.notify_waiters();
    }

    /// Waits until there may be room.
    pub(in crate::upstream) async fn may_be_free(&self) {
        // Whoever waited too long looks, too.
        let _ = timeout(LOOK_AGAIN, self.0.notified()).await;
    }
}

impl ConnectionPermits {
    /// Creates the permits of a connection in this room.
    pub(in crate::upstream) fn new(permits: Vec<OwnedSemaphorePermit>, room: Room) -> Self {
        Self { permits, room }
    }

    /// Returns the room that they take.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }
}

impl Drop for ConnectionPermits {
    fn drop(&mut self) {
        self.permits.clear();
        self.room.one_is_free();
    }
}
