//! The state of a scope that its writer and its readers share.
//!
//! Three versions tell how far a scope is, and one [`Position`] how far each subscription is. This
//! table holds all rules; an empty cell means that the event leaves the field alone.
//!
//! | | `snapshot`, the state upstream's events led to | `confirmed`, the same objects at a later version | `window` floor, the oldest version to start from | cursor of each subscription |
//! |---|---|---|---|---|
//! | list at `L` | is the list, of a new generation | none | `L` | expired, unless its start is at least `L` and nothing after `L` was known |
//! | change at `V` | takes the change in, is at `V` | none once `V` reaches it | | to the change, if it concerns the subscription and that has caught up |
//! | bookmark at `V` | is at `V`, if that is later | none once `V` reaches it | | |
//! | confirmation of a snapshot at `V` | | that snapshot at `V`, if it is of this generation and `V` is later than both | | |
//! | event leaves the window | | | its version, or the next one if another event shares it | |
//! | subscription from now | | | | caught up |
//! | subscription after `V` | | | | to the first event after `V`; expired if `V` lies below the floor, or if several events share it |
//! | step of the subscription | | | | behind what it returns; caught up at the head; expired if events of its own have left the window |
//! | close | | | | to the head, if it has caught up |
//!
//! Deletions may share a version, as etcd deletes all objects of an expired lease at once. They
//! arrive one by one, and nothing tells the last of them before a later version does. So the
//! newest state counts as their version from the first of them on. A client that took it between
//! them goes on as follows: a watch that begins before the next of them gets the rest, and one that
//! begins later expires.
//!
//! A subscription may start at a version that the events have not reached: one that was confirmed,
//! or one that another server named. It skips the events up to its start.
//!
//! [`Position`]: super::cursor::Position
use super::pins::Pins;
use super::snapshot::Snapshot;
use super::subscribers::Subscribers;
use super::window::{Window, WindowLimits};
use watershed_protocol::ResourceVersion;

/// One scope's state. Its lock is held for moments only, never across an await. Wakers are called
/// after it is released: a woken task takes the lock at once.
#[derive(Debug)]
pub(super) struct StoreState {
    /// The state that upstream's events have led to.
    pub(super) snapshot: Snapshot,
    /// Objects that were shown to be upstream's at a version that the events have not reached.
    /// Events up to there left no trace, if there are any.
    pub(super) confirmed: Option<Snapshot>,
    pub(super) window: Window,
    pub(super) subscribers: Subscribers,
    pub(super) pins: Pins,
    /// The writer is gone: no event follows.
    pub(super) closed: bool,
}

impl StoreState {
    pub(super) fn new(limits: WindowLimits) -> Self {
        Self {
            snapshot: Snapshot::default(),
            confirmed: None,
            window: Window::new(limits),
            subscribers: Subscribers::default(),
            pins: Pins::default(),
            closed: false,
        }
    }

    /// Returns the newest state known to be upstream's.
    pub(super) fn newest(&self) -> &Snapshot {
        self.confirmed.as_ref().unwrap_or(&self.snapshot)
    }

    /// Records that the events have reached `version`.
    pub(super) fn advance(&mut self, version: ResourceVersion) {
        self.snapshot.set_version(version);
        self.confirmed
            .take_if(|confirmed| confirmed.version() <= version);
    }
}
