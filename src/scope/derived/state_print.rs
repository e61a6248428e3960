//! Prints whole states of a scope in protobuf, and states that another release prints anew.
use std::future::pending;
use std::iter;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;

use futures_util::{StreamExt as _, stream};
use tokio::task::spawn_blocking;

use super::check::CheckedPrint;
use super::failures::FallbackReason;
use super::printer::{JsonPrinter, PrintManner};
use super::step::{DerivedEnd, ReprintedObjects};
use crate::budget::MemoryBudget;
use crate::store::{ObjectPeek, Snapshot, SnapshotBuilder, StoredObject};
use crate::upstream::{Change, Collect};
use crate::work::{REDUCED_OBJECT, WorkBudget};
use watershed_protocol::FieldTable;

/// Objects that a thread prints before it takes others.
const BATCH: usize = 256;
/// Threads that print one state, at most.
const MAX_PRINTERS: usize = 4;

/// Prints states that fit into a budget.
pub(super) struct StatePrint {
    pub(super) budget: MemoryBudget,
    /// The next state is estimated before it is printed.
    pub(super) estimates: bool,
}

impl StatePrint {
    /// Returns a state as a list in JSON. Several threads print it: readers wait for it.
    pub(super) async fn print(
        &mut self,
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
        let printers = available_parallelism().map_or(1, |n| n.get().min(MAX_PRINTERS));
        let mut printed = stream::iter(batches(snapshot))
            .map(|batch| print_batch(batch, checked.manner.clone()))
            .buffered(printers);
        let mut work = WorkBudget::default();
        while let Some(batch) = printed.next().await {
            for object in batch? {
                load.add(object.bytes.len())?;
                objects.put(object);
                work.work(REDUCED_OBJECT).await;
            }
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

/// Returns all objects of a state, in batches.
fn batches(snapshot: &Snapshot) -> impl Iterator<Item = Vec<Arc<StoredObject>>> {
    let mut objects = snapshot.items(None);
    let next = move || {
        let batch: Vec<_> = objects.by_ref().take(BATCH).cloned().collect();
        (!batch.is_empty()).then_some(batch)
    };
    iter::from_fn(next)
}

/// Prints objects on another thread.
async fn print_batch(
    batch: Vec<Arc<StoredObject>>,
    manner: PrintManner,
) -> Result<Vec<StoredObject>, FallbackReason> {
    let printing = spawn_blocking(move || {
        let (mut peek, mut text) = (ObjectPeek::default(), Vec::new());
        let print = |object: &Arc<StoredObject>| {
            let printed = manner.print(&peek.bytes(object), &mut text)?;
            Ok(StoredObject {
                bytes: manner.format.item_bytes(&printed).into(),
                version: object.version,
                attributes: object.attributes.clone(),
            })
        };
        batch.iter().map(print).collect()
    });
    match printing.await {
        Ok(printed) => printed,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime ends, and this task with it.
        Err(_) => pending().await,
    }
}
