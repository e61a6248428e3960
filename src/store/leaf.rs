//! Leaves of a snapshot: objects that follow one another, with the forms that all readers share.
//!
//! A list is sent leaf by leaf. So a leaf joins its objects' bytes once, as items of a list, and
//! the objects then refer to their part of the joined bytes: nothing is held twice. A change makes
//! a new leaf whose unchanged objects still refer to the old leaf's bytes, its base. The base also
//! keeps the bytes of replaced objects in memory, so a leaf is settled (its bytes are joined anew)
//! before that waste outweighs its use.
use std::ops::{AddAssign, SubAssign};
use std::sync::{Arc, OnceLock};

use watershed_protocol::{ItemBytes, ResourceVersion, WireFormat};

use super::object::{ObjectBytes, StoredObject};
use super::packed::{FoldedItems, PackedItems};
use super::tally::{ByteCharge, ByteTally};

/// A new leaf has at most so many bytes, unless it is one object that has more. Large enough that
/// sending it costs little more than its bytes; small enough that a change of one object leaves
/// little to be joined and compressed again.
pub(super) const FULL_BYTES: usize = 32 * 1024;
/// A new leaf has no more objects: a change copies a pointer to each of them.
pub(super) const FULL_OBJECTS: usize = 64;
/// Above these a leaf is split. Twice the size of a new leaf, so that two full halves result and
/// neither is split or joined again soon.
const MAX_BYTES: usize = 2 * FULL_BYTES;
const MAX_OBJECTS: usize = 2 * FULL_OBJECTS;
/// Below this it is joined with its neighbour.
const MIN_BYTES: usize = FULL_BYTES / 4;

/// Lengths of what a leaf holds, for the accounting of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeafLengths {
    /// Bytes of its objects.
    pub(super) objects: usize,
    /// Its objects that are held by themselves: the frames of events hold them, too, for as long as
    /// they are in the window.
    pub(super) single: ObjectSum,
    /// Bytes that are packed, with those of replaced objects.
    pub(super) packed: usize,
}

/// Some objects of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectSum {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// Objects in key order, never empty. A leaf does not change: a change makes another.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) format: Arc<WireFormat>,
    objects: Vec<Arc<StoredObject>>,
    /// Bytes the objects take as items of a list, each with its separator.
    pub(super) items_len: usize,
    /// The objects as they are sent, once a reader asked for them. Shared with the leaves that are
    /// made from this one, as their base.
    packed: OnceLock<Arc<PackedItems>>,
    /// The packed form of the leaf that this one was made from: the bytes of some objects are a
    /// part of it. It is named here only to know which objects those are; they keep it alive.
    base: Option<Arc<PackedItems>>,
    /// Number of changes since the base was packed.
    changes: usize,
    /// Every object is a part of `packed`.
    settled: bool,
    /// Counts the objects that were made for readers of an old version.
    charge: Option<ByteCharge>,
    pub(super) lengths: LeafLengths,
}

impl AddAssign for ObjectSum {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

impl SubAssign for ObjectSum {
    fn sub_assign(&mut self, other: Self) {
        self.count -= other.count;
        self.bytes -= other.bytes;
    }
}

impl ObjectSum {
    pub(super) fn add(&mut self, object: &StoredObject) {
        self.count += 1;
        self.bytes += object.bytes.len();
    }
}

impl LeafLengths {
    /// Measures objects, some of which may be a part of `packed`.
    fn of(objects: &[Arc<StoredObject>], packed: Option<&Arc<PackedItems>>) -> Self {
        let mut lengths = Self {
            packed: packed.map_or(0, |packed| packed.len()),
            ..Self::default()
        };
        for object in objects {
            lengths.objects += object.bytes.len();
            if packed.is_none_or(|packed| !object.bytes.is_part_of(packed)) {
                lengths.single.add(object);
            }
        }
        lengths
    }
}

impl Leaf {
    pub(super) fn new(format: &Arc<WireFormat>, objects: Vec<Arc<StoredObject>>) -> Self {
        let items_len = objects
            .iter()
            .map(|object| format.item_len(object.bytes.len()))
            .sum();
        Self {
            format: Arc::clone(format),
            lengths: LeafLengths::of(&objects, None),
            objects,
            items_len,
            packed: OnceLock::new(),
            base: None,
            changes: 0,
            settled: false,
            charge: None,
        }
    }

    /// Returns the leaf, which holds the charge of its objects.
    pub(super) fn charged(mut self, charge: ByteCharge) -> Self {
        self.charge = Some(charge);
        self
    }

    /// Creates a leaf of objects whose bytes are those of `packed`.
    pub(super) fn settled(
        format: Arc<WireFormat>,
        objects: Vec<Arc<StoredObject>>,
        packed: Arc<PackedItems>,
    ) -> Self {
        Self {
            format,
            lengths: LeafLengths::of(&objects, Some(&packed)),
            objects,
            items_len: packed.len(),
            packed: OnceLock::from(packed),
            base: None,
            changes: 0,
            settled: true,
            charge: None,
        }
    }

    /// Returns the same objects with their bytes in one place, and nothing else of them held.
    pub(super) fn settle(&self) -> Self {
        // What was packed for a reader is used, not made again.
        let packed = Arc::clone(self.packed());
        let lengths = self.objects.iter().map(|object| object.bytes.len());
        let places = self.format.places(packed.ends(), lengths);
        let objects = self.objects.iter().zip(places).map(|(object, place)| {
            Arc::new(StoredObject {
                bytes: ObjectBytes::packed(&packed, place),
                version: object.version,
                attributes: object.attributes.clone(),
            })
        });
        let objects = objects.collect();
        Self::settled(Arc::clone(&self.format), objects, packed)
    }

    /// Returns the leaf with this object, and the object that had its key.
    pub(super) fn with(&self, object: Arc<StoredObject>) -> (Self, Option<Arc<StoredObject>>) {
        self.unfold();
        let position = self.position(object.key());
        let mut objects = self.objects.clone();
        let mut items_len = self.items_len + self.format.item_len(object.bytes.len());
        let old = match position {
            Ok(index) => Some(std::mem::replace(&mut objects[index], object)),
            Err(index) => {
                objects.insert(index, object);
                None
            }
        };
        items_len -= old
            .as_ref()
            .map_or(0, |old| self.format.item_len(old.bytes.len()));
        (self.changed(objects, items_len), old)
    }

    /// Returns the leaf without the object of this key, unless it is empty then, and the object.
    pub(super) fn without(&self, key: &str) -> Option<(Option<Self>, Arc<StoredObject>)> {
        let index = self.position(key).ok()?;
        self.unfold();
        let mut objects = self.objects.clone();
        let old = objects.remove(index);
        let items_len = self.items_len - self.format.item_len(old.bytes.len());
        let rest = (!objects.is_empty()).then(|| self.changed(objects, items_len));
        Some((rest, old))
    }

    /// Returns two leaves if this one is too large.
    pub(super) fn split(&self) -> Option<(Self, Self)> {
        let many = self.objects.len() > MAX_OBJECTS;
        if self.objects.len() < 2 || (self.items_len <= MAX_BYTES && !many) {
            return None;
        }
        // Many small objects are halved by number: by bytes, one half could again have too many.
        let middle = if many {
            self.objects.len() / 2
        } else {
            self.middle_by_bytes()
        };
        let (one, next) = self.objects.split_at(middle);
        // Each half is packed anew. Else both would keep all bytes of the whole in memory.
        let part = |objects: &[_]| Self::new(&self.format, objects.to_vec()).settle();
        Some((part(one), part(next)))
    }

    /// Returns `true` if this leaf and its neighbour are to become one. Only small leaves are
    /// joined: joining copies the bytes of both.
    pub(super) fn is_to_join(&self, next: &Self) -> bool {
        self.items_len.min(next.items_len) < MIN_BYTES
            && self.items_len + next.items_len <= FULL_BYTES
            && self.objects.len() + next.objects.len() <= FULL_OBJECTS
    }

    /// Returns one leaf of two neighbours.
    pub(super) fn join(&self, next: &Self) -> Self {
        Self::new(&self.format, [&self.objects[..], &next.objects].concat()).settle()
    }

    /// Returns `true` if the leaf was packed after it was made: its objects are held twice.
    pub(super) fn is_held_twice(&self) -> bool {
        !self.settled && self.packed.get().is_some()
    }

    /// Returns the objects that refer to frames of events which are not after `floor`: no history
    /// needs the frames any more, so that the leaf would hold less if it were settled.
    pub(super) fn outlived(&self, floor: ResourceVersion) -> ObjectSum {
        let mut outlived = ObjectSum::default();
        if self.settled {
            return outlived;
        }
        for object in &self.objects {
            if object.version <= floor && self.is_single(object) {
                outlived.add(object);
            }
        }
        outlived
    }

    /// Returns `true` if the bytes of an object of this leaf are held by themselves.
    pub(super) fn is_single(&self, object: &StoredObject) -> bool {
        let is_packed = |base: &Arc<PackedItems>| object.bytes.is_part_of(base);
        !self.settled && !self.base.as_ref().is_some_and(is_packed)
    }

    /// Returns `true` if the objects' bytes are in one place.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns `true` if this leaf was made from `other` by a change that copied no objects' bytes.
    pub(super) fn shares_bytes_with(&self, other: &Self) -> bool {
        let base = if other.settled {
            other.packed.get()
        } else {
            other.base.as_ref()
        };
        !self.settled
            && match (base, &self.base) {
                (Some(base), Some(own)) => Arc::ptr_eq(base, own),
                (None, None) => true,
                _ => false,
            }
    }

    /// Returns the number of objects that are held only because others of the base are.
    #[cfg(not(loom))]
    #[cfg(test)]
    pub(super) fn wasted_objects(&self) -> usize {
        self.base.as_ref().map_or(0, |base| {
            let used = self
                .objects
                .iter()
                .filter(|object| object.bytes.is_part_of(base));
            base.ends().len() - used.count()
        })
    }

    /// Returns the bytes of the forms that were made for readers.
    pub(super) fn compressed_bytes(&self) -> usize {
        self.made_for_readers(PackedItems::compressed_bytes)
    }

    /// Advances the idle counters of the forms that were made for readers, and returns the forms'
    /// bytes. Those that nobody uses for several ticks are cold.
    pub(super) fn age_compressed(&self) -> usize {
        self.made_for_readers(PackedItems::age)
    }

    /// Releases the compressed forms that are cold, and returns their bytes.
    pub(super) fn release_compressed(&self) -> usize {
        self.packed
            .get()
            .map_or(0, |packed| packed.release_compressed())
    }

    /// Holds the objects compressed alone, if nobody has read them for so many ticks. A leaf that
    /// changed recently is not folded: its objects are not in one place.
    pub(super) fn fold(&self, idle: u8, saved: &ByteTally) -> FoldedItems {
        let packed = self.packed.get().filter(|_| self.settled);
        packed.map_or_else(FoldedItems::default, |packed| packed.fold(idle, saved))
    }

    /// Lets go of objects in another form that are held for this leaf alone. Returns the work of it.
    pub(super) fn release_origin(&self) -> usize {
        let packed = self.packed.get();
        packed.map_or(0, |packed| packed.release_origin())
    }

    /// Unfolds the objects, as another leaf is made from this one: what is not held counts for
    /// leaves of the newest snapshot alone.
    fn unfold(&self) {
        if let Some(packed) = self.packed.get().filter(|_| self.settled) {
            packed.items();
        }
    }

    fn made_for_readers(&self, compressed: fn(&PackedItems) -> usize) -> usize {
        self.packed.get().map_or(0, |packed| {
            let copied = if self.is_held_twice() {
                packed.len()
            } else {
                0
            };
            copied + compressed(packed)
        })
    }

    /// Returns the index of the object with this key, or else the index where it would be.
    pub(super) fn position(&self, key: &str) -> Result<usize, usize> {
        self.objects
            .binary_search_by(|object| object.key().cmp(key))
    }

    pub(super) fn first_key(&self) -> &str {
        self.objects[0].key()
    }

    pub(super) fn objects(&self) -> &[Arc<StoredObject>] {
        &self.objects
    }

    /// Returns the packed form; makes it if no reader has asked before.
    pub(super) fn packed(&self) -> &Arc<PackedItems> {
        self.packed.get_or_init(|| {
            let bytes = self.objects.iter().map(|object| object.bytes.get());
            let bytes: Vec<ItemBytes> = bytes.collect();
            let joined = self.format.join(bytes.iter());
            Arc::new(PackedItems::new(joined, self.format.separator()))
        })
    }

    /// Returns the packed form if it is made already.
    pub(super) fn packed_before(&self) -> Option<&PackedItems> {
        self.packed.get().map(|packed| &**packed)
    }

    /// Returns the leaf with other objects, after one change.
    fn changed(&self, objects: Vec<Arc<StoredObject>>, items_len: usize) -> Self {
        // The packed form of a leaf that is not settled is a copy made for a reader: no object
        // refers to it. Its objects still refer to the base.
        let (base, changes) = if self.settled {
            (self.packed.get().cloned(), 1)
        } else {
            (self.base.clone(), self.changes + 1)
        };
        // Each change leaves at most one object in the base that nobody uses. Beyond half of the
        // leaf the waste would outweigh what is used.
        let is_wasteful = base.is_some() && changes * 2 > objects.len();
        let leaf = Self {
            format: Arc::clone(&self.format),
            lengths: LeafLengths::of(&objects, base.as_ref()),
            objects,
            items_len,
            packed: OnceLock::new(),
            base,
            changes,
            settled: false,
            charge: None,
        };
        if is_wasteful { leaf.settle() } else { leaf }
    }

    /// Returns the index behind the object with which the first half of the bytes is full. Neither
    /// side is empty.
    fn middle_by_bytes(&self) -> usize {
        let mut bytes = 0;
        let half = self.objects.iter().position(|object| {
            bytes += self.format.item_len(object.bytes.len());
            bytes >= self.items_len / 2
        });
        half.map_or(1, |index| index + 1)
            .min(self.objects.len() - 1)
    }
}
