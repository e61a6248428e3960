//! The pieces in which a snapshot is sent.
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use watershed_protocol::{Deflated, EventKind, deflate, gzip_member};

use super::leaf::Leaf;
use super::object::{ObjectPeek, StoredObject};
use super::packed::PackedItems;

/// A part of a snapshot that can be sent in one piece: objects of one leaf that follow one another.
#[derive(Clone, Debug)]
pub struct ObjectRun {
    pub(super) leaf: Arc<Leaf>,
    pub(super) range: Range<usize>,
}

impl ObjectRun {
    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns `true` if there is no object.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Keeps the first `limit` objects only.
    pub fn truncate(&mut self, limit: usize) {
        self.range.end = self.range.end.min(self.range.start.saturating_add(limit));
    }

    /// Removes the first `count` objects.
    pub fn advance(&mut self, count: usize) {
        self.range.start = self.range.end.min(self.range.start.saturating_add(count));
    }

    /// Returns the objects, in key order.
    pub fn objects(&self) -> &[Arc<StoredObject>] {
        &self.leaf.objects()[self.range.clone()]
    }

    /// Returns the length of its items in a list, each with a separator behind it.
    pub fn items_len(&self) -> usize {
        if self.is_whole_leaf() {
            return self.leaf.items_len;
        }
        self.objects()
            .iter()
            .map(|object| self.leaf.format.item_len(object.bytes.len()))
            .sum()
    }

    /// Returns its items in a list, each with a separator behind it. All readers share them.
    pub fn items(&self) -> Bytes {
        let packed = self.leaf.packed();
        packed.items().slice(packed.place(&self.range))
    }

    /// Returns its items, without the last separator, as a piece of gzip. It is made once for a
    /// whole leaf.
    pub fn deflated(&self) -> Arc<Deflated> {
        if self.is_whole_leaf() {
            return self.leaf.packed().deflated();
        }
        // Compressing costs far more than inflating, so folded objects stay folded.
        let packed = self.leaf.packed();
        let items = packed.peek().slice(packed.place(&self.range));
        let end = items.len().saturating_sub(self.leaf.format.separator());
        Arc::new(deflate(&items[..end]))
    }

    /// Returns `true` if [`ObjectRun::deflated`] costs nothing, as it was made before.
    pub fn is_deflated(&self) -> bool {
        self.is_whole_leaf()
            && self
                .leaf
                .packed_before()
                .is_some_and(PackedItems::is_deflated)
    }

    /// Returns the objects as ADDED events, as a member of gzip. It is made once for a whole leaf.
    pub fn added_compressed(&self) -> Bytes {
        if self.is_whole_leaf() {
            let added = &self.leaf.packed().added;
            added.get_or_make(|| self.compress_added())
        } else {
            self.compress_added()
        }
    }

    /// Returns `true` if [`ObjectRun::added_compressed`] costs nothing, as it was made before.
    pub fn is_added_compressed(&self) -> bool {
        self.is_whole_leaf()
            && self
                .leaf
                .packed_before()
                .is_some_and(|packed| packed.added.is_made())
    }

    fn is_whole_leaf(&self) -> bool {
        self.range.len() == self.leaf.objects().len()
    }

    fn compress_added(&self) -> Bytes {
        let mut frames = BytesMut::new();
        let format = &self.leaf.format;
        let mut peek = ObjectPeek::default();
        for object in self.objects() {
            format.put_event(EventKind::Added, &peek.bytes(object), &mut frames);
        }
        gzip_member(&frames)
    }
}
