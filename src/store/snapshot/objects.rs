//! The objects of a scope at one resourceVersion.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use watershed_protocol::{ResourceVersion, WireFormat};

use super::key_range::KeyRange;
use super::leaves::Leaves;
use crate::store::by_field::ByField;
use crate::store::event::WindowEvent;
use crate::store::leaf::{Leaf, LeafLengths, ObjectSum};
use crate::store::object::StoredObject;
use crate::store::object_run::ObjectRun;
use crate::store::packed::PackedItems;
use crate::store::tally::ByteTally;

/// Bytes of an object's place in its leaf: a pointer, two counts and the end of its item.
const LEAF_ENTRY: usize = 3 * size_of::<usize>() + size_of::<u32>();
/// Bytes of a leaf without its objects: itself, its packed form, the counts of both and of the
/// packed bytes, and roughly its entry among all with its key.
const LEAF: usize = size_of::<Leaf>() + size_of::<PackedItems>() + 18 * size_of::<usize>();
/// Bytes of an object's entry in the index, roughly: a pointer, two counts, and value and key.
const INDEX_ENTRY: usize = 100;

/// The form in which the objects of a scope are held.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The form in which upstream frames lists and events of the type.
    pub format: Arc<WireFormat>,
    /// The position of the selectable field that objects are found by, if there is one.
    pub indexed: Option<usize>,
}

/// The objects of a scope at one version, in upstream's key order. Cloning costs O(1).
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub(super) version: ResourceVersion,
    /// Counts the scope's lists. States of two lists do not mix: the second may be older.
    pub(super) generation: u64,
    /// Counts the changes of objects. Leaves that are only put together count as none.
    pub(super) edits: u64,
    /// `None` before the first list.
    pub(super) layout: Option<Layout>,
    pub(super) leaves: Leaves,
    pub(super) by_field: Option<ByField>,
    pub(super) len: usize,
    pub(super) size: usize,
    /// Sums over all leaves.
    pub(super) lengths: LeafLengths,
    /// Objects that no history holds any more beside their leaves: those up to `outlived_until`.
    pub(super) outlived: ObjectSum,
    pub(super) outlived_until: ResourceVersion,
    pub(super) sums: Arc<SharedSums>,
}

/// Sums that a state shares with its copies.
#[derive(Debug, Default)]
pub(super) struct SharedSums {
    /// Bytes of packed objects that are not held, as their compressed form or their origin is.
    saved: ByteTally,
    /// Bytes of leaves that were replaced, and that share none with their successors. It wraps around.
    replaced_leaves: AtomicUsize,
}

impl Snapshot {
    /// Returns the version of the state. Every object's own version is at most this.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// Returns `false` if it is no state at all: the scope was not listed yet, or forgot
    /// everything.
    pub fn is_listed(&self) -> bool {
        self.layout.is_some()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there is no object.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes held by the objects.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the bytes held by the objects, and by what finds them, beside the history. Objects
    /// of events in the history are counted there.
    pub(in crate::store) fn held(&self) -> usize {
        let index = if self.by_field.is_some() {
            INDEX_ENTRY
        } else {
            0
        };
        let LeafLengths {
            objects,
            single,
            packed,
        } = self.lengths;
        let attributes = self.size.saturating_sub(objects);
        let in_history =
            single.count.saturating_sub(self.outlived.count) * size_of::<StoredObject>();
        packed.saturating_sub(self.sums.saved.bytes())
            + self.outlived.bytes
            + attributes.saturating_sub(in_history)
            + self.len * (LEAF_ENTRY + index)
            + self.leaves.len() * LEAF
    }

    /// Returns the sum of the bytes of leaves that this state or a copy of it had, and the next one no
    /// part of. It wraps around.
    ///
    /// Its growth since a copy was made is the most that the copy holds alone, beside the objects that
    /// were replaced one by one.
    pub(in crate::store) fn replaced_leaves(&self) -> usize {
        self.sums.replaced_leaves.load(Ordering::Relaxed)
    }

    /// Returns the counter of the bytes that are not held.
    pub(super) fn saved(&self) -> &ByteTally {
        &self.sums.saved
    }

    /// Returns the bytes of objects that are not held, as they are folded or not made yet.
    pub(in crate::store) fn folded(&self) -> usize {
        self.sums.saved.bytes()
    }

    /// Returns the version up to which no history holds objects beside their leaves.
    pub(in crate::store) fn outlived_until(&self) -> ResourceVersion {
        self.outlived_until
    }

    /// Returns `true` if some leaves hold objects one by one that no history holds.
    pub(in crate::store) fn has_outlived(&self) -> bool {
        self.outlived.count > 0
    }

    /// Records that no history up to `floor` holds objects any more, these events' among them. Those
    /// of which that is known are passed over.
    pub(in crate::store) fn outlive<'a>(
        &mut self,
        floor: ResourceVersion,
        events: impl Iterator<Item = &'a WindowEvent>,
    ) {
        let known = self.outlived_until;
        self.outlived_until = known.max(floor);
        for event in events.filter(|event| event.version > known) {
            let Some(leaf) = self.leaves.around(event.object.key()) else {
                continue;
            };
            let object = leaf.position(event.object.key());
            let object = object.ok().map(|index| &leaf.objects()[index]);
            if let Some(object) = object.filter(|object| object.version == event.version)
                && leaf.is_single(object)
            {
                self.outlived.add(object);
            }
        }
    }

    /// Records that the history is empty, and begins behind `floor`. Looks at all leaves, and at
    /// the objects of those that are not settled.
    pub(in crate::store) fn outlive_all(&mut self, floor: ResourceVersion) {
        self.outlived_until = floor;
        self.outlived = ObjectSum::default();
        for leaf in self.leaves.iter() {
            self.outlived += leaf.outlived(floor);
        }
    }

    /// Returns the bytes held for readers that take gzip. Looks at all leaves.
    pub fn compressed_size(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.compressed_bytes()).sum()
    }

    /// Advances the idle counters of the forms held for readers that take gzip, and returns the
    /// forms' bytes. Those that nobody uses for several ticks are cold. Visits all leaves.
    pub fn age_compressed(&self) -> usize {
        let leaves = self.leaves.iter();
        leaves.map(|leaf| leaf.age_compressed()).sum()
    }

    /// Releases the cold forms of [`Snapshot::age_compressed`], and returns their bytes. They
    /// are made again when a reader asks.
    pub fn release_compressed(&self) -> usize {
        let leaves = self.leaves.iter();
        leaves.map(|leaf| leaf.release_compressed()).sum()
    }

    /// Folds leaves that nobody has read for so many ticks, as long as the budget lasts: their
    /// objects are held compressed alone, until somebody reads them. The budget is in bytes that
    /// are compressed for it. Returns the bytes that are not held any more.
    pub fn fold(&self, idle: u8, budget: &mut usize) -> usize {
        let mut freed = 0;
        for leaf in self.leaves.iter() {
            if *budget == 0 {
                break;
            }
            let folded = leaf.fold(idle, &self.sums.saved);
            freed += folded.freed;
            *budget = budget.saturating_sub(folded.work);
        }
        freed
    }

    /// Makes leaves of which nobody has read an object, and holds them compressed, once what they would
    /// be made of is held for their sake alone. The budget is as that of [`Snapshot::fold`].
    pub fn release_origins(&self, budget: &mut usize) {
        for leaf in self.leaves.iter() {
            if *budget == 0 {
                break;
            }
            *budget = budget.saturating_sub(leaf.release_origin());
        }
    }

    /// Returns the object with this key (`namespace/name`, or `name` when cluster-scoped).
    pub fn get(&self, key: &str) -> Option<&Arc<StoredObject>> {
        let leaf = self.leaves.around(key)?;
        Some(&leaf.objects()[leaf.position(key).ok()?])
    }

    /// Returns the object with this key, if it is held in this version.
    pub fn get_version(&self, key: &str, version: ResourceVersion) -> Option<&Arc<StoredObject>> {
        self.get(key).filter(|object| object.version == version)
    }

    /// Returns the objects of one namespace, or of all, in key order.
    pub fn items<'a>(
        &'a self,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<StoredObject>> + use<'a> {
        self.items_after(namespace, None)
    }

    /// Returns the objects of one namespace, or of all, whose keys come after `after`. That is
    /// relative to the namespace, as in a continue token.
    pub fn items_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<StoredObject>> + use<'a> {
        self.parts(KeyRange::after(namespace, after))
            .flat_map(|(leaf, from, to)| &leaf.objects()[from..to])
    }

    /// Returns the same as [`Snapshot::items_after`], in pieces that can be sent as they are.
    pub fn runs_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = ObjectRun> + use<'a> {
        let parts = self.parts(KeyRange::after(namespace, after));
        parts.map(|(leaf, from, to)| ObjectRun {
            leaf: Arc::clone(leaf),
            range: from..to,
        })
    }

    /// Returns the numbers of objects in the range, leaf by leaf.
    pub(in crate::store) fn counts(&self, range: KeyRange) -> impl Iterator<Item = usize> {
        self.parts(range).map(|(_, from, to)| to - from)
    }

    /// Returns the format of the objects; `None` before the first list.
    pub(in crate::store) fn format(&self) -> Option<&Arc<WireFormat>> {
        self.layout.as_ref().map(|layout| &layout.format)
    }

    /// Replaces the bytes of an object, if it is here in the same version with others. Returns what
    /// it was.
    pub(in crate::store) fn reprint(
        &mut self,
        object: &Arc<StoredObject>,
    ) -> Option<Arc<StoredObject>> {
        let held = self.get(object.key())?;
        if held.version != object.version || held.bytes == object.bytes {
            return None;
        }
        self.insert(Arc::clone(object))
    }

    /// Returns `true` if both have the same objects because one is a copy of the other.
    pub(in crate::store) fn is_copy_of(&self, other: &Self) -> bool {
        self.leaves.is_copy_of(&other.leaves)
    }

    /// Returns `true` if both have the same objects, as no change lies between them. Their leaves
    /// may differ: those of one may have been put together since.
    pub(in crate::store) fn has_objects_of(&self, other: &Self) -> bool {
        self.generation == other.generation && self.edits == other.edits
    }

    /// Returns the same objects as the state at another version.
    pub(in crate::store) fn at_version(mut self, version: ResourceVersion) -> Self {
        self.version = version;
        self
    }

    /// Returns the same state in another generation.
    pub(in crate::store) fn of_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    pub(in crate::store) fn set_version(&mut self, version: ResourceVersion) {
        self.version = version;
    }

    /// Returns `true` if both are states since the same list.
    pub fn shares_list_with(&self, other: &Self) -> bool {
        self.generation == other.generation
    }

    /// Returns the number of the list that it goes back to. It is another one after each list, and once the
    /// objects were printed anew.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub(in crate::store) fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Adds an object, or replaces the one with its key, which it returns. Does nothing before the
    /// first list.
    pub(in crate::store) fn insert(
        &mut self,
        object: Arc<StoredObject>,
    ) -> Option<Arc<StoredObject>> {
        let format = Arc::clone(&self.layout.as_ref()?.format);
        self.edits += 1;
        self.size += object.size();
        if let Some(index) = &mut self.by_field {
            index.insert(&object);
        }
        let leaf = self.leaves.around(object.key());
        let Some(leaf) = leaf.or_else(|| self.leaves.first()).cloned() else {
            self.len += 1;
            self.put(Leaf::new(&format, vec![object]));
            return None;
        };
        let (changed, old) = leaf.with(Arc::clone(&object));
        match changed.split() {
            None => self.replace(&leaf, changed),
            Some((one, next)) => {
                self.replace(&leaf, one);
                self.put(next);
            }
        }
        let Some(old) = old else {
            self.len += 1;
            return None;
        };
        self.size -= old.size();
        if let Some(index) = &mut self.by_field {
            index.replaced(&old, &object);
        }
        Some(old)
    }

    pub(in crate::store) fn remove(&mut self, key: &str) -> Option<Arc<StoredObject>> {
        let leaf = Arc::clone(self.leaves.around(key)?);
        let (rest, old) = leaf.without(key)?;
        match rest {
            None => self.take_out(&leaf),
            Some(rest) => {
                let next = self.leaves.behind(leaf.first_key()).next();
                let next = next.filter(|next| rest.is_to_join(next)).cloned();
                let joined = next.map(|next| {
                    self.take_out(&next);
                    rest.join(&next)
                });
                self.replace(&leaf, joined.unwrap_or(rest));
            }
        }
        self.edits += 1;
        self.len -= 1;
        self.size -= old.size();
        if let Some(index) = &mut self.by_field {
            index.remove(&old);
        }
        Some(old)
    }

    /// Adds a leaf.
    pub(super) fn put(&mut self, leaf: Leaf) {
        self.add(&leaf);
        self.leaves.insert(leaf);
    }

    /// Replaces a leaf by one of the keys around its own.
    pub(super) fn replace(&mut self, old: &Leaf, new: Leaf) {
        self.subtract(old);
        if old.first_key() != new.first_key() {
            self.leaves.remove(old);
        }
        if !new.shares_bytes_with(old) {
            self.record_replaced(old);
        } else if !old.is_settled() {
            // Readers of a copy may have it packed once more.
            self.sums
                .replaced_leaves
                .fetch_add(old.items_len, Ordering::Relaxed);
        }
        self.put(new);
    }

    /// Removes a leaf.
    fn take_out(&mut self, leaf: &Leaf) {
        self.subtract(leaf);
        self.leaves.remove(leaf);
        self.record_replaced(leaf);
    }

    /// Counts the bytes of a leaf that only copies of this state hold from now on.
    fn record_replaced(&self, leaf: &Leaf) {
        let bytes = leaf.lengths.packed + leaf.lengths.single.bytes;
        self.sums
            .replaced_leaves
            .fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds a leaf to the sums.
    fn add(&mut self, leaf: &Leaf) {
        let lengths = leaf.lengths;
        self.lengths.objects += lengths.objects;
        self.lengths.single += lengths.single;
        self.lengths.packed += lengths.packed;
        self.outlived += leaf.outlived(self.outlived_until);
    }

    /// Takes a leaf out of the sums.
    fn subtract(&mut self, leaf: &Leaf) {
        let lengths = leaf.lengths;
        self.lengths.objects -= lengths.objects;
        self.lengths.single -= lengths.single;
        self.lengths.packed -= lengths.packed;
        self.outlived -= leaf.outlived(self.outlived_until);
    }

    /// Returns the leaves with keys in the range, and the bounds of their objects within it.
    pub(super) fn parts(
        &self,
        range: KeyRange,
    ) -> impl Iterator<Item = (&Arc<Leaf>, usize, usize)> {
        let begin = self.leaves.around(range.start());
        let begin = begin.map_or("", |leaf| leaf.first_key());
        let leaves = self.leaves.starting_at(begin);
        let parts = leaves.map_while(move |leaf| {
            let (from, to) = range.within(leaf);
            // The first leaf may end before the range begins.
            (from < to || leaf.first_key() <= range.start()).then_some((leaf, from, to))
        });
        parts.filter(|(_, from, to)| from < to)
    }
}
