//! Prints whole states of a scope in protobuf, and states that another release prints anew.
use std::sync::Arc;

use super::check::CheckedPrint;
use super::printer::{JsonPrinter, PrintManner};
use super::step::{DerivedEnd, ReprintedObjects};
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
        let format = &checked.manner.format;
        let mut objects = SnapshotBuilder::begin(format, fields);
        let mut load = self.budget.begin_load();
        if self.estimates {
            let bytes = snapshot.size().saturating_mul(2);
            load.expect(MemoryBudget::estimate(snapshot.len(), bytes))?;
        }
        let (mut work, mut peek) = (WorkBudget::default(), ObjectPeek::default());
        for object in snapshot.items(None) {
            let printed = printer.print(&checked.manner, &peek.bytes(object))?;
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
            compressed: None,
            load,
        })
    }

    /// Returns the objects of `held` that are printed differently in a manner. Objects that are in
    /// another version by now are left out: their events follow.
    pub(super) async fn print_anew(
        &self,
        printer: &mut JsonPrinter,
        manner: &PrintManner,
        held: &Snapshot,
        now: &Snapshot,
    ) -> Result<ReprintedObjects, DerivedEnd> {
        let (mut objects, mut load) = (Vec::new(), self.budget.begin_load());
        let (mut work, mut peek, mut known_peek) = (
            WorkBudget::default(),
            ObjectPeek::default(),
            ObjectPeek::default(),
        );
        for object in now.items(None) {
            work.work(REDUCED_OBJECT).await;
            let known = held.get(object.key());
            let Some(known) = known.filter(|known| known.version == object.version) else {
                continue;
            };
            let printed = printer.print(manner, &peek.bytes(object))?;
            let bytes = manner.format.item_bytes(&printed);
            if known_peek.bytes(known) != bytes {
                load.add(printed.len())?;
                objects.push(StoredObject {
                    bytes: bytes.into(),
                    version: object.version,
                    attributes: object.attributes.clone(),
                });
            }
        }
        Ok(ReprintedObjects { objects, load })
    }

    /// Returns no objects, where both manners are the same.
    pub(super) fn nothing_anew(&self) -> ReprintedObjects {
        ReprintedObjects {
            objects: Vec::new(),
            load: self.budget.begin_load(),
        }
    }
}
