//! The items of a list, as references.
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use watershed_protocol::{ListMetadata, ListParts, Malformed, PartialFormat, WireFormat};

use super::kept_items::KeptItems;
use super::selected_objects::SelectedObjects;
use super::table_items::TableItems;
use crate::serve::limits::list_memory::ListMemory;
use crate::store::{ObjectRun, StoredObject};
use crate::watcher::MIN_SHARED_BYTES;
use crate::work::{REDUCED_OBJECT, WorkBudget, retire, work_on};

/// Bytes of small objects that are copied beside large ones that are shared.
const MAX_COPIED: usize = 64 * 1024;

/// The result of writing one piece of a list.
pub(super) enum WrittenPiece {
    /// The piece was appended, and more may follow in the same chunk.
    Appended,
    /// The piece was appended, and the chunk is to be sent.
    Flush,
    /// The piece follows the chunk, and is sent from where it lies.
    Shared(Bytes),
    /// No piece is left.
    None,
}

/// The items of a list: references only, or slices of what is cached.
pub(super) enum Items {
    /// Objects that lie side by side.
    Runs(Arc<WireFormat>, Vec<ObjectRun>),
    /// A selection.
    Objects(Arc<WireFormat>, SelectedObjects),
    /// The metadata of objects.
    Metadata(MetadataItems),
    /// The rows of a Table.
    Table(TableItems),
}

impl Items {
    /// Returns what comes before and after the items.
    pub(super) fn list_parts(&self, metadata: &ListMetadata<'_>) -> ListParts {
        let format = match self {
            Self::Runs(format, _) | Self::Objects(format, _) => format,
            Self::Metadata(reduced) => reduced.partial.format(),
            Self::Table(table) => return table.list_parts(metadata, self.bytes()),
        };
        format.list_parts(metadata, self.count(), self.bytes())
    }

    /// Returns the bytes between two items.
    fn separator(&self) -> usize {
        match self {
            Self::Runs(format, _) | Self::Objects(format, _) => format.separator(),
            Self::Metadata(metadata) => metadata.partial.format().separator(),
            Self::Table(_) => TableItems::SEPARATOR.len(),
        }
    }

    /// Returns the number of objects.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Runs(_, runs) => runs.iter().map(ObjectRun::len).sum(),
            Self::Objects(_, objects) => objects.len(),
            Self::Metadata(metadata) => metadata.objects.len(),
            Self::Table(table) => table.len(),
        }
    }

    /// Returns the length of the objects in bytes, with the separators between them.
    pub(super) fn bytes(&self) -> u64 {
        let all: u64 = match self {
            Self::Runs(_, runs) => runs.iter().map(|run| run.items_len() as u64).sum(),
            Self::Objects(format, objects) => objects
                .iter()
                .map(|object| format.item_len(object.bytes.len()) as u64)
                .sum(),
            Self::Metadata(metadata) => metadata.bytes,
            Self::Table(table) => table.bytes(),
        };
        all.saturating_sub(self.separator() as u64)
    }

    /// Returns the number of pieces in which the items are written.
    pub(super) fn pieces(&self) -> usize {
        match self {
            Self::Runs(_, runs) => runs.len(),
            Self::Objects(_, objects) => objects.len(),
            Self::Metadata(metadata) => metadata.objects.len(),
            Self::Table(table) => table.len(),
        }
    }

    /// Returns `true` if hardly anything has to be copied to be sent.
    pub(super) fn are_in_memory(&self) -> bool {
        match self {
            Self::Runs(..) => true,
            Self::Objects(_, objects) => {
                let copied: usize = objects
                    .iter()
                    .map(|object| object.bytes.len())
                    .filter(|length| *length < MIN_SHARED_BYTES)
                    .sum();
                copied <= MAX_COPIED
            }
            Self::Metadata(..) | Self::Table(..) => false,
        }
    }

    /// Drops the objects. The scope may hold others by now, so that these are freed.
    pub(super) fn retire(&mut self) {
        let count = self.count();
        match self {
            Self::Runs(_, runs) => retire(std::mem::take(runs), count),
            Self::Objects(_, objects) => retire(std::mem::take(objects), count),
            Self::Metadata(metadata) => retire(std::mem::take(&mut metadata.objects), count),
            Self::Table(table) => retire(table.take_objects(), count),
        }
    }

    /// Returns the work of writing a piece.
    pub(super) fn work(&self, index: usize) -> usize {
        match self {
            Self::Metadata(metadata) => metadata.work(index),
            Self::Table(table) => table.work(index),
            Self::Runs(..) | Self::Objects(..) => 1,
        }
    }

    /// Appends a piece. With `share`, appends only what comes before a large piece.
    pub(super) fn put(&self, index: usize, share: bool, out: &mut BytesMut) -> WrittenPiece {
        let is_last = index + 1 == self.pieces();
        let trailing = if is_last { self.separator() } else { 0 };
        let piece = match self {
            Self::Runs(_, runs) => {
                let items = runs[index].items();
                items.slice(..items.len() - trailing)
            }
            Self::Objects(format, objects) => {
                if index > 0 {
                    format.put_separator(out);
                }
                let object = objects[index].bytes.get();
                format.put_item_head(&object, out);
                object.share()
            }
            Self::Metadata(metadata) => {
                let Ok(reduced) = metadata.get(index) else {
                    // It could be reduced before. The client sees a body that is too short.
                    return WrittenPiece::None;
                };
                metadata.partial.put_item(&reduced, out);
                out.truncate(out.len() - trailing);
                return WrittenPiece::Appended;
            }
            Self::Table(table) => {
                if table.put(index, out).is_err() {
                    // It could be printed before.
                    return WrittenPiece::None;
                }
                out.truncate(out.len() - trailing);
                return WrittenPiece::Appended;
            }
        };
        if share && piece.len() >= MIN_SHARED_BYTES {
            return WrittenPiece::Shared(piece);
        }
        out.extend_from_slice(&piece);
        WrittenPiece::Appended
    }
}

/// The metadata of objects, which is cut out of them while it is sent.
///
/// It is cut out once before, to learn its length, and that upstream would print it in the same
/// way. The first of it is kept if there is memory for it. The rest is cut out twice, so that no
/// list is in memory as a whole.
pub(super) struct MetadataItems {
    partial: PartialFormat,
    objects: SelectedObjects,
    /// The metadata of the first objects.
    kept: KeptItems<Bytes>,
    /// Length of all items, separators included.
    bytes: u64,
}

impl MetadataItems {
    /// Returns the work of writing the metadata of an object.
    fn work(&self, index: usize) -> usize {
        Self::work_of(&self.objects, index)
    }

    fn work_of(objects: &SelectedObjects, index: usize) -> usize {
        work_on(objects[index].bytes.len(), REDUCED_OBJECT)
    }

    /// Measures the metadata of objects. Returns one that has none, if there is one.
    pub(super) async fn new(
        partial: PartialFormat,
        objects: SelectedObjects,
        budget: &mut WorkBudget,
        memory: &mut ListMemory,
    ) -> Result<Self, Arc<StoredObject>> {
        let (mut kept, mut bytes) = (KeptItems::default(), 0);
        for (index, object) in objects.iter().enumerate() {
            let metadata = partial.metadata(&object.bytes.get());
            let metadata = metadata.map_err(|_| Arc::clone(object))?;
            bytes += partial.item_len(&metadata) as u64;
            kept.push(memory, || {
                let bytes = size_of::<Bytes>() + metadata.len();
                // It would keep the whole object in memory, if that was made for this list.
                let is_copied = metadata.is_unique();
                let metadata = if is_copied {
                    Bytes::copy_from_slice(&metadata)
                } else {
                    metadata
                };
                (metadata, bytes)
            });
            budget.work(Self::work_of(&objects, index)).await;
        }
        Ok(Self {
            partial,
            objects,
            kept,
            bytes,
        })
    }

    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.iter().map(Bytes::len).sum()
    }

    fn get(&self, index: usize) -> Result<Bytes, Malformed> {
        match self.kept.get(index) {
            Some(kept) => Ok(kept.clone()),
            None => self.partial.metadata(&self.objects[index].bytes.get()),
        }
    }
}
