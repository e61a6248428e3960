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
//! list, other schema  | the list | none         | L           | relisted (1, 11)
//! reset               | none     | none         | its version | expired (8)
//! change at V         | at V     | none if <= V |             | caught up: to the change (2)
//! other bytes at V    | at V (9) | same (9)     | V           | expired if it concerns them
//! bookmark at V       | at V (3) | none if <= V |             |
//! confirmation at V   |          | at V (4)     |             |
//! event is dropped    |          |              | its version | a step before the window: expired
//! subscribe now       |          |              |             | caught up (6)
//! subscribe after V   |          |              |             | to the first event after V (5)
//! step                |          |              |             | behind what it returns; caught up
//! pause               |          |              |             | caught up: to the head (7)
//! expire              |          |              |             | expired
//! close               |          |              |             | caught up: to the head
//! release             | none     | none         | its version | ended (10)
//! ```
//!
//! 1. A subscription that starts at `L` or later goes on, unless more than `L` was known before:
//!    the list is of another timeline then.
//! 2. If it concerns the subscription. Others come to the change by themselves.
//! 3. If that is later.
//! 4. If that is later than both, and the confirmed snapshot goes back to the newest list. Its
//!    generation tells.
//! 5. Expired if `V` lies below the floor.
//! 6. While a version is unfinished, at its first event.
//! 7. While the store is paused, a step with nothing to return ends the subscription. A list ends
//!    the pause.
//! 8. Every one, and so are those that begin before the next list: upstream has another history.
//! 9. Another release of upstream prints some objects differently. The same versions get other
//!    bytes, and a generation of their own.
//! 10. Every one, also those that have not got all events: their clients go on elsewhere from the
//!     version that they have reached.
//! 11. They end without an error, unless a reset, an expiry or another list follows first.
//!
//! A change that is known already leaves all of these alone. A resumed watch begins with the last
//! one, which shows that upstream still has the same history. Its version is kept in `last_event`,
//! until a list: the window may have dropped it, or never had it.
//!
//! Deletions may share a version, as etcd deletes all objects of an expired lease at once. They
//! arrive one by one, and nothing tells the last of them. Of types whose objects expire, the state
//! before the first of them is kept in `unfinished`, and readers see that one, at the version at
//! which it was confirmed last. It ends with a change or a bookmark at a later version, with a list
//! or a confirmation, or when upstream is asked how many objects it has at the version
//! ([`StoreWriter::finish`]). Watches get each deletion at once, but no bookmark before all of them.
//!
//! A subscription may start at a version that the events have not reached: one that was confirmed,
//! or one that another server named. It skips the events up to its start.
//!
//! [`Position`]: super::cursor::Position
//! [`StoreWriter::finish`]: super::StoreWriter::finish
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::object::StoredObject;
use super::pins::{PinnedState, Pins};
use super::snapshot::{ReplacedLeaves, SettledLeaf, Snapshot};
use super::subscribers::Subscribers;
use super::sync::RwLock;
use super::tally::ByteTally;
use super::window::{DroppedEvents, Window, WindowLimits};
use watershed_protocol::ResourceVersion;

/// One scope's state. Its lock is held for moments only, never across an await. Wakers are called
/// after it is released: a woken task takes the lock at once.
#[derive(Debug)]
pub(super) struct StoreState {
    /// The state that upstream's events have led to.
    pub(super) snapshot: Snapshot,
    /// The first key of the last leaf that was looked at for frames that no history needs.
    pub(super) outlived: String,
    /// Objects that were shown to be upstream's at a version that the events have not reached.
    /// Events up to there left no trace, if there are any.
    pub(super) confirmed: Option<Snapshot>,
    /// The state before the deletions of the newest version, while more of them may follow.
    pub(super) unfinished: Option<Snapshot>,
    /// Deletions may share a version.
    pub(super) deletes_together: bool,
    pub(super) window: Window,
    /// The version of the last event that upstream showed since the list.
    pub(super) last_event: Option<ResourceVersion>,
    pub(super) subscribers: Subscribers,
    pub(super) pins: Pins,
    /// Counts what is made again for readers of old versions.
    pub(super) restored: ByteTally,
    pub(super) outlook: Outlook,
    /// The generation of the snapshot that was listed last because of another schema; or zero.
    pub(super) schema_changed: u64,
}

/// The writer's knowledge of events to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Events arrive as they happen.
    Followed,
    /// Events may happen unseen. They arrive later, or the scope is listed again.
    Paused,
    /// The writer is gone: no event follows.
    Closed,
    /// The writer is gone, and what is held was dropped.
    Released,
}

/// A state and its history, which have been replaced.
///
/// Dropping it takes a moment for each object, so it is dropped after the lock is released, and
/// where nothing waits for the thread.
#[derive(Debug, Default)]
pub struct Discarded {
    pub(super) _snapshots: [Option<Snapshot>; 4],
    pub(super) _objects: Vec<Arc<StoredObject>>,
    pub(super) _events: DroppedEvents,
    pub(super) _pins: Pins,
}

/// Bytes that a scope's state and history hold, without compressed forms of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Bytes of the newest objects, and of what finds them.
    pub objects: usize,
    /// Bytes of the events that objects do not hold anyway, of what is made again of them, and of
    /// states that clients page through.
    pub history: usize,
    /// Bytes of objects that are not held, as they are folded or not made yet. Readers may need them.
    pub folded: usize,
}

/// Drops what some leaves hold for a history that is gone. Each call goes on behind the last.
///
/// Leaves are put together without the lock. Nobody else waits for that.
/// Returns `false` if there is nothing more to drop.
pub(super) fn settle_outlived(state: &RwLock<StoreState>) -> bool {
    let (snapshot, before) = {
        let state = state.read();
        (state.snapshot.clone(), state.outlived.clone())
    };
    let mut place = before.clone();
    let (settled, _) = snapshot.settle_outlived(&mut place);
    // Before the change: it would have to copy what a copy of the snapshot refers to.
    drop(snapshot);
    if settled.is_empty() && place == before {
        return false;
    }
    let mut state = state.write();
    state.outlived = place;
    let replaced = state.settle(settled);
    let has_more = state.snapshot.has_outlived();
    drop(state);
    drop(replaced);
    has_more
}

impl StoreState {
    pub(super) fn new(limits: WindowLimits) -> Self {
        Self {
            snapshot: Snapshot::default(),
            outlived: String::new(),
            confirmed: None,
            unfinished: None,
            deletes_together: false,
            window: Window::new(limits),
            last_event: None,
            subscribers: Subscribers::default(),
            pins: Pins::default(),
            restored: ByteTally::default(),
            outlook: Outlook::Followed,
            schema_changed: 0,
        }
    }

    /// Takes in a state that does not follow from the one before, and drops all history up to
    /// `floor`.
    pub(super) fn start_anew(
        &mut self,
        mut snapshot: Snapshot,
        floor: ResourceVersion,
    ) -> Discarded {
        snapshot.set_generation(self.snapshot.generation() + 1);
        snapshot.outlive_all(floor);
        self.last_event = None;
        Discarded {
            _snapshots: [
                Some(std::mem::replace(&mut self.snapshot, snapshot)),
                self.confirmed.take(),
                self.unfinished.take(),
                None,
            ],
            _objects: Vec::new(),
            _events: self.window.reset(floor),
            _pins: std::mem::take(&mut self.pins),
        }
    }

    /// Ends every watch that has got all events. Returns those to wake.
    pub(super) fn end_watches(&mut self, outlook: Outlook) -> Vec<Waker> {
        self.outlook = outlook;
        self.subscribers.wake_all(self.window.head())
    }

    /// Returns the bytes that the state and its history hold.
    pub(super) fn held(&self) -> HeldBytes {
        HeldBytes {
            objects: self.snapshot.held(),
            history: self.window.bytes() + self.restored.bytes() + self.pins.bytes(),
            folded: self.snapshot.folded(),
        }
    }

    /// Returns the newest state known to be upstream's.
    pub(super) fn newest(&self) -> &Snapshot {
        let complete = self.unfinished.as_ref().unwrap_or(&self.snapshot);
        self.confirmed.as_ref().unwrap_or(complete)
    }

    /// Puts settled leaves in the place of those that they were made from, also for readers of the
    /// confirmed state. Returns what was replaced, to be dropped without the lock.
    pub(super) fn settle(&mut self, settled: Vec<SettledLeaf>) -> impl Sized + use<> {
        let replaced = self.snapshot.replaced_leaves();
        let leaves: ReplacedLeaves = self.snapshot.replace_by_settled(settled);
        let pins = self.note_replaced_leaves(replaced);
        let unsettled = self
            .confirmed
            .take_if(|confirmed| confirmed.has_objects_of(&self.snapshot));
        if let Some(unsettled) = &unsettled {
            self.confirmed = Some(self.snapshot.clone().at_version(unsettled.version()));
        }
        (leaves, pins, unsettled)
    }

    /// Takes account of leaves that have been replaced since their sum was `before`: pinned states may
    /// hold them alone now. Returns the states that hold too much.
    pub(super) fn note_replaced_leaves(&mut self, before: usize) -> Vec<PinnedState> {
        let replaced = self.snapshot.replaced_leaves().wrapping_sub(before);
        self.pins.record_replaced(replaced)
    }

    /// Keeps the present state for readers, as a deletion of `version` follows and perhaps more of
    /// the same version.
    pub(super) fn begin_deletions(&mut self, version: ResourceVersion) {
        if version == self.snapshot.version() {
            self.deletes_together = true;
        } else if self.deletes_together {
            self.finish_deletions();
            self.unfinished = Some(self.newest().clone());
        }
    }

    /// Takes account of events that have left the window: objects may hold their frames alone now.
    pub(super) fn note_dropped(&mut self, dropped: &DroppedEvents) {
        let floor = self.window.floor();
        self.snapshot.outlive(floor, dropped.events());
    }

    /// Takes account of events older than `age`, whose frames are to be released: objects hold them
    /// alone now. Returns `false` if these were not all.
    pub(super) fn begin_release_of_frames(&mut self, now: Instant, age: Duration) -> bool {
        let aged = self.window.aged(self.snapshot.outlived_until(), now, age);
        let Some(last) = aged.last() else {
            return true;
        };
        self.snapshot
            .outlive(last.version, aged.iter().map(|event| &**event));
        false
    }

    /// Records that no deletion of the newest version is missing.
    pub(super) fn finish_deletions(&mut self) {
        self.unfinished = None;
        self.advance(self.snapshot.version());
    }

    /// Records that upstream showed an event of `version`.
    pub(super) fn note_event(&mut self, version: ResourceVersion) {
        self.last_event = self.last_event.max(Some(version));
    }

    /// Records that the events have reached `version`.
    pub(super) fn advance(&mut self, version: ResourceVersion) {
        self.snapshot.set_version(version);
        let reached = self
            .confirmed
            .take_if(|confirmed| confirmed.version() <= version);
        // Readers have seen its version. It is of before the deletions that are unfinished.
        if let Some(reached) = reached
            && let Some(unfinished) = &mut self.unfinished
            && unfinished.version() < reached.version()
        {
            *unfinished = reached;
        }
    }
}
