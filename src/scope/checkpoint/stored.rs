//! A scope's state as a checkpoint has it.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use http::HeaderValue;
use watershed_protocol::{
    BookmarkFormat, Encoding, FieldTable, ItemBytes, Malformed, ManagedFields, ObjectAttributes,
    ResourceVersion, WireFormat, scan,
};

use super::file::{CheckpointFileError, CheckpointHeader, CheckpointReader};
use crate::budget::{DoesNotFit, MemoryLoad};
use crate::scope::cached::Scope;
use crate::scope::phase::ReadyScope;
use crate::store::{Layout, PackedRun, SnapshotBuilder, StoredObject};
use crate::upstream::Release;

/// Number of objects from which one thread reads them, others scan and pack them, and one puts them
/// together.
const MANY: u64 = 2_000;
/// Threads that scan and pack objects.
const MAKERS: usize = 2;
/// Bytes of objects that are handed over at a time.
const BATCH: usize = 256 << 10;
/// Batches that a thread is ahead of the next one.
const AHEAD: usize = 4;

/// A scope's state, with the memory that it takes.
pub(in crate::scope) struct StoredScope {
    /// The digest of the identity of the cluster that it is of.
    pub(super) cluster: String,
    pub(in crate::scope) version: ResourceVersion,
    /// The version of the last event before it, if it was known.
    pub(in crate::scope) last_event: Option<ResourceVersion>,
    pub(in crate::scope) objects: SnapshotBuilder,
    pub(in crate::scope) ready: ReadyScope,
    pub(in crate::scope) bookmark: Option<BookmarkFormat>,
    /// The release that printed the objects.
    pub(in crate::scope) release: Release,
    pub(in crate::scope) load: MemoryLoad,
}

/// Reason why a checkpoint is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    #[error(transparent)]
    File(#[from] CheckpointFileError),
    #[error("it is too old")]
    Outdated,
    #[error("it was written with another setting of managedFields")]
    OtherSettings,
    #[error("{0}")]
    Foreign(&'static str),
    #[error("it has an object that is not understood: {}", .0.reason())]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    #[error("cannot identify the upstream cluster")]
    Unverified,
    #[error("it takes too long to read it from disk")]
    Slow,
}

impl From<io::Error> for CheckpointError {
    fn from(error: io::Error) -> Self {
        CheckpointFileError::from(error).into()
    }
}

impl CheckpointError {
    /// Returns the metric label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::File(CheckpointFileError::Layout) | Self::Outdated | Self::OtherSettings => {
                "outdated"
            }
            Self::Foreign(_) | Self::File(CheckpointFileError::Foreign(_)) => "foreign",
            Self::File(CheckpointFileError::Io(error))
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                "foreign"
            }
            Self::File(_) | Self::Malformed(_) => "damaged",
            Self::DoesNotFit(_) => "no-memory",
            Self::Unverified => "unverified",
            Self::Slow => "slow",
        }
    }

    /// Returns `true` if the checkpoint will never be of use.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::DoesNotFit(_) | Self::Unverified | Self::Slow => false,
            // A disk that fails now may work later; what it says then has a checksum.
            Self::File(CheckpointFileError::Io(error)) => {
                error.kind() == io::ErrorKind::UnexpectedEof
            }
            _ => true,
        }
    }
}

/// The form that stored objects must have to fit a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScopeForm {
    pub(super) encoding: Encoding,
    pub(super) managed_fields: ManagedFields,
}

impl ScopeForm {
    /// Returns the form of a scope's objects.
    pub(super) fn of(scope: &Scope) -> Self {
        Self {
            encoding: scope.key.representation.encoding,
            managed_fields: scope.managed_fields,
        }
    }
}

/// Reads what follows the header, and checks all of it.
pub(super) fn load_stored<R: Read + Send>(
    mut file: CheckpointReader<R>,
    header: CheckpointHeader,
    form: ScopeForm,
    fields: &FieldTable,
    mut load: MemoryLoad,
) -> Result<StoredScope, CheckpointError> {
    let format = Arc::new(WireFormat::of_record(&header.format)?);
    if format.encoding() != form.encoding {
        return Err(CheckpointFileError::Damaged("its objects have another encoding").into());
    }
    if format.managed_fields() != form.managed_fields {
        return Err(CheckpointError::OtherSettings);
    }
    let example = Bytes::copy_from_slice(&file.bookmark()?);
    let mut objects = SnapshotBuilder::new(Layout {
        format: Arc::clone(&format),
        indexed: fields.indexed(),
    });
    let scan_object = |bytes: Bytes| -> Result<_, CheckpointError> {
        let bytes = ItemBytes::new(bytes);
        let scanned = scan(form.encoding, &bytes.text(), fields)?;
        if scanned.version.0 > header.version {
            return Err(CheckpointFileError::Damaged("an object is newer than the state").into());
        }
        Ok(StoredObject {
            bytes: bytes.into(),
            version: scanned.version,
            attributes: scanned.attributes,
        })
    };
    let packer = objects.run_packer();
    let pack = |blocks: Vec<Bytes>| {
        let mut last = None;
        packer.pack(blocks.into_iter().map(|bytes| {
            let object = scan_object(bytes)?;
            // Names are shared.
            let key = object.attributes.clone();
            in_order(last.as_ref().map(ObjectAttributes::key), key.key())?;
            last = Some(key);
            Ok(object)
        }))
    };
    let mut last = None;
    let put = |run: PackedRun| {
        if let Some((first, end)) = run.ends() {
            in_order(last.as_deref(), first)?;
            last = Some(end.to_owned());
        }
        objects.put_run(run);
        Ok(())
    };
    let mut blocks = CountedBlocks {
        file: &mut file,
        load: &mut load,
        left: header.objects,
    };
    for_each_batch(&mut blocks, pack, put)?;
    file.end()?;
    let bookmark = (!example.is_empty()).then(|| BookmarkFormat::learn(&format, &example));
    let warnings = header.warnings.into_iter().map(HeaderValue::try_from);
    let warnings: Result<_, _> = warnings.collect();
    Ok(StoredScope {
        cluster: header.cluster,
        version: ResourceVersion(header.version),
        last_event: header.last_event.map(ResourceVersion),
        objects,
        ready: ReadyScope {
            format,
            streams_initial_events: header.streams_initial_events,
            warnings: warnings
                .map_err(|_| CheckpointFileError::Damaged("a warning is no header"))?,
        },
        bookmark: bookmark.transpose()?,
        release: header.release,
        load,
    })
}

/// Checks that a key follows the last one.
fn in_order(last: Option<&str>, key: &str) -> Result<(), CheckpointFileError> {
    if last.is_some_and(|last| last >= key) {
        return Err(CheckpointFileError::Damaged("its objects are out of order"));
    }
    Ok(())
}

/// Batches of blocks.
struct Batches<'a, 'b, R>(&'a mut CountedBlocks<'b, R>);

impl<R: Read> Iterator for Batches<'_, '_, R> {
    type Item = Result<Vec<Bytes>, CheckpointError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH
            && let Some(block) = self.0.next()
        {
            match block {
                Ok(block) => {
                    bytes += size_of::<Bytes>() + block.len();
                    batch.push(block);
                }
                Err(error) => return Some(Err(error)),
            }
        }
        (!batch.is_empty()).then_some(Ok(batch))
    }
}

/// Takes results of a thread.
type BatchSender<T> = SyncSender<Result<T, CheckpointError>>;

/// The blocks of a checkpoint, whose memory is counted as they are read.
struct CountedBlocks<'a, R> {
    file: &'a mut CheckpointReader<R>,
    load: &'a mut MemoryLoad,
    left: u64,
}

impl<R: Read> Iterator for CountedBlocks<'_, R> {
    type Item = Result<Bytes, CheckpointError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut counted = || {
            let bytes = self.file.block()?;
            self.load.add(bytes.len())?;
            Ok(bytes)
        };
        Some(counted())
    }
}

/// Makes something of each batch of blocks, and takes each of these in the blocks' order, until one
/// fails. Many blocks are read, made and taken on several threads.
fn for_each_batch<R: Read + Send, T: Send>(
    blocks: &mut CountedBlocks<'_, R>,
    make: impl Fn(Vec<Bytes>) -> Result<T, CheckpointError> + Sync,
    mut take: impl FnMut(T) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let are_many = blocks.left >= MANY;
    let mut batches = Batches(blocks);
    if !are_many {
        return batches.try_for_each(|batch| take(make(batch?)?));
    }
    thread::scope(|scope| {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for _ in 0..MAKERS {
            let (input, batches) = sync_channel(AHEAD);
            let (made, output) = sync_channel(AHEAD);
            let make = &make;
            let making = move || send_until_failure(batches.iter().map(|b| make(b?)), [&made]);
            thread::Builder::new().spawn_scoped(scope, making)?;
            inputs.push(input);
            outputs.push(output);
        }
        let reading = move || send_until_failure(batches, &inputs);
        thread::Builder::new().spawn_scoped(scope, reading)?;
        // Batches were given to the makers in turn.
        for output in outputs.iter().cycle() {
            match output.recv() {
                Ok(made) => take(made?)?,
                Err(_) => break,
            }
        }
        Ok(())
    })
}

/// Sends results to the receivers in turn, until one is a failure, or is not received any more.
fn send_until_failure<'a, T: 'a>(
    results: impl Iterator<Item = Result<T, CheckpointError>>,
    receivers: impl IntoIterator<IntoIter: Clone + Iterator<Item = &'a BatchSender<T>>>,
) {
    for (result, receiver) in results.zip(receivers.into_iter().cycle()) {
        let is_failure = result.is_err();
        if receiver.send(result).is_err() || is_failure {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::file_of;
    use super::*;
    use crate::budget::MemoryBudget;

    /// Takes the blocks of a file, up to one that is refused. Returns how many were taken before the end
    /// or a failure.
    fn taken(file: &[u8], count: u64, refused: Option<u64>) -> (u64, Result<(), CheckpointError>) {
        let (mut file, _) = CheckpointReader::begin(file).unwrap();
        let mut load = MemoryBudget::default().begin_load();
        let make = |batch: Vec<Bytes>| {
            let number = |block: &Bytes| u64::from_le_bytes(block[..8].try_into().unwrap());
            let numbers: Vec<_> = batch.iter().map(number).collect();
            if refused.is_some_and(|refused| numbers.contains(&refused)) {
                return Err(CheckpointError::Foreign("refused"));
            }
            Ok(numbers)
        };
        let mut blocks = CountedBlocks {
            file: &mut file,
            load: &mut load,
            left: count,
        };
        let mut taken = 0;
        let result = for_each_batch(&mut blocks, make, |numbers| {
            assert!(
                numbers
                    .iter()
                    .copied()
                    .eq(taken..taken + numbers.len() as u64)
            );
            taken += numbers.len() as u64;
            Ok(())
        });
        (taken, result)
    }

    #[test]
    fn few_and_many_blocks_are_taken_in_their_order_up_to_the_first_failure() {
        for count in [1, MANY - 1, MANY, 5 * MANY] {
            let file = file_of((0..count).map(|n| [n.to_le_bytes(); 40].concat()));
            assert!(matches!(taken(&file, count, None), (n, Ok(())) if n == count));
            let last = count - 1;
            let (number, refused) = taken(&file, count, Some(last));
            assert!(matches!(refused, Err(CheckpointError::Foreign(_))));
            assert!(number <= last, "of {count}");
            // A cut after a block that is refused is not noticed; one before it is all there is.
            let cut = &file[..file.len() - 100];
            let refused = taken(cut, count, Some(0));
            assert!(matches!(refused, (0, Err(_))), "of {count}");
            let (number, result) = taken(cut, count, None);
            assert!(number <= last, "of {count}");
            assert!(matches!(
                result,
                Err(CheckpointError::File(CheckpointFileError::Io(error)))
                    if error.kind() == io::ErrorKind::UnexpectedEof
            ));
        }
    }

    #[test]
    fn objects_out_of_order_are_damage() {
        let object = |name: &str| {
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"a","resourceVersion":"5"}}}}"#)
        };
        for (names, is_damaged) in [(["a", "b"], false), (["b", "a"], true), (["a", "a"], true)] {
            let objects = names.map(object);
            let file = file_of(["", &objects[0], &objects[1]]);
            let (reader, header) = CheckpointReader::begin(&file[..]).unwrap();
            let load = MemoryBudget::default().begin_load();
            let fields = FieldTable::metadata_only(true);
            let form = ScopeForm {
                encoding: Encoding::Json,
                managed_fields: ManagedFields::Keep,
            };
            let loaded = load_stored(reader, header, form, &fields, load);
            assert_eq!(loaded.is_err(), is_damaged, "{names:?}");
        }
    }

    #[test]
    fn blocks_that_do_not_fit_into_memory_are_refused() {
        let count = 2 * MANY;
        let file = file_of((0..count).map(|_| [0; 4096]));
        let (mut file, _) = CheckpointReader::begin(&file[..]).unwrap();
        let mut load = MemoryBudget::new(Some(1 << 20)).begin_load();
        let mut blocks = CountedBlocks {
            file: &mut file,
            load: &mut load,
            left: count,
        };
        let result = for_each_batch(&mut blocks, Ok, |_| Ok(()));
        assert!(matches!(result, Err(CheckpointError::DoesNotFit(_))));
    }
}
