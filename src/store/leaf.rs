//! Objects that follow one another in a snapshot, and the forms of them that all readers share.
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};

use super::object::StoredObject;
use watershed_protocol::{
    Deflated, EventKind, ItemRun, ObjectAttributes, ResourceVersion, WireFormat, deflate,
    gzip_member,
};

/// A new leaf has at most so many bytes, unless it is one object that has more: large enough that
/// sending it costs little more than its bytes, small enough that a change of one object leaves
/// little to be made again.
pub(super) const FULL: usize = 32 * 1024;
/// Above these a leaf is split.
const MOST_BYTES: usize = 2 * FULL;
const MOST_OBJECTS: usize = 2 * Leaf::MANY;
/// Below this it is joined with its neighbour.
const FEW_BYTES: usize = FULL / 4;

/// A run of objects in key order, never empty. It does not change: a change makes another.
#[derive(Debug)]
pub(super) struct Leaf {
    format: Arc<WireFormat>,
    objects: Vec<Arc<StoredObject>>,
    /// Bytes the objects take as items of a list, each with its separator.
    items: usize,
    /// The objects as they are sent, once somebody asked for them.
    packed: OnceLock<Arc<Packed>>,
    /// What the bytes of some objects are a part of: the packed form of the leaf that this one was
    /// made from.
    base: Option<Arc<Packed>>,
    /// How many objects were put in since that was made.
    changed: usize,
    /// Every object is a part of `packed`.
    settled: bool,
}

/// Objects as they are sent.
#[derive(Debug)]
struct Packed {
    joined: ItemRun,
    /// All items, without the separator behind the last, as a piece of gzip.
    deflated: OnceLock<Arc<Deflated>>,
    /// All objects as ADDED events, as a member of gzip.
    added: OnceLock<Bytes>,
}

impl Packed {
    fn new(joined: ItemRun) -> Self {
        Self {
            joined,
            deflated: OnceLock::new(),
            added: OnceLock::new(),
        }
    }
}

impl Leaf {
    /// A new leaf has no more objects.
    pub(super) const MANY: usize = 64;

    pub(super) fn new(format: &Arc<WireFormat>, objects: Vec<Arc<StoredObject>>) -> Self {
        let items = objects
            .iter()
            .map(|object| format.item_len(&object.bytes))
            .sum();
        let (packed, format) = (OnceLock::new(), Arc::clone(format));
        Self {
            format,
            objects,
            items,
            packed,
            base: None,
            changed: 0,
            settled: false,
        }
    }

    /// The same objects with their bytes in one place, and nothing else of them held.
    pub(super) fn settle(&self) -> Self {
        let packed = Arc::clone(self.packed());
        let slices = self.format.split(
            &packed.joined,
            self.objects.iter().map(|object| object.bytes.len()),
        );
        let objects = self.objects.iter().zip(slices).map(|(object, bytes)| {
            Arc::new(StoredObject {
                bytes,
                version: object.version,
                attributes: object.attributes.clone(),
            })
        });
        Self::settled(Arc::clone(&self.format), objects.collect(), packed)
    }

    fn settled(
        format: Arc<WireFormat>,
        objects: Vec<Arc<StoredObject>>,
        packed: Arc<Packed>,
    ) -> Self {
        let items = packed.joined.bytes.len();
        Self {
            format,
            objects,
            items,
            packed: OnceLock::from(packed),
            base: None,
            changed: 0,
            settled: true,
        }
    }

    /// The leaf with other objects, of which one is new.
    fn changed(&self, objects: Vec<Arc<StoredObject>>, items: usize) -> Self {
        let base = if self.settled {
            self.packed.get().cloned()
        } else {
            self.base.clone()
        };
        let changed = if self.settled { 1 } else { self.changed + 1 };
        let format = Arc::clone(&self.format);
        let leaf = Self {
            format,
            objects,
            items,
            packed: OnceLock::new(),
            base,
            changed,
            settled: false,
        };
        // What is held in vain never outweighs what is held.
        let wasteful = leaf.base.is_some() && leaf.changed * 2 > leaf.objects.len();
        if wasteful { leaf.settle() } else { leaf }
    }

    /// The leaf with this object, and the one that had its key.
    pub(super) fn with(&self, object: Arc<StoredObject>) -> (Self, Option<Arc<StoredObject>>) {
        let place = self.place(object.key());
        let mut objects = self.objects.clone();
        let mut items = self.items + self.format.item_len(&object.bytes);
        let old = match place {
            Ok(index) => Some(std::mem::replace(&mut objects[index], object)),
            Err(index) => {
                objects.insert(index, object);
                None
            }
        };
        items -= old
            .as_ref()
            .map_or(0, |old| self.format.item_len(&old.bytes));
        (self.changed(objects, items), old)
    }

    /// The object with this key, and the leaf without it, unless that is empty.
    pub(super) fn without(&self, key: &str) -> Option<(Option<Self>, Arc<StoredObject>)> {
        let index = self.place(key).ok()?;
        let mut objects = self.objects.clone();
        let old = objects.remove(index);
        let items = self.items - self.format.item_len(&old.bytes);
        Some((
            (!objects.is_empty()).then(|| self.changed(objects, items)),
            old,
        ))
    }

    /// Two leaves, if it is too large to be one.
    pub(super) fn split(&self) -> Option<(Self, Self)> {
        if self.objects.len() < 2
            || (self.items <= MOST_BYTES && self.objects.len() <= MOST_OBJECTS)
        {
            return None;
        }
        let by_number = self.objects.len() > MOST_OBJECTS;
        let (mut bytes, half) = (
            0,
            if by_number {
                self.objects.len()
            } else {
                self.items
            } / 2,
        );
        let middle = self.objects.iter().position(|object| {
            bytes += if by_number {
                1
            } else {
                self.format.item_len(&object.bytes)
            };
            bytes >= half
        });
        let middle = middle
            .map_or(1, |index| index + 1)
            .min(self.objects.len() - 1);
        let part =
            |objects: &[Arc<StoredObject>]| Self::new(&self.format, objects.to_vec()).settle();
        Some((part(&self.objects[..middle]), part(&self.objects[middle..])))
    }

    /// Whether it is to be joined with this neighbour.
    pub(super) fn is_to_join(&self, next: &Self) -> bool {
        self.items.min(next.items) < FEW_BYTES
            && self.items + next.items <= FULL
            && self.objects.len() + next.objects.len() <= Self::MANY
    }

    /// One leaf of two neighbours.
    pub(super) fn join(&self, next: &Self) -> Self {
        Self::new(&self.format, [&self.objects[..], &next.objects].concat()).settle()
    }

    /// Whether an object's bytes hold the bytes of others in memory.
    pub(super) fn shares(&self, object: &StoredObject) -> bool {
        let within = |packed: &Arc<Packed>| object.bytes.is_part_of(&packed.joined.bytes);
        (self.settled && self.packed.get().is_some_and(within))
            || self.base.as_ref().is_some_and(within)
    }

    /// Whether it was packed since it was made, so that its objects are held twice.
    pub(super) fn is_held_twice(&self) -> bool {
        !self.settled && self.packed.get().is_some()
    }

    /// Whether its objects' bytes are in one place.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// How many objects are held that are not in the leaf, only because others are.
    #[cfg(test)]
    pub(super) fn held_in_vain(&self) -> usize {
        self.base.as_ref().map_or(0, |base| {
            let of_base = self
                .objects
                .iter()
                .filter(|object| object.bytes.is_part_of(&base.joined.bytes));
            base.joined.ends.len() - of_base.count()
        })
    }

    /// Bytes of the forms that were made for compressing readers.
    pub(super) fn compressed_bytes(&self) -> usize {
        self.packed.get().map_or(0, |packed| {
            packed.deflated.get().map_or(0, |piece| piece.bytes.len())
                + packed.added.get().map_or(0, Bytes::len)
        })
    }

    pub(super) fn place(&self, key: &str) -> Result<usize, usize> {
        self.objects
            .binary_search_by(|object| object.key().cmp(key))
    }

    pub(super) fn first_key(&self) -> &str {
        self.objects[0].key()
    }

    pub(super) fn objects(&self) -> &[Arc<StoredObject>] {
        &self.objects
    }

    fn packed(&self) -> &Arc<Packed> {
        self.packed.get_or_init(|| {
            Arc::new(Packed::new(
                self.format
                    .join(self.objects.iter().map(|object| &object.bytes)),
            ))
        })
    }
}

/// A leaf in the making. What is put into it is copied at once, so that it holds nothing of what
/// the objects were read from; and it is used for one leaf after the other, so that only their own
/// memory is new.
#[derive(Debug, Default)]
pub(super) struct Growing {
    items: BytesMut,
    parts: Vec<Part>,
}

/// An object whose bytes are among the items of a leaf in the making.
#[derive(Debug)]
struct Part {
    /// Where its item ends, the separator included.
    end: u32,
    /// Bytes of what is held of it.
    length: usize,
    version: ResourceVersion,
    attributes: ObjectAttributes,
}

impl Growing {
    /// Whether a leaf with the object would not be too large. One object always has room.
    pub(super) fn has_room(&self, format: &WireFormat, object: &StoredObject) -> bool {
        let few = self.parts.len() < Leaf::MANY;
        self.parts.is_empty() || (few && self.items.len() + format.item_len(&object.bytes) <= FULL)
    }

    /// Puts an object behind the others.
    pub(super) fn put(&mut self, format: &WireFormat, object: StoredObject) {
        let StoredObject {
            bytes,
            version,
            attributes,
        } = object;
        format.put_item(&bytes, &mut self.items);
        self.parts.push(Part {
            end: self.items.len() as u32,
            length: bytes.len(),
            version,
            attributes,
        });
    }

    /// The key of the last object.
    pub(super) fn last_key(&self) -> Option<&str> {
        self.parts.last().map(|part| part.attributes.key())
    }

    /// A leaf of the objects, unless there is none; and begins anew.
    pub(super) fn take(&mut self, format: &Arc<WireFormat>) -> Option<Leaf> {
        if self.parts.is_empty() {
            return None;
        }
        let ends = self.parts.iter().map(|part| part.end).collect();
        let joined = ItemRun {
            bytes: Bytes::copy_from_slice(&self.items),
            ends,
        };
        self.items.clear();
        let lengths: Vec<_> = self.parts.iter().map(|part| part.length).collect();
        let slices = format.split(&joined, lengths.into_iter());
        let objects = slices.zip(self.parts.drain(..)).map(|(bytes, part)| {
            Arc::new(StoredObject {
                bytes,
                version: part.version,
                attributes: part.attributes,
            })
        });
        let objects = objects.collect();
        Some(Leaf::settled(
            Arc::clone(format),
            objects,
            Arc::new(Packed::new(joined)),
        ))
    }
}

/// A part of a snapshot that can be sent in one piece: objects of one leaf that follow one another.
#[derive(Clone, Debug)]
pub struct ObjectRun {
    pub(super) leaf: Arc<Leaf>,
    pub(super) range: Range<usize>,
}

impl ObjectRun {
    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Takes the objects after the first `most` away.
    pub fn truncate(&mut self, most: usize) {
        self.range.end = self.range.end.min(self.range.start.saturating_add(most));
    }

    /// Takes the first `count` objects away.
    pub fn advance(&mut self, count: usize) {
        self.range.start = self.range.end.min(self.range.start.saturating_add(count));
    }

    /// The objects, in key order.
    pub fn objects(&self) -> &[Arc<StoredObject>] {
        &self.leaf.objects[self.range.clone()]
    }

    /// Bytes of its items in a list, each with a separator behind it.
    pub fn items_len(&self) -> usize {
        if self.is_whole_leaf() {
            return self.leaf.items;
        }
        self.objects()
            .iter()
            .map(|object| self.leaf.format.item_len(&object.bytes))
            .sum()
    }

    /// Its items in a list, each with a separator behind it, shared by all who send them.
    pub fn items(&self) -> Bytes {
        let ItemRun { bytes, ends } = &self.leaf.packed().joined;
        let end_before = |index: usize| index.checked_sub(1).map_or(0, |last| ends[last] as usize);
        bytes.slice(end_before(self.range.start)..end_before(self.range.end))
    }

    /// The same, without the last separator, as a piece of gzip; made once for a whole leaf.
    pub fn deflated(&self) -> Arc<Deflated> {
        let make = || {
            let items = self.items();
            Arc::new(deflate(
                &items[..items.len().saturating_sub(self.leaf.format.separator())],
            ))
        };
        if self.is_whole_leaf() {
            self.leaf.packed().deflated.get_or_init(make).clone()
        } else {
            make()
        }
    }

    /// Whether [`ObjectRun::added_compressed`] costs nothing, as somebody had it before.
    pub fn is_added_compressed(&self) -> bool {
        self.is_whole_leaf()
            && self
                .leaf
                .packed
                .get()
                .is_some_and(|packed| packed.added.get().is_some())
    }

    /// Whether [`ObjectRun::deflated`] costs nothing, as somebody had it before.
    pub fn is_deflated(&self) -> bool {
        self.is_whole_leaf()
            && self
                .leaf
                .packed
                .get()
                .is_some_and(|packed| packed.deflated.get().is_some())
    }

    /// The objects as ADDED events, as a member of gzip; made once for a whole leaf.
    pub fn added_compressed(&self) -> Bytes {
        let make = || {
            let mut frames = BytesMut::new();
            let objects = self.objects().iter();
            objects.for_each(|object| {
                self.leaf
                    .format
                    .put_event(EventKind::Added, &object.bytes, &mut frames)
            });
            gzip_member(&frames)
        };
        if self.is_whole_leaf() {
            self.leaf.packed().added.get_or_init(make).clone()
        } else {
            make()
        }
    }

    fn is_whole_leaf(&self) -> bool {
        self.range.len() == self.leaf.objects.len()
    }
}
