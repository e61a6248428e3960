//! A snapshot in the making, of objects that arrive one after the other.
use std::sync::Arc;

use watershed_protocol::{ResourceVersion, WireFormat};

use super::objects::{Layout, Snapshot};
use crate::store::by_field::ByField;
use crate::store::leaf::Leaf;
use crate::store::leaf_builder::{LeafBuilder, MakeOrigin, UnmadeLeafBuilder, UnmadeObject};
use crate::store::object::StoredObject;
use crate::store::tally::ByteTally;

/// Packs the objects of a list while they arrive.
///
/// It copies an object's bytes at once, so that whatever they were read from can be dropped. Beside
/// whole leaves it holds at most one leaf more.
#[derive(Debug)]
pub struct SnapshotBuilder {
    format: Arc<WireFormat>,
    /// The objects that are in leaves.
    packed: Snapshot,
    /// The objects behind them, while all have come in order.
    next: LeafBuilder,
    /// Upstream lists in key order. From the first object out of order on, objects are inserted one
    /// by one, as changes are.
    in_order: bool,
    /// The index has the objects already.
    is_indexed: bool,
}

/// Packs objects that follow one another. Threads can pack several runs side by side. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RunPacker {
    format: Arc<WireFormat>,
    /// Counts the bytes of unmade objects.
    saved: ByteTally,
}

/// Packed objects that follow one another.
#[derive(Debug, Default)]
pub struct PackedRun {
    leaves: Vec<Leaf>,
    count: usize,
    size: usize,
    bytes: usize,
}

impl RunPacker {
    /// Packs objects that come in the order of their keys. Ends with the first error.
    pub fn pack<E>(
        &self,
        objects: impl IntoIterator<Item = Result<StoredObject, E>>,
    ) -> Result<PackedRun, E> {
        let (mut run, mut next) = (PackedRun::default(), LeafBuilder::default());
        for object in objects {
            let object = object?;
            run.count += 1;
            run.size += object.size();
            run.bytes += object.bytes.len();
            run.leaves.extend(next.put(&self.format, object));
        }
        run.leaves.extend(next.take(&self.format));
        Ok(run)
    }

    /// Does the same as [`RunPacker::pack`] with objects that are made when somebody reads them.
    pub fn pack_unmade<E>(
        &self,
        objects: impl IntoIterator<Item = Result<UnmadeObject, E>>,
        origin: impl MakeOrigin,
    ) -> Result<PackedRun, E> {
        let mut run = PackedRun::default();
        let mut next = UnmadeLeafBuilder::new(&origin, &self.saved);
        for object in objects {
            let object = object?;
            run.count += 1;
            run.size += object.source.size_with(object.length);
            run.bytes += object.length;
            run.leaves.extend(next.put(&self.format, object));
        }
        run.leaves.extend(next.take(&self.format));
        Ok(run)
    }
}

impl PackedRun {
    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes of the objects, once they are made.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the first and the last key; `None` without objects.
    pub fn ends(&self) -> Option<(&str, &str)> {
        let (first, last) = (self.leaves.first()?, self.leaves.last()?);
        Some((first.first_key(), last.objects().last()?.key()))
    }
}

impl Snapshot {
    /// Creates a snapshot of `objects` at `version`. Of several objects with one key the last
    /// stays.
    pub fn new(
        version: ResourceVersion,
        layout: Layout,
        objects: impl IntoIterator<Item = StoredObject>,
    ) -> Self {
        let mut builder = SnapshotBuilder::new(layout);
        objects.into_iter().for_each(|object| builder.put(object));
        builder.finish(version)
    }
}

impl SnapshotBuilder {
    /// Creates a builder without objects.
    pub fn new(layout: Layout) -> Self {
        let format = Arc::clone(&layout.format);
        let by_field = layout.indexed.map(ByField::new);
        let packed = Snapshot {
            layout: Some(layout),
            by_field,
            ..Snapshot::default()
        };
        Self {
            format,
            packed,
            next: LeafBuilder::default(),
            in_order: true,
            is_indexed: false,
        }
    }

    /// Creates a builder of the objects of `snapshot` in another form. Each has to be put.
    ///
    /// They are found by the same index, which holds no bytes of theirs.
    pub fn of_same_objects(format: &Arc<WireFormat>, snapshot: &Snapshot) -> Self {
        let mut builder = Self::new(Layout {
            format: Arc::clone(format),
            indexed: snapshot.layout.as_ref().and_then(|layout| layout.indexed),
        });
        builder.packed.by_field.clone_from(&snapshot.by_field);
        builder.is_indexed = true;
        builder
    }

    /// Returns the packer of this builder's runs.
    pub fn run_packer(&self) -> RunPacker {
        RunPacker {
            format: Arc::clone(&self.format),
            saved: self.packed.saved().clone(),
        }
    }

    /// Adds objects whose keys are behind all others.
    pub fn put_run(&mut self, run: PackedRun) {
        self.packed.len += run.count;
        self.packed.size += run.size;
        for leaf in run.leaves {
            if let Some(index) = self.packed.by_field.as_mut().filter(|_| !self.is_indexed) {
                leaf.objects()
                    .iter()
                    .for_each(|object| index.insert(object));
            }
            self.packed.put(leaf);
        }
    }

    /// Returns the form in which the objects are framed.
    pub fn format(&self) -> &WireFormat {
        &self.format
    }

    /// Adds an object. Of several with one key the last stays.
    pub fn put(&mut self, object: StoredObject) {
        self.in_order &= self.next.last_key().is_none_or(|last| last < object.key());
        if !self.in_order {
            self.pack();
            self.packed.insert(Arc::new(StoredObject {
                bytes: object.bytes.get().detached().into(),
                ..object
            }));
            return;
        }
        self.packed.len += 1;
        self.packed.size += object.size();
        if let Some(index) = &mut self.packed.by_field {
            index.insert(&object);
        }
        if let Some(leaf) = self.next.put(&self.format, object) {
            self.packed.put(leaf);
        }
    }

    /// Returns the snapshot, as the state at `version`.
    pub fn finish(mut self, version: ResourceVersion) -> Snapshot {
        self.pack();
        // What came out of order lies by itself.
        self.packed.settle_all();
        self.packed.set_version(version);
        self.packed
    }

    /// Makes a leaf of the objects that are not in one.
    fn pack(&mut self) {
        if let Some(leaf) = self.next.take(&self.format) {
            self.packed.put(leaf);
        }
    }
}
