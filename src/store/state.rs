//! The shared state of a scope, its one writer and its readers.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Instant;

use parking_lot::RwLock;

use super::compressed::Compressed;
use super::object::StoredObject;
use super::pins::Pins;
use super::snapshot::{Replaced, Snapshot};
use super::wake::{Index, Interest, NOTHING, Slot};
use super::window::{Window, WindowEvent, WindowLimits};
use watershed_protocol::{EventKind, Frame, ResourceVersion};

/// Taking fewer events back than this costs less than a list of one page does.
const WORTH_PINNING: usize = 64;

/// Makes an empty scope, not yet synced.
pub fn new(limits: WindowLimits) -> (StoreWriter, StoreReader) {
    let shared = Arc::new(Shared {
        state: RwLock::new(State {
            snapshot: Snapshot::default(),
            proven: None,
            window: Window::new(limits),
            index: Index::default(),
            pins: Pins::default(),
            closed: false,
        }),
    });
    (
        StoreWriter {
            shared: Arc::clone(&shared),
            untidy: 0,
        },
        StoreReader { shared },
    )
}

#[derive(Debug)]
struct Shared {
    /// Held for moments only, never across an await. Wakers are called after it is released.
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    /// The state that upstream's events have led to.
    snapshot: Snapshot,
    /// The same or an older one's objects, which were shown to be upstream's at a version that the
    /// events have not reached yet (nothing of this type happened, as far as it left a trace).
    proven: Option<Snapshot>,
    window: Window,
    index: Index,
    pins: Pins,
    /// The writer is gone: no event follows.
    closed: bool,
}

impl State {
    fn newest(&self) -> &Snapshot {
        self.proven.as_ref().unwrap_or(&self.snapshot)
    }

    /// Events have led to `version`: what was proven up to there is history.
    fn advance(&mut self, version: ResourceVersion) {
        self.snapshot.set_version(version);
        self.proven.take_if(|proven| proven.version() <= version);
    }
}

/// What upstream said cannot follow what is known: the scope must be listed again.
#[derive(Debug, thiserror::Error)]
pub enum InconsistentEvent {
    /// Events come in ascending order of their version; only deletions may share one.
    #[error("event of version {event} came after version {known}")]
    Order {
        /// The event's version.
        event: ResourceVersion,
        /// The version already reached.
        known: ResourceVersion,
    },
    /// ADDED of an object that is there, or MODIFIED or DELETED of one that is not.
    #[error("{kind} event for {key:?}, which is {}", if *.held { "known already" } else { "not known" })]
    Existence {
        /// ADDED, MODIFIED or DELETED.
        kind: &'static str,
        /// The object's key.
        key: String,
        /// Whether the object is held.
        held: bool,
    },
    /// BOOKMARK and ERROR frames are not changes of an object.
    #[error("{0} is not a change")]
    NotAChange(&'static str),
}

/// The only one who changes a scope's state.
#[derive(Debug)]
pub struct StoreWriter {
    shared: Arc<Shared>,
    /// Changes since all leaves were looked at.
    untidy: usize,
}

impl StoreWriter {
    /// Puts a fresh list in place of everything known. Watches from before its version are told
    /// that their version expired: what happened in between is not known (invariant `no silent
    /// gap`).
    pub fn replace(&mut self, mut snapshot: Snapshot) {
        let mut state = self.shared.state.write();
        let seen_all = state.window.head();
        state.window.reset(snapshot.version());
        state.pins.clear();
        state.proven = None;
        snapshot.set_generation(state.snapshot.generation() + 1);
        state.snapshot = snapshot;
        let wakers = state.index.mark_all(seen_all);
        drop(state);
        wake(wakers);
    }

    /// Takes one event of upstream's in.
    ///
    /// etcd deletes all objects of an expired lease at once, so deletions may share a version. One
    /// that is known already is passed over: upstream says them again when a watch resumes in
    /// between.
    pub fn apply(
        &mut self,
        now: Instant,
        frame: Frame,
        object: StoredObject,
    ) -> Result<(), InconsistentEvent> {
        let mut state = self.shared.state.write();
        let known = state.snapshot.version();
        let version = object.version;
        let held = state.snapshot.get(object.key()).is_some();
        if version == known && frame.kind == EventKind::Deleted {
            if !held {
                return Ok(());
            }
        } else if version <= known {
            return Err(InconsistentEvent::Order {
                event: version,
                known,
            });
        }
        let fits = match frame.kind {
            EventKind::Added => !held,
            EventKind::Modified | EventKind::Deleted => held,
            EventKind::Bookmark | EventKind::Error => {
                return Err(InconsistentEvent::NotAChange(frame.kind.as_str()));
            }
        };
        if !fits {
            let key = object.key().to_owned();
            return Err(InconsistentEvent::Existence {
                kind: frame.kind.as_str(),
                key,
                held,
            });
        }
        let object = Arc::new(object);
        let replaced = if frame.kind == EventKind::Deleted {
            state.snapshot.remove(object.key())
        } else {
            state.snapshot.insert(Arc::clone(&object))
        };
        tidy(&mut self.untidy, &mut state);
        let (previous, copied) = replaced.map_or((None, 0), history);
        state.advance(version);
        let sequence = state.window.head();
        let wakers = state.index.mark(sequence, previous.as_deref(), &object);
        let compressed = Compressed::counted_in(state.window.compressed());
        let event = WindowEvent {
            kind: frame.kind,
            version,
            object,
            previous,
            copied,
            frame: frame.frame,
            compressed,
        };
        state.window.push(now, Arc::new(event));
        drop(state);
        wake(wakers);
        Ok(())
    }

    /// Upstream's word that everything up to `version` has been delivered.
    pub fn progress(&mut self, now: Instant, version: ResourceVersion) {
        let mut state = self.shared.state.write();
        if version > state.snapshot.version() {
            state.advance(version);
        }
        state.window.trim(now);
        tidy(&mut self.untidy, &mut state);
        let oldest = now.checked_sub(state.window.age());
        state.pins.let_go(oldest);
    }

    /// Ends every watch, now and later.
    pub fn close(&mut self) {
        let mut state = self.shared.state.write();
        state.closed = true;
        let wakers = state.index.mark_all(state.window.head());
        drop(state);
        wake(wakers);
    }
}

impl Drop for StoreWriter {
    /// Without a writer nothing would ever arrive: watches end instead of hanging.
    fn drop(&mut self) {
        if !self.shared.state.read().closed {
            self.close();
        }
    }
}

/// Lets go of what is held twice, so rarely that it costs a change next to nothing.
fn tidy(changes: &mut usize, state: &mut State) {
    *changes += 1;
    if *changes > state.snapshot.leaves() {
        *changes = 0;
        state.snapshot.settle();
    }
}

/// An object as an event keeps it, and the bytes it takes by itself. It may stay for long: what
/// lies beside it in memory is not to stay with it.
fn history(Replaced { object, shares }: Replaced) -> (Option<Arc<StoredObject>>, usize) {
    if !shares {
        return (Some(object), 0);
    }
    let StoredObject {
        bytes,
        version,
        attributes,
    } = &*object;
    let alone = StoredObject {
        bytes: bytes.detached(),
        version: *version,
        attributes: attributes.clone(),
    };
    let size = alone.size();
    (Some(Arc::new(alone)), size)
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// Reads a scope's state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StoreReader {
    shared: Arc<Shared>,
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

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionStart {
    /// With the events after this version, which may lie in the future.
    After(ResourceVersion),
    /// With the events after the newest snapshot.
    Now,
}

/// The state at a version that was asked for.
#[derive(Clone, Debug)]
pub enum SnapshotAt {
    /// This was it.
    Found(Snapshot),
    /// It lies in the future.
    Future,
    /// It lies before what is known, or too much has happened since.
    Expired,
}

/// What a subscriber is to do next.
#[derive(Clone, Debug)]
pub enum SubscriptionStep {
    /// These are the next events (possibly none of interest); there may be more behind them.
    Events(Vec<Arc<WindowEvent>>),
    /// Everything up to this version, the newest known, has been handed out; the waker is
    /// registered. A watch that started at a version still ahead may see one below its start here.
    CaughtUp(ResourceVersion),
    /// The events after the subscriber's version are not held any more.
    Expired {
        /// The version up to which everything was handed out.
        version: ResourceVersion,
        /// The oldest version a watch could start from.
        oldest: ResourceVersion,
    },
    /// The scope is closed.
    Closed,
}

impl StoreReader {
    /// The newest snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.state.read().newest().clone()
    }

    /// The version reached.
    pub fn version(&self) -> ResourceVersion {
        self.shared.state.read().newest().version()
    }

    /// The version that upstream's events have led to. That of the newest snapshot may be ahead of
    /// it.
    pub fn event_version(&self) -> ResourceVersion {
        self.shared.state.read().snapshot.version()
    }

    /// Takes it that upstream's objects at `version` are those of `snapshot`, one of this reader's.
    ///
    /// Events up to `version` may still arrive, if together they left no trace: an object that came
    /// and went again. Watches that are open get them; whoever starts at `version` does not.
    pub fn confirm(&self, snapshot: Snapshot, version: ResourceVersion) {
        let mut state = self.shared.state.write();
        if snapshot.generation() == state.snapshot.generation()
            && version > state.newest().version()
        {
            state.proven = Some(snapshot.at_version(version));
        }
    }

    /// Keeps a snapshot for a while, for [`StoreReader::snapshot_at`]: somebody will ask for the next page of it.
    pub fn pin(&self, now: Instant, snapshot: Snapshot) {
        let mut state = self.shared.state.write();
        if snapshot.generation() == state.snapshot.generation() {
            state.pins.put(now, snapshot);
        }
    }

    /// The state at `version`: the newest one, and everything after `version` taken back. States
    /// far behind are kept for a while, as the pages of one list all ask for the same.
    pub fn snapshot_at(&self, now: Instant, version: ResourceVersion) -> SnapshotAt {
        let state = self.shared.state.read();
        let proven = state
            .proven
            .as_ref()
            .filter(|proven| proven.version() == version);
        if let Some(known) = proven.or_else(|| state.pins.get(version)) {
            return SnapshotAt::Found(known.clone());
        }
        if version > state.snapshot.version() {
            return SnapshotAt::Future;
        }
        let Some(from) = state.window.after(version) else {
            return SnapshotAt::Expired;
        };
        let events: Vec<_> = state.window.from(from).cloned().collect();
        let mut snapshot = state.snapshot.clone();
        drop(state);
        events.iter().rev().for_each(|event| snapshot.undo(event));
        snapshot.set_version(version);
        if events.len() >= WORTH_PINNING {
            self.pin(now, snapshot.clone());
        }
        SnapshotAt::Found(snapshot)
    }

    /// Returns the figures for metrics and pages.
    pub fn stats(&self) -> StoreStats {
        let state = self.shared.state.read();
        StoreStats {
            version: state.newest().version(),
            objects: state.newest().len(),
            object_bytes: state.newest().size(),
            events: state.window.len(),
            event_bytes: state.window.bytes(),
            watchers: state.index.len(),
        }
    }

    /// Begins to follow the events, and gives the snapshot that `SubscriptionStart::Now` goes on from.
    /// Both are of one moment: nothing lies between the snapshot and the first event.
    pub fn subscribe(
        &self,
        start: SubscriptionStart,
        interest: Interest,
    ) -> (Subscription, Snapshot) {
        let mut state = self.shared.state.write();
        let followed = state.snapshot.version();
        let snapshot = state.newest().clone();
        let (interest, slot, slot_key) = state.index.add(interest);
        let (next, version) = match start {
            SubscriptionStart::Now => (state.window.head(), snapshot.version()),
            // A sequence number that is not held any more makes the first step say so.
            SubscriptionStart::After(version) => (
                state
                    .window
                    .after(version)
                    .unwrap_or_else(|| state.window.first().wrapping_sub(1)),
                version,
            ),
        };
        let subscription = Subscription {
            shared: Arc::clone(&self.shared),
            slot,
            slot_key,
            interest,
            next: Some(next),
            ahead: (version > followed).then_some(version),
            version,
        };
        (subscription, snapshot)
    }

    /// The oldest version a watch can start from.
    pub fn oldest_version(&self) -> ResourceVersion {
        self.shared.state.read().window.floor()
    }
}

/// One reader's position in the window.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    slot_key: usize,
    pub(super) interest: Arc<Interest>,
    /// The next event to hand out, while there is one known to be unread.
    next: Option<u64>,
    /// The start lay ahead of the scope: events up to this version are not the subscriber's.
    ahead: Option<ResourceVersion>,
    /// Everything of interest up to here was handed out (or lies before the start).
    version: ResourceVersion,
}

impl Subscription {
    /// The next events, at most `most` of them, and no more than reach `bytes`. Registers the waker
    /// of `context` before it looks, so that nothing slips in between.
    pub fn step(&mut self, context: &Context<'_>, most: usize, bytes: usize) -> SubscriptionStep {
        self.slot.waker.register(context.waker());
        let state = self.shared.state.read();
        let unseen = self.slot.unseen.swap(NOTHING, Ordering::AcqRel);
        // What is left from before comes first; otherwise all up to `unseen` did not concern us.
        let Some(mut from) = self.next.take().or((unseen != NOTHING).then_some(unseen)) else {
            return Self::caught_up(&mut self.version, &state);
        };
        if from < state.window.first() || from == u64::MAX {
            // By sequence, not by version: of events that share one, some may be read and others
            // lost.
            if self.ahead.is_none_or(|start| start < state.window.floor()) {
                self.next = Some(from);
                return SubscriptionStep::Expired {
                    version: self.version,
                    oldest: state.window.floor(),
                };
            }
            // A watch that started at a version still ahead loses nothing by a fresh list.
            from = state.window.first();
        }
        let events: Vec<_> = if from < state.window.head() {
            let mut left = Some(bytes);
            let fits = |event: &&Arc<WindowEvent>| {
                let fits = left.is_some();
                left = left.and_then(|left| left.checked_sub(event.frame.len()));
                fits
            };
            state
                .window
                .from(from)
                .take_while(fits)
                .take(most)
                .cloned()
                .collect()
        } else {
            Vec::new()
        };
        let next = from + events.len() as u64;
        if next < state.window.head() {
            self.next = Some(next);
        } else if events.is_empty() {
            return Self::caught_up(&mut self.version, &state);
        } else if state.closed {
            // Come back for the end.
            self.next = Some(next);
        }
        let mut events = events;
        if let Some(start) = self.ahead {
            events.retain(|event| event.version > start);
        }
        if let Some(last) = events.last() {
            self.version = last.version;
        }
        SubscriptionStep::Events(events)
    }

    fn caught_up(reached: &mut ResourceVersion, state: &State) -> SubscriptionStep {
        if state.closed {
            return SubscriptionStep::Closed;
        }
        let version = state.snapshot.version();
        *reached = version.max(*reached);
        SubscriptionStep::CaughtUp(version)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared
            .state
            .write()
            .index
            .remove(&self.interest, self.slot_key);
    }
}
