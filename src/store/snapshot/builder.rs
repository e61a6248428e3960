//! A snapshot in the making, of objects that arrive one after the other.
use std::sync::Arc;

use super::super::by_field::ByField;
use super::super::leaf::Growing;
use super::super::object::StoredObject;
use super::{ByFirstKey, Layout, Snapshot};
use watershed_protocol::{ResourceVersion, WireFormat};

/// Packs the objects of a list while they arrive. What it holds beside whole leaves is at most one
/// leaf more: an object's bytes are copied when it is put in, and whatever they are a part of can
/// go.
#[derive(Debug)]
pub struct SnapshotBuilder {
    format: Arc<WireFormat>,
    /// The objects that are in leaves.
    packed: Snapshot,
    /// Those behind them, while all have come in order.
    next: Growing,
    /// Upstream lists in key order. Of a list that does not, what comes from the first object out
    /// of order on is put in as changes are.
    in_order: bool,
}

impl SnapshotBuilder {
    /// Without an object.
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
            next: Growing::default(),
            in_order: true,
        }
    }

    /// How the objects are framed.
    pub fn format(&self) -> &WireFormat {
        &self.format
    }

    /// Takes an object in; of several with one key the last stays.
    pub fn put(&mut self, object: StoredObject) {
        self.in_order &= self.next.last_key().is_none_or(|last| last < object.key());
        if !self.in_order {
            self.pack();
            self.packed.insert(Arc::new(StoredObject {
                bytes: object.bytes.detached(),
                ..object
            }));
            return;
        }
        if !self.next.has_room(&self.format, &object) {
            self.pack();
        }
        self.packed.len += 1;
        self.packed.size += object.size();
        if let Some(index) = &mut self.packed.by_field {
            index.insert(&object);
        }
        self.next.put(&self.format, object);
    }

    /// The snapshot, as the state at `version`.
    pub fn finish(mut self, version: ResourceVersion) -> Snapshot {
        self.pack();
        // What came out of order lies by itself.
        self.packed.settle_those(|leaf| !leaf.is_settled());
        self.packed.set_version(version);
        self.packed
    }

    /// Makes a leaf of what is not in one. Behind it comes the next object, unless they are out of
    /// order.
    fn pack(&mut self) {
        if let Some(leaf) = self.next.take(&self.format) {
            self.packed.leaves.insert(ByFirstKey(Arc::new(leaf)));
        }
    }
}
