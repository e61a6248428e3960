//! One event of a window.
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use watershed_protocol::{EventKind, Frame, ObjectAttributes, ResourceVersion};

use super::compressed::Compressed;
use super::event_frame::{EventFrame, RemadeFrame};
use super::object::{ObjectBytes, StoredObject};
use super::previous::PreviousState;
use super::tally::ByteTally;

/// One change of one object.
#[derive(Debug)]
pub struct WindowEvent {
    /// Added, modified or deleted, as upstream reported it for the whole scope.
    pub kind: EventKind,
    /// The version of the change; for a deletion, the version of the deletion.
    pub version: ResourceVersion,
    /// The new state, or for a deletion the last one (with the deletion's version spliced in by
    /// upstream).
    pub object: Arc<StoredObject>,
    /// The state before.
    previous: Option<Box<PreviousState>>,
    /// The whole watch frame as upstream sent it.
    frame: EventFrame,
    /// The frame compressed, once a watch asked for it.
    compressed: Compressed,
    /// Number of objects of the scope before the event.
    pub(super) objects_before: usize,
    /// Bytes of memory that the event holds, without its compressed form and a frame that is not
    /// held all the time.
    pub(super) size: usize,
    /// Sum of the shared bytes of all events up to this one.
    shared_sum: u64,
}

/// A new event, and what its store holds of the object.
#[derive(Debug)]
pub(super) struct NewEvent {
    pub(super) kind: EventKind,
    frame: EventFrame,
    pub(super) object: Arc<StoredObject>,
    previous: Option<Box<PreviousState>>,
    size: usize,
}

/// Memory that an event takes beside its frame and the state before: the event, its
/// object, the counters of what is shared (two for the event and its object each, three for the
/// frame), and its entries in the window and among the changes.
const OVERHEAD: usize = size_of::<WindowEvent>()
    + size_of::<StoredObject>()
    + 7 * size_of::<usize>()
    + size_of::<(Instant, Arc<WindowEvent>)>()
    + size_of::<(ObjectAttributes, ResourceVersion, Arc<WindowEvent>)>();

impl NewEvent {
    /// Prepares an event that replaces `before`. It takes a moment for each kilobyte, so no lock
    /// may be held.
    pub(super) fn new(
        frame: Frame,
        mut object: StoredObject,
        before: Option<&StoredObject>,
        remade: Option<Arc<RemadeFrame>>,
    ) -> Self {
        let kind = frame.kind;
        let frame = remade.map_or(EventFrame::Received(frame.frame), |remade| {
            object.bytes = ObjectBytes::framed(&remade);
            EventFrame::Remade(remade)
        });
        let mut size = OVERHEAD + frame.size();
        if let Some(before) = before {
            object.attributes.share_with(&before.attributes);
        }
        // Others are counted with the newest objects, or with the change that replaces them.
        if kind == EventKind::Deleted {
            size += object.attributes.heap_size();
        }
        let previous = before.map(|before| Box::new(PreviousState::new(before, &object)));
        size += previous.as_ref().map_or(0, |previous| previous.size());
        Self {
            kind,
            frame,
            object: Arc::new(object),
            previous,
            size,
        }
    }
}

impl WindowEvent {
    /// Returns an event that comes after `last`.
    pub(super) fn new(
        event: NewEvent,
        objects_before: usize,
        tally: &ByteTally,
        last: Option<&Self>,
    ) -> Self {
        Self {
            shared_sum: last.map_or(0, |last| last.shared_sum) + event.frame.shared() as u64,
            kind: event.kind,
            version: event.object.version,
            object: event.object,
            previous: event.previous,
            frame: event.frame,
            compressed: Compressed::counted_in(tally),
            objects_before,
            size: event.size,
        }
    }

    /// Returns the attributes of the object before the event. They tell whether a selector's view
    /// had it.
    pub fn previous_attributes(&self) -> Option<&ObjectAttributes> {
        let previous = self.previous.as_ref()?;
        Some(previous.attributes(&self.object))
    }

    /// Returns the object before the event. It is made anew each time.
    pub fn previous(&self) -> Option<StoredObject> {
        let previous = self.previous.as_ref()?;
        Some(previous.restore(&self.object))
    }

    /// Returns the whole watch frame as upstream sent it.
    pub fn frame(&self) -> Bytes {
        self.frame.get()
    }

    /// Returns the length of the frame.
    pub fn frame_len(&self) -> usize {
        self.frame.len()
    }

    /// Returns the frame as one member of gzip. It is compressed once, for all watches.
    pub fn compressed(&self) -> Bytes {
        self.compressed.of(|| self.frame.get())
    }

    /// Returns the sum of the bytes that this and later events up to `last` share with those of
    /// another window.
    pub(super) fn shared_until(&self, last: &Self) -> usize {
        (last.shared_sum - self.shared_sum) as usize + self.frame.shared()
    }
}
