//! A leaf in the making.
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use watershed_protocol::{ItemRun, ObjectAttributes, ResourceVersion, WireFormat};

use super::leaf::{FULL_BYTES, FULL_OBJECTS, Leaf};
use super::object::{ObjectBytes, StoredObject};
use super::packed::{ItemsOrigin, PackedItems};
use super::tally::ByteTally;

/// Collects the objects of one leaf after the other.
///
/// Objects are copied at once, so that nothing is held of what they were read from. The buffers are
/// used for all leaves, so that only the leaves' own memory is new.
#[derive(Debug, Default)]
pub(super) struct LeafBuilder {
    items: BytesMut,
    parts: LeafParts,
}

/// Collects objects of one leaf after the other, as [`LeafBuilder`]. Their bytes are made when
/// somebody reads them.
pub(super) struct UnmadeLeafBuilder<'a, M> {
    origin: &'a M,
    saved: &'a ByteTally,
    sources: Vec<Arc<StoredObject>>,
    parts: LeafParts,
}

/// An object that can be made from one in another form.
#[derive(Debug)]
pub struct UnmadeObject {
    /// It has the same version and the same attributes.
    pub source: Arc<StoredObject>,
    /// The number of bytes that would be held of the object.
    pub length: usize,
}

/// Returns the origin of the items of a leaf, given the sources of its objects.
pub trait MakeOrigin: Fn(Box<[Arc<StoredObject>]>) -> Box<dyn ItemsOrigin> {}

impl<F: Fn(Box<[Arc<StoredObject>]>) -> Box<dyn ItemsOrigin>> MakeOrigin for F {}

/// The objects of a leaf in the making, without their bytes.
#[derive(Debug, Default)]
struct LeafParts {
    parts: Vec<LeafPart>,
    /// The end of the last item.
    end: usize,
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
        let has_room = self.parts.has_room(format, object.bytes.len());
        let full = if has_room { None } else { self.take(format) };
        let StoredObject {
            bytes,
            version,
            attributes,
        } = object;
        format.put_item(&bytes.get(), &mut self.items);
        self.parts.push(format, bytes.len(), version, attributes);
        full
    }

    /// Returns the key of the last object.
    pub(super) fn last_key(&self) -> Option<&str> {
        self.parts.parts.last().map(|part| part.attributes.key())
    }

    /// Returns a leaf of the objects, if there are any, and begins the next one.
    pub(super) fn take(&mut self, format: &Arc<WireFormat>) -> Option<Leaf> {
        self.parts.take(format, |ends| {
            let joined = ItemRun {
                // A copy, so that the leaf's memory is no larger than its bytes.
                bytes: Bytes::copy_from_slice(&self.items),
                ends,
            };
            self.items.clear();
            PackedItems::listed(joined, format.separator())
        })
    }
}

impl<'a, M: MakeOrigin> UnmadeLeafBuilder<'a, M> {
    /// Creates a builder of leaves with these origins. `saved` counts the bytes that are not held.
    pub(super) fn new(origin: &'a M, saved: &'a ByteTally) -> Self {
        Self {
            origin,
            saved,
            sources: Vec::new(),
            parts: LeafParts::default(),
        }
    }

    /// Adds an object, as [`LeafBuilder::put`].
    pub(super) fn put(&mut self, format: &Arc<WireFormat>, object: UnmadeObject) -> Option<Leaf> {
        let has_room = self.parts.has_room(format, object.length);
        let full = if has_room { None } else { self.take(format) };
        let UnmadeObject { source, length } = object;
        let attributes = source.attributes.clone();
        self.parts.push(format, length, source.version, attributes);
        self.sources.push(source);
        full
    }

    /// Returns a leaf, as [`LeafBuilder::take`].
    pub(super) fn take(&mut self, format: &Arc<WireFormat>) -> Option<Leaf> {
        self.parts.take(format, |ends| {
            let origin = (self.origin)(self.sources.drain(..).collect());
            PackedItems::unmade(ends, format.separator(), origin, self.saved)
        })
    }
}

impl LeafParts {
    /// Returns `true` if an object of this length fits into the leaf.
    fn has_room(&self, format: &WireFormat, length: usize) -> bool {
        self.parts.is_empty()
            || (self.parts.len() < FULL_OBJECTS && self.end + format.item_len(length) <= FULL_BYTES)
    }

    /// Adds an object of which `length` bytes are held.
    fn push(
        &mut self,
        format: &WireFormat,
        length: usize,
        version: ResourceVersion,
        attributes: ObjectAttributes,
    ) {
        self.end += format.item_len(length);
        self.parts.push(LeafPart {
            end: self.end as u32,
            length,
            version,
            attributes,
        });
    }

    /// Returns a leaf, if there are objects, and begins the next one. `pack` gets the end of each item.
    fn take(
        &mut self,
        format: &Arc<WireFormat>,
        pack: impl FnOnce(Box<[u32]>) -> PackedItems,
    ) -> Option<Leaf> {
        if self.parts.is_empty() {
            return None;
        }
        self.end = 0;
        let packed = Arc::new(pack(self.parts.iter().map(|part| part.end).collect()));
        let lengths: Vec<_> = self.parts.iter().map(|part| part.length).collect();
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
