//! One object: upstream's bytes, and the attributes the proxy needs.
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use watershed_protocol::{ItemBytes, ObjectAttributes, ResourceVersion};

use super::event_frame::RemadeFrame;
use super::packed::PackedItems;

/// An object as upstream sent it, or as it would be read. Invariant `bytes`: `bytes` is never re-encoded.
#[derive(Debug)]
pub struct StoredObject {
    /// Upstream's bytes, as far as they are held. They may share memory with the objects beside.
    pub bytes: ObjectBytes,
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// Name, namespace, labels and selectable fields.
    pub attributes: ObjectAttributes,
}

/// Looks at objects without unfolding or making them, and without counting as their reader.
///
/// It holds the items of the last leaf, so that a walk in the order of keys inflates or makes each
/// once.
#[derive(Debug, Default)]
pub struct ObjectPeek {
    last: Option<(Arc<PackedItems>, Bytes)>,
}

/// The bytes of an object: alone, among those of its leaf, which may be compressed or not be made yet,
/// or in the frame of an event, which may have to be made again.
#[derive(Clone, Debug)]
pub struct ObjectBytes(BytesPlace);

#[derive(Clone, Debug)]
enum BytesPlace {
    Alone(ItemBytes),
    Packed(Arc<PackedItems>, Range<u32>),
    Framed(Arc<RemadeFrame>),
}

impl StoredObject {
    /// Returns `namespace/name`, or `name` if cluster-scoped. Upstream lists in the order of keys.
    pub fn key(&self) -> &str {
        self.attributes.key()
    }

    /// Returns the bytes held for it, without the allocator's overhead.
    pub fn size(&self) -> usize {
        self.size_with(self.bytes.len())
    }

    /// Returns the bytes that would be held for it if it had so many bytes of its own.
    pub(super) fn size_with(&self, bytes: usize) -> usize {
        bytes + self.attributes.heap_size() + size_of::<Self>()
    }
}

impl ObjectBytes {
    /// Returns the bytes at a place among packed items.
    pub(super) fn packed(items: &Arc<PackedItems>, place: Range<u32>) -> Self {
        Self(BytesPlace::Packed(Arc::clone(items), place))
    }

    /// Returns the object's bytes in an event's frame.
    pub(super) fn framed(frame: &Arc<RemadeFrame>) -> Self {
        Self(BytesPlace::Framed(Arc::clone(frame)))
    }

    /// Returns the bytes. If they are not held as they are, all those beside are unfolded or made with
    /// them.
    pub fn get(&self) -> ItemBytes {
        match &self.0 {
            BytesPlace::Alone(bytes) => bytes.clone(),
            BytesPlace::Packed(items, place) => {
                let (start, end) = (place.start as usize, place.end as usize);
                ItemBytes::new(items.items().slice(start..end))
            }
            BytesPlace::Framed(frame) => frame.object(),
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            BytesPlace::Alone(bytes) => bytes.len(),
            BytesPlace::Packed(_, place) => place.len(),
            BytesPlace::Framed(frame) => frame.object_len(),
        }
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if the bytes are a part of these.
    pub(super) fn is_part_of(&self, packed: &Arc<PackedItems>) -> bool {
        match &self.0 {
            BytesPlace::Alone(_) | BytesPlace::Framed(_) => false,
            BytesPlace::Packed(items, _) => Arc::ptr_eq(items, packed),
        }
    }
}

impl ObjectPeek {
    /// Returns the bytes of an object.
    pub fn bytes(&mut self, object: &StoredObject) -> ItemBytes {
        let (packed, place) = match &object.bytes.0 {
            BytesPlace::Alone(bytes) => return bytes.clone(),
            BytesPlace::Framed(frame) => return frame.object(),
            BytesPlace::Packed(packed, place) => (packed, place),
        };
        let last = self.last.take();
        let (_, items) = self.last.insert(match last {
            Some((known, items)) if Arc::ptr_eq(&known, packed) => (known, items),
            _ => (Arc::clone(packed), packed.peek()),
        });
        ItemBytes::new(items.slice(place.start as usize..place.end as usize))
    }
}

impl From<ItemBytes> for ObjectBytes {
    fn from(bytes: ItemBytes) -> Self {
        Self(BytesPlace::Alone(bytes))
    }
}

impl PartialEq for ObjectBytes {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.get() == other.get()
    }
}

impl Eq for ObjectBytes {}
