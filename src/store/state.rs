//! The state of a scope that its writer and its readers share.
//!
//! Three versions tell how far a scope is: those of `snapshot` (the state upstream's events led
//! to), of `confirmed` (the same objects at a later version) and the `floor` of the window (the
//! oldest version a watch may start from). One [`Position`] tells how far each subscription is.
//! This table holds all rules. An empty cell means that the event leaves the field alone.
//!
//! ```text
//! event               | snapshot | confirmed    | floor       | cursor of each subscription
//! --------------------|----------|--------------|-------------|------------------------------------
//! list at L           | the list | none         | L           | expired (1)
//! reset               | none     | none         | its version | expired (6)
//! change at V         | at V     | none if <= V |             | caught up: to the change (2)
//! bookmark at V       | at V (3) | none if <= V |             |
//! confirmation at V   |          | at V (4)     |             |
//! event is dropped    |          |              | its version | a step before the window: expired
//! subscribe now       |          |              |             | caught up
//! subscribe after V   |          |              |             | to the first event after V (5)
//! step                |          |              |             | behind what it returns; caught up
//! close               |          |              |             | caught up: to the head
//! ```
//!
//! 1. A subscription that starts at `L` or later goes on, unless more than `L` was known before:
//!    the list is of another timeline then.
//! 2. If it concerns the subscription. Others come to the change by themselves.
//! 3. If that is later.
//! 4. If that is later than both, and the confirmed snapshot goes back to the newest list. Its
//!    generation tells.
//! 5. Expired if `V` lies below the floor.
//! 6. Every one, and so are those that begin before the next list: upstream has another history.
//!
//! A change that is known already leaves everything alone. A resumed watch begins with the last
//! one, which shows that upstream still has the same history.
//!
//! Deletions may share a version, as etcd deletes all objects of an expired lease at once. They
//! arrive one by one, and nothing tells the last of them before a later version does. So the
//! newest state counts as their version from the first of them on. A list between them shows
//! objects that upstream has deleted, and a watch from that version, if it begins after the last
//! of them, never learns of these deletions. The events of one version arrive within milliseconds.
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
