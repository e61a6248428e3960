//! Readers of a scope's state.
use std::sync::Arc;
use std::time::{Duration, Instant};

use watershed_protocol::ResourceVersion;

use super::cursor::Position;
use super::past::{Past, StateAt};
use super::pins::PinOwner;
use super::snapshot::Snapshot;
use super::state::{HeldBytes, StoreState, settle_outlived};
use super::subscribers::Interest;
use super::subscription::Subscription;
use super::sync::RwLock;
use super::window::WindowLimits;
use super::writer::UnfinishedVersion;

/// Turns in which leaves are settled before frames are released: a tenth of a second of work.
const SETTLED_FOR_FRAMES: usize = 32;

/// Reads a scope's state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StoreReader {
    state: Arc<RwLock<StoreState>>,
}

/// Figures of a scope at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreStats {
    /// The version reached.
    pub version: ResourceVersion,
    /// Objects in the newest snapshot.
    pub objects: usize,
    /// Bytes of these objects.
    pub object_bytes: usize,
    /// Events in the window.
    pub events: usize,
    /// Bytes of these events.
    pub event_bytes: usize,
    /// Watches that follow the scope.
    pub watchers: usize,
}

impl StoreStats {
    /// Returns the mean size of the objects; zero if there are none.
    pub fn average_bytes(&self) -> usize {
        self.object_bytes / self.objects.max(1)
    }
}

/// The start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionStart {
    /// With the events after this version, which may lie in the future.
    After(ResourceVersion),
    /// With the events after the newest snapshot.
    Now,
    /// With the events after those that led to the followed state ([`StoreReader::followed`]). The newest snapshot may
    /// be ahead of it. Together the events up to there leave no trace, but each of them changes the followed state.
    Followed,
}

/// The answer to a request for the state at one version.
#[derive(Clone, Debug)]
pub enum SnapshotAt {
    /// The state at the version.
    Found(StateAt),
    /// The version lies in the future, or more deletions of it may follow.
    Future,
    /// The version lies before what is known, or too much has happened since.
    Expired,
}

impl StoreReader {
    pub(super) fn new(state: Arc<RwLock<StoreState>>) -> Self {
        Self { state }
    }

    /// Returns the newest snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.state.read().newest().clone()
    }

    /// Returns the version of the newest snapshot.
    pub fn version(&self) -> ResourceVersion {
        self.state.read().newest().version()
    }

    /// Returns the version that upstream's events have reached. The newest snapshot may be ahead of
    /// it: see [`StoreReader::confirm`].
    pub fn event_version(&self) -> ResourceVersion {
        self.state.read().snapshot.version()
    }

    /// Returns the state that upstream's events have led to. It may be one that upstream never had,
    /// while [`StoreReader::unfinished`] returns a version.
    pub fn followed(&self) -> Snapshot {
        self.state.read().snapshot.clone()
    }

    /// Returns the version of which more deletions may follow, if there is one.
    pub fn unfinished(&self) -> Option<UnfinishedVersion> {
        let state = self.state.read();
        state.unfinished.as_ref()?;
        Some(UnfinishedVersion {
            version: state.snapshot.version(),
            objects: state.snapshot.len(),
        })
    }

    /// Returns the version of the newest event, unless it is older than the window's age. A server
    /// that restarted since may not have it.
    pub fn last_event_version(&self) -> Option<ResourceVersion> {
        let state = self.state.read();
        let event = state.window.last_young(Instant::now());
        event.map(|event| event.version)
    }

    /// Returns the version of the last event that upstream showed since the list, if there was one.
    /// It need not be in the window.
    pub fn last_shown_event(&self) -> Option<ResourceVersion> {
        self.state.read().last_event
    }

    /// Records that upstream's objects at `version` are those of `snapshot`, one of this reader's.
    ///
    /// Events up to `version` may still arrive if together they left no trace: an object came and
    /// went again. Open watches get them; a watch that starts at `version` does not.
    pub fn confirm(&self, snapshot: Snapshot, version: ResourceVersion) {
        let mut state = self.state.write();
        if snapshot.generation() == state.snapshot.generation()
            && version > state.newest().version()
        {
            if version >= state.snapshot.version() {
                state.unfinished = None;
            }
            // Leaves of a snapshot that was taken earlier may hold more than those of the state.
            let confirmed = if snapshot.has_objects_of(&state.snapshot) {
                state.snapshot.clone()
            } else {
                snapshot.clone()
            };
            let before = state.confirmed.replace(confirmed.at_version(version));
            drop(state);
            drop((before, snapshot));
        }
    }

    /// Returns `true` if the store holds the same objects: dropping the snapshot frees none.
    pub fn holds(&self, snapshot: &Snapshot) -> bool {
        self.state.read().snapshot.is_copy_of(snapshot)
    }

    /// Keeps a snapshot that is ahead of the events for a while, for [`StoreReader::state_at`]: a
    /// client will ask for the next page of it. `owner` is dropped with it.
    pub fn pin(&self, now: Instant, snapshot: Snapshot, owner: PinOwner) {
        let mut state = self.state.write();
        if snapshot.generation() == state.snapshot.generation() {
            let dropped = state.pins.put(now, snapshot, owner);
            drop(state);
            drop(dropped);
        }
    }

    /// Drops the states that were kept for longer than the window. Bookmarks do so, too, but a type may
    /// have none.
    pub fn drop_old_pins(&self, now: Instant) {
        // Most types have none: their readers and writer go on meanwhile.
        if self.state.read().pins.is_empty() {
            return;
        }
        let mut state = self.state.write();
        let oldest = now.checked_sub(state.window.age());
        let dropped = state.pins.take_before(oldest);
        drop(state);
        drop(dropped);
    }

    /// Returns the state at `version`. Changes after it are taken back where the state is read.
    pub fn state_at(&self, version: ResourceVersion) -> SnapshotAt {
        let state = self.state.read();
        let confirmed = state
            .confirmed
            .as_ref()
            .filter(|confirmed| confirmed.version() == version);
        if let Some(known) = confirmed.or_else(|| state.pins.get(version)) {
            return SnapshotAt::Found(known.clone().into());
        }
        let reached = state.snapshot.version();
        if version > reached || (version == reached && state.unfinished.is_some()) {
            return SnapshotAt::Future;
        }
        let Some(from) = state.window.after(version) else {
            return SnapshotAt::Expired;
        };
        let newest = state.snapshot.clone();
        let Some(next) = state.window.from(from).next() else {
            return SnapshotAt::Found(newest.at_version(version).into());
        };
        let past = Past {
            version,
            changes: state.window.changes().clone(),
            objects: next.objects_before,
            restored: state.restored.clone(),
            limit: state.window.limits().bytes / 2,
        };
        SnapshotAt::Found(StateAt::before(newest, past))
    }

    /// Returns the figures for metrics and pages.
    pub fn stats(&self) -> StoreStats {
        let state = self.state.read();
        StoreStats {
            version: state.newest().version(),
            objects: state.newest().len(),
            object_bytes: state.newest().size(),
            events: state.window.len(),
            event_bytes: state.window.bytes(),
            watchers: state.subscribers.len(),
        }
    }

    /// Returns the bytes that the state and its history hold.
    pub fn held(&self) -> HeldBytes {
        self.state.read().held()
    }

    /// Returns those bytes of the history that the store from which this one is derived holds as
    /// well, as its history begins behind `version`.
    pub fn shared_after(&self, version: ResourceVersion) -> usize {
        self.state.read().window.shared_after(version)
    }

    /// Sets the limits of the history from now on.
    pub fn set_window(&self, limits: WindowLimits) {
        self.state.write().window.set_limits(limits);
    }

    /// Releases the events that are older than `age`, and some of the memory that only they needed.
    /// Returns the events' bytes. Watches that have not got them expire.
    pub fn release_history(&self, now: Instant, age: Duration) -> usize {
        let mut sum = 0;
        loop {
            let mut state = self.state.write();
            let (released, bytes) = state.window.release(now, age);
            state.note_dropped(&released);
            if bytes > 0 {
                // Dropped without the lock, as these may be many.
                drop(state);
                drop(released);
                sum += bytes;
                continue;
            }
            let pins = state.pins.take_before(now.checked_sub(age));
            drop(state);
            drop(pins);
            settle_outlived(&self.state);
            return sum;
        }
    }

    /// Releases the frames of events older than `age` that can be made again and that nobody has used
    /// since the last call. Returns their bytes. Objects in these frames get a place in their leaf.
    pub fn release_frames(&self, now: Instant, age: Duration) -> usize {
        let frames = self.state.read().window.frames().clone();
        if frames.is_empty() {
            return 0;
        }
        while !self.state.write().begin_release_of_frames(now, age) {}
        for _ in 0..SETTLED_FOR_FRAMES {
            if !settle_outlived(&self.state) {
                break;
            }
        }
        let until = self.state.read().snapshot.outlived_until();
        frames.release_unused(until)
    }

    /// Begins to follow the events. Also returns the newest snapshot, which
    /// [`SubscriptionStart::Now`] goes on from: nothing lies between it and the first event.
    pub fn subscribe(
        &self,
        start: SubscriptionStart,
        interest: Interest,
    ) -> (Subscription, Snapshot) {
        let mut state = self.state.write();
        let snapshot = state.newest().clone();
        let version = match start {
            SubscriptionStart::Now => snapshot.version(),
            SubscriptionStart::After(version) => version,
            SubscriptionStart::Followed => state.snapshot.version(),
        };
        let position = if !snapshot.is_listed() {
            // After a reset, nobody knows what happened since any version.
            Position::Expired
        } else if start == SubscriptionStart::Now && state.unfinished.is_none() {
            Position::CaughtUp
        } else {
            // The deletions of an unfinished version are not in the snapshot.
            let next = state.window.after(version);
            next.map_or(Position::Expired, Position::At)
        };
        let ahead = version > state.snapshot.version();
        let skipped = if ahead {
            version
        } else {
            ResourceVersion::default()
        };
        let place = state.subscribers.add(interest, position, skipped);
        let generation = snapshot.generation();
        let subscription = Subscription::new(Arc::clone(&self.state), place, version, generation);
        (subscription, snapshot)
    }

    /// Returns the oldest version a watch can start from.
    pub fn oldest_version(&self) -> ResourceVersion {
        self.state.read().window.floor()
    }
}
