//! The writer of a scope's state.
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use watershed_protocol::{EventKind, Frame, ResourceVersion};

use super::event::{NewEvent, WindowEvent};
use super::event_frame::{FrameOrigin, RemadeFrame};
use super::object::StoredObject;
use super::snapshot::Snapshot;
use super::state::{Discarded, Outlook, StoreState, settle_outlived};
use super::sync::RwLock;

/// Leaves that a change looks at for what is held twice. After half as many changes as there are
/// leaves, all were looked at.
const TIDIED_BY_CHANGE: usize = 2;
/// The same of a bookmark, which may come rarely.
const TIDIED_BY_BOOKMARK: usize = 64;

/// The only one who changes a scope's state.
#[derive(Debug)]
pub struct StoreWriter {
    pub(super) state: Arc<RwLock<StoreState>>,
    /// The first key of the last leaf that was looked at for what is held twice.
    tidied: String,
}

/// Reason why a list replaces what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListReason {
    /// Nobody knows what happened before it.
    Gap,
    /// The objects have another schema.
    SchemaChange,
}

impl StoreWriter {
    pub(super) fn new(state: Arc<RwLock<StoreState>>) -> Self {
        Self {
            state,
            tidied: String::new(),
        }
    }

    /// Replaces everything known by a fresh list. Watches from before its version expire: nobody
    /// knows what happened in between. Invariant: `no silent gap`.
    pub fn replace(&mut self, snapshot: Snapshot) -> Discarded {
        self.replace_for(snapshot, ListReason::Gap)
    }

    /// Replaces everything known by a list of objects whose schema has changed. Watches from before
    /// its version end without an error, as upstream's do.
    pub fn replace_after_schema_change(&mut self, snapshot: Snapshot) -> Discarded {
        self.replace_for(snapshot, ListReason::SchemaChange)
    }

    fn replace_for(&mut self, snapshot: Snapshot, reason: ListReason) -> Discarded {
        self.change(|state| {
            let known = state.newest().version();
            let listed = snapshot.version();
            state.outlook = Outlook::Followed;
            // A list of another timeline is an error for its watches in any case.
            state.schema_changed = match reason {
                ListReason::SchemaChange if listed >= known => state.snapshot.generation() + 1,
                ListReason::SchemaChange | ListReason::Gap => 0,
            };
            let discarded = state.start_anew(snapshot, listed);
            let head = state.window.head();
            (discarded, state.subscribers.relist(known, listed, head))
        })
    }

    /// Forgets everything, as upstream has another history now: every watch expires, and there is no
    /// state until the next list. Invariant: `two timelines never mix`.
    pub fn reset(&mut self) -> Discarded {
        self.change(|state| {
            let known = state.newest().version();
            let discarded = state.start_anew(Snapshot::default(), known);
            state.schema_changed = 0;
            (discarded, state.subscribers.expire())
        })
    }

    /// Applies one of upstream's events.
    pub fn apply(
        &mut self,
        now: Instant,
        frame: Frame,
        object: StoredObject,
    ) -> Result<(), InconsistentEvent> {
        self.apply_from(now, frame, object, None, None)
    }

    /// Applies an event whose frame `origin` can make again. `read` is the object as upstream's gets and
    /// lists have it, if the event has it in another form.
    ///
    /// etcd deletes all objects of an expired lease at once, so deletions may share a version. An
    /// event that is known already is ignored: a watch that resumes begins with the last one.
    pub fn apply_from(
        &mut self,
        now: Instant,
        frame: Frame,
        object: StoredObject,
        read: Option<StoredObject>,
        origin: Option<Box<dyn FrameOrigin>>,
    ) -> Result<(), InconsistentEvent> {
        let (relation, before, frames) = {
            let state = self.state.read();
            let held = read.as_ref().unwrap_or(&object);
            let relation = check(&state.snapshot, frame.kind, held)?;
            let before = state.snapshot.get(object.key()).cloned();
            (relation, before, state.window.frames().clone())
        };
        if relation == Relation::Repeated {
            self.state.write().note_event(object.version);
            return Ok(());
        }
        // Without the lock. Nobody else changes the snapshot.
        let remade = origin.and_then(|origin| {
            let bytes = object.bytes.get();
            RemadeFrame::new(&frame, object.version, &bytes, origin, &frames)
        });
        let event = NewEvent::new(frame, object, before.as_deref(), remade);
        let mut state = self.state.write();
        let version = event.object.version;
        let objects_before = state.snapshot.len();
        let leaves_before = state.snapshot.replaced_leaves();
        if event.kind == EventKind::Deleted {
            state.begin_deletions(version);
            state.snapshot.remove(event.object.key());
        } else {
            state.finish_deletions();
            let held = read.map_or_else(|| Arc::clone(&event.object), Arc::new);
            state.snapshot.insert(held);
        }
        let replaced = before.as_ref().map_or(0, |before| before.size());
        let pins = (
            state.pins.record_replaced(replaced),
            state.note_replaced_leaves(leaves_before),
        );
        // Each change looks at some leaves, so that none of them takes long.
        let snapshot = &state.snapshot;
        let settled = snapshot.settle_held_twice(&mut self.tidied, TIDIED_BY_CHANGE);
        let leaves = state.settle(settled);
        state.note_event(version);
        state.advance(version);
        let sequence = state.window.head();
        let window = &state.window;
        let event = WindowEvent::new(event, objects_before, window.compressed(), window.last());
        let wakers = state.subscribers.offer(
            sequence,
            event.previous_attributes(),
            &event.object.attributes,
        );
        let events = state.window.push(now, Arc::new(event));
        state.note_dropped(&events);
        drop(state);
        drop((before, pins, events, leaves));
        wake(wakers);
        Ok(())
    }

    /// Records upstream's word that every event up to `version` has been delivered. Before the first
    /// list it means nothing: readers would take the empty state for one of this version.
    pub fn progress(&mut self, now: Instant, version: ResourceVersion) {
        let mut state = self.state.write();
        if state.snapshot.is_listed() && version >= state.snapshot.version() {
            state.finish_deletions();
            state.advance(version);
        }
        let events = state.window.trim(now);
        state.note_dropped(&events);
        let oldest = now.checked_sub(state.window.age());
        let pins = state.pins.take_before(oldest);
        drop(state);
        drop((pins, events));
        self.settle_held_twice();
        settle_outlived(&self.state);
    }

    /// Drops what some leaves hold twice. They are put together without the lock.
    fn settle_held_twice(&mut self) {
        let snapshot = self.state.read().snapshot.clone();
        let settled = snapshot.settle_held_twice(&mut self.tidied, TIDIED_BY_BOOKMARK);
        // Before the change: it would have to copy what a copy of the snapshot refers to.
        drop(snapshot);
        if settled.is_empty() {
            return;
        }
        let replaced = self.state.write().settle(settled);
        drop(replaced);
    }

    /// Declares that objects of this type expire: their deletions may share a version. It is
    /// learned otherwise, from the first ones that do.
    pub fn expect_shared_deletions(&mut self) {
        self.state.write().deletes_together = true;
    }

    /// Records how many objects upstream has at an unfinished version. Returns `true` if these are
    /// all that are left here, which finishes the version.
    pub fn finish(&mut self, upstream: UnfinishedVersion) -> bool {
        let mut state = self.state.write();
        let complete = state.unfinished.is_some()
            && state.snapshot.version() == upstream.version
            && state.snapshot.len() == upstream.objects;
        if complete {
            state.finish_deletions();
        }
        complete
    }

    /// Ends every watch that has got all events, and those that begin before
    /// [`StoreWriter::resume`]: events may happen that nobody sees.
    pub fn pause(&mut self) {
        self.end_watches(Outlook::Paused);
    }

    /// Lets watches begin again after a pause. Those that begin at a version in the window have
    /// lost nothing.
    pub fn resume(&mut self) {
        let mut state = self.state.write();
        if state.outlook == Outlook::Paused {
            state.outlook = Outlook::Followed;
        }
    }

    /// Expires every watch: what was handed out may be wrong.
    pub fn expire(&mut self) {
        self.change(|state| {
            state.schema_changed = 0;
            ((), state.subscribers.expire())
        });
    }

    /// Ends every watch, now and later.
    pub fn close(&mut self) {
        self.end_watches(Outlook::Closed);
    }

    /// Ends every watch, now and later, and drops the state and its history: a watch whose client
    /// takes nothing must not hold the memory of a whole type.
    pub fn release(&mut self) -> Discarded {
        self.change(|state| {
            let known = state.newest().version();
            let discarded = state.start_anew(Snapshot::default(), known);
            // Under the same lock: a watch that sees the empty window alone ends as expired.
            (discarded, state.end_watches(Outlook::Released))
        })
    }

    fn end_watches(&mut self, outlook: Outlook) {
        self.change(|state| ((), state.end_watches(outlook)));
    }

    /// Changes the state under its lock, and wakes watches once that is released.
    fn change<R>(&mut self, change: impl FnOnce(&mut StoreState) -> (R, Vec<Waker>)) -> R {
        let (result, wakers) = change(&mut self.state.write());
        wake(wakers);
        result
    }
}

impl Drop for StoreWriter {
    /// Without a writer nothing would ever arrive: watches end instead of hanging.
    fn drop(&mut self) {
        let outlook = self.state.read().outlook;
        if !matches!(outlook, Outlook::Closed | Outlook::Released) {
            self.close();
        }
    }
}

/// A version of which more deletions may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedVersion {
    /// The version.
    pub version: ResourceVersion,
    /// The objects that are left.
    pub objects: usize,
}

/// An event that cannot follow what is known. The scope must be listed again.
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
    /// An event that is known came again with other bytes: upstream may run another release now.
    #[error("{key:?} is printed differently than before, in the same version")]
    Rewritten {
        /// The object's key.
        key: String,
    },
    /// ADDED of an object that is there, or MODIFIED or DELETED of one that is not.
    #[error(
        "{kind} event for {key:?}, which is {}",
        if *.held { "known already" } else { "not known" }
    )]
    Existence {
        /// ADDED, MODIFIED or DELETED.
        kind: &'static str,
        /// The object's key.
        key: String,
        /// True if the object is held.
        held: bool,
    },
    /// BOOKMARK and ERROR frames are not changes of an object.
    #[error("{0} is not a change")]
    NotAChange(&'static str),
}

/// The relation of an event to what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// It follows.
    Next,
    /// It is known: the object is held as it is in the event, or is gone.
    Repeated,
}

/// Finds how an event relates to the state that is known.
fn check(
    snapshot: &Snapshot,
    kind: EventKind,
    object: &StoredObject,
) -> Result<Relation, InconsistentEvent> {
    let present = snapshot.get(object.key());
    let held = present.is_some();
    let known = snapshot.version();
    if object.version <= known {
        if is_repeated(kind, present, object)? {
            return Ok(Relation::Repeated);
        }
        let shares_the_version = object.version == known && kind == EventKind::Deleted;
        if !shares_the_version {
            return Err(InconsistentEvent::Order {
                event: object.version,
                known,
            });
        }
    }
    let fits = match kind {
        EventKind::Added => !held,
        EventKind::Modified | EventKind::Deleted => held,
        EventKind::Bookmark | EventKind::Error => {
            return Err(InconsistentEvent::NotAChange(kind.as_str()));
        }
    };
    if fits {
        return Ok(Relation::Next);
    }
    Err(InconsistentEvent::Existence {
        kind: kind.as_str(),
        key: object.key().to_owned(),
        held,
    })
}

/// Returns `true` if an event of a known version is known. It is an error if the object is held in
/// that version with other bytes.
fn is_repeated(
    kind: EventKind,
    present: Option<&Arc<StoredObject>>,
    object: &StoredObject,
) -> Result<bool, InconsistentEvent> {
    match (kind, present) {
        (EventKind::Deleted, None) => Ok(true),
        (EventKind::Added | EventKind::Modified, Some(present))
            if present.version == object.version =>
        {
            if present.bytes == object.bytes {
                Ok(true)
            } else {
                let key = object.key().to_owned();
                Err(InconsistentEvent::Rewritten { key })
            }
        }
        _ => Ok(false),
    }
}

pub(super) fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
