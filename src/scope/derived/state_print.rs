//! Prints whole states of a scope in protobuf, and states that another release prints anew.
use std::iter;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};

use super::check::CheckedPrint;
use super::failures::FallbackReason;
use super::printer::{JsonPrinter, PrintManner, PrintedItems};
use super::printing_threads::PrintingThreads;
use super::step::{DerivedEnd, ReprintedObjects};
use crate::budget::{MemoryBudget, SizeSource};
use crate::store::{
    ObjectPeek, PackedRun, RunPacker, Snapshot, SnapshotBuilder, StoredObject, UnmadeObject,
};
use crate::upstream::{AnswerCompression, Change, ListedState};
use crate::work::{REDUCED_OBJECT, WorkBudget, blocking};

/// Objects that a thread prints before it takes others.
const BATCH: usize = 256;
/// A batch ends with the object that exceeds so many bytes. They do not count in the budget before
/// the batch is printed.
const BATCH_BYTES: usize = 1 << 20;

/// Prints states that fit into a budget.
pub(super) struct StatePrint {
    pub(super) budget: MemoryBudget,
    /// The next state is estimated before it is printed.
    pub(super) estimates: bool,
    pub(super) threads: PrintingThreads,
}

impl StatePrint {
    /// Returns a state as a list in JSON. Several threads print it: readers wait for it.
    ///
    /// Each object is printed, so that it is known to have a text, and of which length. The text is
    /// not held: after a restart, most clients go on with their watches and list nothing. It is
    /// printed again for whoever reads it.
    pub(super) async fn print(
        &mut self,
        checked: &CheckedPrint,
        snapshot: &Snapshot,
    ) -> Result<Change<SnapshotBuilder>, DerivedEnd> {
        let format = &checked.manner.format;
        let mut objects = SnapshotBuilder::of_same_objects(format, snapshot);
        let mut load = self.budget.begin_load();
        if self.estimates {
            let bytes = snapshot.size().saturating_mul(2);
            let bytes = MemoryBudget::estimate(snapshot.len(), bytes);
            load.expect(bytes, SizeSource::Estimate)?;
        }
        let packer = objects.run_packer();
        let mut printed = stream::iter(batches(snapshot))
            .map(|batch| print_batch(batch, checked.manner.clone(), packer.clone(), &self.threads))
            .buffered(self.threads.count());
        let mut work = WorkBudget::default();
        while let Some(batch) = printed.next().await {
            let batch = batch?;
            let count = batch.count();
            load.add(batch.bytes())?;
            objects.put_run(batch);
            work.work(count).await;
        }
        self.estimates = true;
        Ok(Change::Listed(Box::new(ListedState {
            format: Arc::clone(format),
            version: snapshot.version(),
            objects,
            streams_initial_events: true,
            warnings: checked.warnings.clone(),
            bookmark: Some(checked.bookmark.clone()),
            compression: AnswerCompression::NotAsked,
            load,
        })))
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
            let Some(known) = held.get_version(object.key(), object.version) else {
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
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH
            && bytes <= BATCH_BYTES
            && let Some(object) = objects.next()
        {
            bytes += object.bytes.len();
            batch.push(Arc::clone(object));
        }
        (!batch.is_empty()).then_some(batch)
    };
    iter::from_fn(next)
}

/// Prints and packs objects on another thread.
async fn print_batch(
    batch: Vec<Arc<StoredObject>>,
    manner: PrintManner,
    packer: RunPacker,
    threads: &PrintingThreads,
) -> Result<PackedRun, FallbackReason> {
    let permit = threads.acquire().await;
    blocking(move || {
        // Until the end, also if nobody waits for it any more.
        let _permit = permit;
        let (mut peek, mut text) = (ObjectPeek::default(), Vec::new());
        let print = |source: Arc<StoredObject>| {
            let length = manner.print_into(&peek.bytes(&source), &mut text)?;
            Ok(UnmadeObject { source, length })
        };
        packer.pack_unmade(batch.into_iter().map(print), |sources| {
            Box::new(PrintedItems::new(manner.clone(), sources))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use bytes::Bytes;
    use watershed_protocol::{
        Encoding, FieldTable, GroupVersionResource, ResourceVersion, WireFormat, scan,
    };

    use super::*;
    use crate::store::Layout;

    fn configmaps() -> GroupVersionResource {
        GroupVersionResource::new("", "v1", "configmaps")
    }

    fn format() -> Arc<WireFormat> {
        const LIST: &[u8] = br#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}
"#;
        let list = Bytes::from_static(LIST);
        let (format, _) = WireFormat::learn(Encoding::Json, "ConfigMap", &list).unwrap();
        Arc::new(format)
    }

    /// Returns a state of objects with so many bytes each, at least.
    fn state(objects: usize, bytes: usize) -> Snapshot {
        let (format, padding) = (format(), "x".repeat(bytes));
        let fields = FieldTable::builtin(&configmaps(), true).unwrap();
        let layout = Layout {
            format: Arc::clone(&format),
            indexed: None,
        };
        let objects = (0..objects).map(|number| {
            let text = format!(
                r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c-{number:04}","namespace":"ns","resourceVersion":"5"}},"data":{{"a":"{padding}"}}}}"#
            );
            let scanned = scan(Encoding::Json, text.as_bytes(), &fields).unwrap();
            StoredObject {
                bytes: format.item_bytes(&text.into()).into(),
                version: scanned.version,
                attributes: scanned.attributes,
            }
        });
        Snapshot::new(ResourceVersion(9), layout, objects)
    }

    fn lengths(snapshot: &Snapshot) -> Vec<usize> {
        batches(snapshot).map(|batch| batch.len()).collect()
    }

    #[test]
    fn a_batch_has_few_objects_and_few_bytes() {
        assert_eq!(lengths(&state(0, 0)), [0; 0]);
        assert_eq!(lengths(&state(600, 10)), [256, 256, 88]);
        assert_eq!(lengths(&state(10, 300_000)), [4, 4, 2]);
        assert_eq!(lengths(&state(3, 2 << 20)), [1, 1, 1]);
    }

    #[tokio::test]
    async fn batches_of_all_scopes_wait_for_the_same_threads() {
        let printer = JsonPrinter::of_type(&configmaps(), "ConfigMap", false).unwrap();
        let manner = printer.manner(None, &format());
        let threads = PrintingThreads::new(1);
        let busy = threads.acquire().await;
        let packer = SnapshotBuilder::of_same_objects(&format(), &state(0, 0)).run_packer();
        let mut batch = pin!(print_batch(Vec::new(), manner, packer, &threads));
        let mut next = pin!(threads.acquire());
        let mut context = Context::from_waker(Waker::noop());
        assert!(batch.as_mut().poll(&mut context).is_pending());
        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(busy);
        assert!(
            next.as_mut().poll(&mut context).is_pending(),
            "the thread is the batch's"
        );
        assert_eq!(batch.await.unwrap().count(), 0);
        assert!(next.await.is_ok());
    }
}
