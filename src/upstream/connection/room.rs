//! Room for connections, and for requests on them.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// Requests that wait for room at a time. More are refused at once.
const MAX_WAITING: usize = 1_000;
/// Those of them that look for room, the ones that have waited longest. Each look passes over all connections.
const LOOKING: usize = 4;
/// Time after which they look again. Other groups share some limits, and wake only requests of their own.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Room for requests in a group of connections, and the queue of those that found neither a free stream nor room
/// for another connection. Cheap to clone.
#[derive(Clone)]
pub(in crate::upstream) struct Room(Arc<RoomState>);

struct RoomState {
    freed: Notify,
    waiting: Semaphore,
    looking: Semaphore,
}

/// The turn of a request to look for room.
pub(in crate::upstream) struct RoomTurn<'a> {
    freed: &'a Notify,
    deadline: Instant,
    _permits: [SemaphorePermit<'a>; 2],
}

/// The permits of a connection, which are given back when it has ended.
pub(in crate::upstream) struct ConnectionPermits {
    permits: Vec<OwnedSemaphorePermit>,
    room: Room,
}

impl Room {
    /// Wakes one request that looks for room: there may be some. It is for whoever waits next to take the rest.
    pub(in crate::upstream) fn one_is_free(&self) {
        self.0.freed.notify_one();
    }

    /// Returns `true` if requests wait, so that another one has to queue up.
    pub(in crate::upstream) fn is_awaited(&self) -> bool {
        self.0.waiting.available_permits() < MAX_WAITING
    }

    /// Waits for a turn to look for room, after those that came before; `None` if it does not come in time, or
    /// too many wait.
    pub(in crate::upstream) async fn turn(&self, patience: Duration) -> Option<RoomTurn<'_>> {
        let deadline = Instant::now() + patience;
        let RoomState {
            freed,
            waiting,
            looking,
        } = &*self.0;
        let waiting = waiting.try_acquire().ok()?;
        let looking = timeout_at(deadline, looking.acquire()).await.ok()?.ok()?;
        Some(RoomTurn {
            freed,
            deadline,
            _permits: [waiting, looking],
        })
    }
}

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(RoomState {
            freed: Notify::new(),
            waiting: Semaphore::new(MAX_WAITING),
            looking: Semaphore::new(LOOKING),
        }))
    }
}

impl RoomTurn<'_> {
    /// Returns the next sign of room. It counts from now on, so it is taken before a look.
    pub(in crate::upstream) fn next(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Waits until it is time to look again; `false` if the turn has ended.
    pub(in crate::upstream) async fn look_again(&self, sign: Notified<'_>) -> bool {
        // Without a sign, it is time as well.
        let _ = timeout(LOOK_AGAIN, sign).await;
        Instant::now() < self.deadline
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
