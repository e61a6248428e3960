//! The rows of a Table.
use std::sync::Arc;

use bytes::BytesMut;
use jiff::Timestamp;
use watershed_protocol::{ListMetadata, ListParts, Malformed, TableForm, TableRequest, TableRow};

use super::kept_items::KeptItems;
use super::selected_objects::SelectedObjects;
use crate::serve::limits::list_memory::ListMemory;
use crate::serve::reads::open::OpenedTable;
use crate::store::StoredObject;
use crate::work::{PRINTED_OBJECT, WorkBudget, work_on};

/// The rows of a Table, which are printed while they are sent.
///
/// They are printed once before, to learn their length and that they can be printed at all. The
/// first ones are kept if there is memory for them. The others are printed twice, as of the same
/// moment, so that no list is in memory as a whole.
pub(super) struct TableItems {
    form: Arc<TableForm>,
    request: TableRequest,
    /// The moment of the ages.
    now: Timestamp,
    objects: SelectedObjects,
    /// The first rows.
    kept: KeptItems<TableRow>,
    /// Length of all rows, separators included.
    bytes: u64,
}

impl TableItems {
    /// The text between two rows.
    pub(super) const SEPARATOR: &[u8] = b",";

    /// Prints objects as rows. Returns one that cannot be printed, if there is one.
    pub(super) async fn new(
        table: &OpenedTable,
        objects: SelectedObjects,
        budget: &mut WorkBudget,
        memory: &mut ListMemory,
    ) -> Result<Self, Arc<StoredObject>> {
        let mut items = Self {
            form: Arc::clone(&table.form),
            request: table.request,
            now: Timestamp::now(),
            objects,
            kept: KeptItems::default(),
            bytes: 0,
        };
        for index in 0..items.len() {
            let printed = items.row(index);
            let mut row = printed.map_err(|_| Arc::clone(&items.objects[index]))?;
            items.bytes += (row.byte_len() + Self::SEPARATOR.len()) as u64;
            items.kept.push(memory, || {
                row.detach();
                let bytes = row.own_len();
                (row, bytes)
            });
            budget.work(items.work(index)).await;
        }
        Ok(items)
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns the work of printing a row.
    pub(super) fn work(&self, index: usize) -> usize {
        work_on(self.objects[index].bytes.len(), PRINTED_OBJECT)
    }

    /// Returns the length of all rows, each with a separator.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the objects out, for dropping them.
    pub(super) fn take_objects(&mut self) -> SelectedObjects {
        std::mem::take(&mut self.objects)
    }

    /// Returns what comes before and after rows of so many bytes.
    pub(super) fn list_parts(&self, metadata: &ListMetadata<'_>, bytes: u64) -> ListParts {
        self.form.list_parts(self.request.version, metadata, bytes)
    }

    /// Appends a row and a separator.
    pub(super) fn put(&self, index: usize, out: &mut BytesMut) -> Result<(), Malformed> {
        match self.kept.get(index) {
            Some(kept) => kept.put(out),
            None => self.row(index)?.put(out),
        }
        out.extend_from_slice(Self::SEPARATOR);
        Ok(())
    }

    fn row(&self, index: usize) -> Result<TableRow, Malformed> {
        let object = self.objects[index].bytes.get();
        self.form.row(self.request, &object, self.now)
    }
}
