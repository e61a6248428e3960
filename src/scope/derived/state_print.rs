//! Prints whole states of a scope in protobuf.
use std::sync::Arc;

use super::check::CheckedPrint;
use super::printer::JsonPrinter;
use super::step::DerivedEnd;
use crate::budget::MemoryBudget;
use crate::store::{ObjectPeek, Snapshot, SnapshotBuilder, StoredObject};
use crate::upstream::{Change, Collect};
use crate::work::{REDUCED_OBJECT, WorkBudget};
use watershed_protocol::FieldTable;

/// Prints states that fit into a budget.
pub(super) struct StatePrint {
    pub(super) budget: MemoryBudget,
    /// The next state is estimated before it is printed.
    pub(super) estimates: bool,
}

impl StatePrint {
    /// Returns a state as a list in JSON.
    pub(super) async fn print(
        &mut self,
        printer: &mut JsonPrinter,
        fields: &FieldTable,
        checked: &CheckedPrint,
        snapshot: &Snapshot,
    ) -> Result<Change<SnapshotBuilder>, DerivedEnd> {
        let format = &checked.format;
        let mut objects = SnapshotBuilder::begin(format, fields);
        let mut load = self.budget.begin_load();
        if self.estimates {
            let bytes = snapshot.size().saturating_mul(2);
            load.expect(MemoryBudget::estimate(snapshot.len(), bytes))?;
        }
        let (mut work, mut peek) = (WorkBudget::default(), ObjectPeek::default());
        for object in snapshot.items(None) {
            let printed = printer.print(format, &peek.bytes(object))?;
            load.add(printed.len())?;
            objects.put(StoredObject {
                bytes: format.item_bytes(&printed).into(),
                version: object.version,
                attributes: object.attributes.clone(),
            });
            work.work(REDUCED_OBJECT).await;
        }
        self.estimates = true;
        Ok(Change::Listed {
            format: Arc::clone(format),
            version: snapshot.version(),
            objects,
            streams_initial_events: true,
            warnings: checked.warnings.clone(),
            bookmark: Some(checked.bookmark.clone()),
            load,
        })
    }
}
