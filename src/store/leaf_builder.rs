//! A leaf in the making.
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use watershed_protocol::{ItemRun, ObjectAttributes, ResourceVersion, WireFormat};

use super::leaf::{FULL_BYTES, FULL_OBJECTS, Leaf};
use super::object::{ObjectBytes, StoredObject};
use super::packed::PackedItems;

/// Collects the objects of one leaf after the other.
///
/// Objects are copied at once, so that nothing is held of what they were read from. The buffers are
/// used for all leaves, so that only the leaves' own memory is new.
#[derive(Debug, Default)]
pub(super) struct LeafBuilder {
    items: BytesMut,
    parts: Vec<LeafPart>,
}

/// An object whose bytes are among the items of a leaf in the making.
#[derive(Debug)]
struct LeafPart {
    /// The end of its item, the separator included.
    end: u32,
    /// Bytes of what is held of it.
    length: usize,
    version: ResourceVersion,
    attributes: ObjectAttributes,
}

impl LeafBuilder {
    /// Adds an object behind the others. If a leaf with it would be too large, it begins the next one,
    /// and the leaf of those before is returned. One object always fits.
    pub(super) fn put(&mut self, format: &Arc<WireFormat>, object: StoredObject) -> Option<Leaf> {
        let fits = self.parts.is_empty()
            || (self.parts.len() < FULL_OBJECTS
                && self.items.len() + format.item_len(object.bytes.len()) <= FULL_BYTES);
        let full = if fits { None } else { self.take(format) };
        let StoredObject {
            bytes,
            version,
            attributes,
        } = object;
        format.put_item(&bytes.get(), &mut self.items);
        self.parts.push(LeafPart {
            end: self.items.len() as u32,
            length: bytes.len(),
            version,
            attributes,
        });
        full
    }

    /// Returns the key of the last object.
    pub(super) fn last_key(&self) -> Option<&str> {
        self.parts.last().map(|part| part.attributes.key())
    }

    /// Returns a leaf of the objects, if there are any, and begins the next one.
    pub(super) fn take(&mut self, format: &Arc<WireFormat>) -> Option<Leaf> {
        if self.parts.is_empty() {
            return None;
        }
        let joined = ItemRun {
            // A copy, so that the leaf's memory is no larger than its bytes.
            bytes: Bytes::copy_from_slice(&self.items),
            ends: self.parts.iter().map(|part| part.end).collect(),
        };
        self.items.clear();
        let lengths: Vec<_> = self.parts.iter().map(|part| part.length).collect();
        let packed = Arc::new(PackedItems::listed(joined, format.separator()));
        let places = format.places(packed.ends(), lengths.into_iter());
        let objects = places.zip(self.parts.drain(..)).map(|(place, part)| {
            Arc::new(StoredObject {
                bytes: ObjectBytes::packed(&packed, place),
                version: part.version,
                attributes: part.attributes,
            })
        });
        let objects = objects.collect();
        Some(Leaf::settled(Arc::clone(format), objects, packed))
    }
}
