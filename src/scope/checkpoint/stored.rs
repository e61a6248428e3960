//! A scope's state as a checkpoint has it.

use std::io::{self, Read};
use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, ScopedJoinHandle};

use bytes::Bytes;
use http::HeaderValue;
use watershed_protocol::{
    BookmarkFormat, Encoding, FieldTable, ItemBytes, Malformed, ManagedFields, ResourceVersion,
    WireFormat, scan,
};

use super::file::{CheckpointFileError, CheckpointHeader, CheckpointReader};
use crate::budget::{DoesNotFit, MemoryLoad};
use crate::scope::phase::ReadyScope;
use crate::store::{Layout, SnapshotBuilder, StoredObject};
use crate::upstream::Release;

/// Number of objects from which one thread reads them, another one scans them, and a third one takes
/// them in.
const MANY: u64 = 2_000;
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
    #[error("the disk does not give it in time")]
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

/// Reads what follows the header, and checks all of it.
pub(super) fn load_stored<R: Read + Send>(
    mut file: CheckpointReader<R>,
    header: CheckpointHeader,
    (encoding, managed_fields): (Encoding, ManagedFields),
    fields: &FieldTable,
    mut load: MemoryLoad,
) -> Result<StoredScope, CheckpointError> {
    let format = Arc::new(WireFormat::of_record(&header.format)?);
    if format.encoding() != encoding {
        return Err(CheckpointFileError::Damaged("its objects have another encoding").into());
    }
    if format.managed_fields() != managed_fields {
        return Err(CheckpointError::OtherSettings);
    }
    let example = Bytes::copy_from_slice(&file.block()?);
    let mut objects = SnapshotBuilder::new(Layout {
        format: Arc::clone(&format),
        indexed: fields.indexed(),
    });
    let scan_object = |bytes: Bytes| -> Result<_, CheckpointError> {
        let bytes = ItemBytes::new(bytes);
        let scanned = scan(encoding, &bytes.text(), fields)?;
        if scanned.version.0 > header.version {
            return Err(CheckpointFileError::Damaged("an object is newer than the state").into());
        }
        Ok(StoredObject {
            bytes: bytes.into(),
            version: scanned.version,
            attributes: scanned.attributes,
        })
    };
    let mut blocks = CountedBlocks {
        file: &mut file,
        load: &mut load,
        left: header.objects,
    };
    for_each_block(&mut blocks, scan_object, |object| objects.put(object))?;
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

/// Makes something of each block, and calls `take` with each of these in the blocks' order, until
/// one fails. Many are read, made and taken on three threads.
fn for_each_block<R: Read + Send, T: Send>(
    blocks: &mut CountedBlocks<'_, R>,
    make: impl Fn(Bytes) -> Result<T, CheckpointError> + Send,
    mut take: impl FnMut(T),
) -> Result<(), CheckpointError> {
    if blocks.left < MANY {
        return blocks.try_for_each(|block| {
            take(make(block?)?);
            Ok(())
        });
    }
    thread::scope(|scope| {
        let (batches, read) = sync_channel(AHEAD);
        let reading = move || send_batches(blocks, &batches);
        let reading = thread::Builder::new().spawn_scoped(scope, reading)?;
        let (batches, made) = sync_channel(AHEAD);
        let making = move || {
            read.iter()
                .try_for_each(|batch: Vec<_>| send_made(batch, &make, &batches))
        };
        let making = thread::Builder::new().spawn_scoped(scope, making)?;
        made.iter().flatten().for_each(&mut take);
        // What lies before the first failure is taken. A failure to make it comes first then.
        joined(making).and(joined(reading))
    })
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    let joined = thread.join();
    joined.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

/// Sends blocks until one fails, or nobody takes them any more.
fn send_batches(
    blocks: impl Iterator<Item = Result<Bytes, CheckpointError>>,
    batches: &SyncSender<Vec<Bytes>>,
) -> Result<(), CheckpointError> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for block in blocks {
        let block = match block {
            Ok(block) => block,
            Err(error) => {
                let _ = batches.send(batch);
                return Err(error);
            }
        };
        bytes += size_of::<Bytes>() + block.len();
        batch.push(block);
        if bytes >= BATCH {
            bytes = 0;
            if batches.send(std::mem::take(&mut batch)).is_err() {
                return Ok(());
            }
        }
    }
    let _ = batches.send(batch);
    Ok(())
}

/// Sends what is made of the blocks, up to the first that fails.
fn send_made<T>(
    batch: Vec<Bytes>,
    make: impl Fn(Bytes) -> Result<T, CheckpointError>,
    batches: &SyncSender<Vec<T>>,
) -> Result<(), CheckpointError> {
    let mut failure = None;
    let made = batch.into_iter().map_while(|block| match make(block) {
        Ok(made) => Some(made),
        Err(error) => {
            failure = Some(error);
            None
        }
    });
    let made = made.collect();
    // Nobody takes it only after a panic.
    let _ = batches.send(made);
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::file_of;
    use super::*;
    use crate::budget::MemoryBudget;

    /// Takes the blocks of a file, up to one that is refused. Returns how many were taken before
    /// the end or a failure.
    fn taken(file: &[u8], count: u64, refused: Option<u64>) -> (u64, Result<(), CheckpointError>) {
        let (mut file, _) = CheckpointReader::begin(file).unwrap();
        let mut load = MemoryBudget::default().begin_load();
        let make = |block: Bytes| {
            let number = u64::from_le_bytes(block[..8].try_into().unwrap());
            if refused == Some(number) {
                return Err(CheckpointError::Foreign("refused"));
            }
            Ok(number)
        };
        let mut blocks = CountedBlocks {
            file: &mut file,
            load: &mut load,
            left: count,
        };
        let mut taken = 0;
        let result = for_each_block(&mut blocks, make, |number| {
            assert_eq!(number, taken);
            taken += 1;
        });
        (taken, result)
    }

    #[test]
    fn few_and_many_blocks_are_taken_in_their_order_up_to_the_first_failure() {
        for count in [1, MANY - 1, MANY, 5 * MANY] {
            let file = file_of((0..count).map(|n| [n.to_le_bytes(); 40].concat()));
            assert!(matches!(taken(&file, count, None), (n, Ok(())) if n == count));
            let last = count - 1;
            let refused = taken(&file, count, Some(last));
            assert!(matches!(refused, (n, Err(CheckpointError::Foreign(_))) if n == last));
            // A cut after a block that is refused is not noticed; one before it is all there is.
            let cut = &file[..file.len() - 100];
            let refused = taken(cut, count, Some(0));
            assert!(matches!(refused, (0, Err(_))), "of {count}");
            let (number, result) = taken(cut, count, None);
            assert_eq!(number, last, "of {count}");
            assert!(matches!(
                result,
                Err(CheckpointError::File(CheckpointFileError::Io(error)))
                    if error.kind() == io::ErrorKind::UnexpectedEof
            ));
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
        let result = for_each_block(&mut blocks, Ok, drop);
        assert!(matches!(result, Err(CheckpointError::DoesNotFit(_))));
    }
}
