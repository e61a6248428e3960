//! The state of an object before a change.
use watershed_protocol::{ItemBytes, ObjectAttributes, ResourceVersion};

use super::delta::Delta;
use super::object::StoredObject;

/// The state of an object before an event, held as the difference to the state in the event.
///
/// It holds no bytes of other events or objects, so that it keeps nothing else in memory.
#[derive(Debug)]
pub(super) struct PreviousState {
    version: ResourceVersion,
    /// `None` if they are those of the state in the event.
    attributes: Option<ObjectAttributes>,
    delta: Delta,
}

impl PreviousState {
    /// Returns the state `before` as the difference to `after`.
    pub(super) fn new(before: &StoredObject, after: &StoredObject) -> Self {
        let differ = before.attributes != after.attributes;
        Self {
            version: before.version,
            attributes: differ.then(|| before.attributes.clone()),
            delta: Delta::between(after.bytes.get().as_slice(), before.bytes.get().as_slice()),
        }
    }

    pub(super) fn attributes<'a>(&'a self, after: &'a StoredObject) -> &'a ObjectAttributes {
        self.attributes.as_ref().unwrap_or(&after.attributes)
    }

    /// Returns the state, made from the one in the event.
    pub(super) fn restore(&self, after: &StoredObject) -> StoredObject {
        StoredObject {
            bytes: ItemBytes::new(self.delta.apply(after.bytes.get().as_slice())).into(),
            version: self.version,
            attributes: self.attributes(after).clone(),
        }
    }

    /// Returns the bytes it takes in memory.
    pub(super) fn size(&self) -> usize {
        let attributes = self.attributes.as_ref();
        size_of::<Self>()
            + self.delta.heap_size()
            + attributes.map_or(0, ObjectAttributes::heap_size)
    }
}
