//! The folder of checkpoints: one file for each scope.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::disk::{FileOfDisk, NO_LINK, ReadingProgress};
use super::file::{CheckpointFileError, CheckpointHeader, CheckpointReader, CheckpointWriter};

/// The ending of checkpoints, and of those that are being written.
const ENDING: &str = "checkpoint";
const UNFINISHED: &str = "checkpoint-unfinished";
/// The file that the writing process holds a lock of.
const LOCK: &str = "lock";
const BUFFER: usize = 256 << 10;
/// Flag for opening the lock: a pipe in its place would be waited for.
const NO_WAIT: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// A file whose header was read.
type OpenCheckpoint = (CheckpointReader<FileOfDisk>, CheckpointHeader);

/// A folder to which one process writes at a time. Others may read meanwhile.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFolder {
    path: PathBuf,
    /// The locked file, for as long as this process may write.
    lock: Arc<Mutex<Option<File>>>,
}

impl CheckpointFolder {
    /// Opens the folder. Creates it if there is none, for this user alone.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self {
            path: path.to_owned(),
            lock: Arc::default(),
        })
    }

    /// Claims the folder for this process until its end. Returns `false` if another one has it:
    /// during a rollout, two pods of a node may share it for a moment.
    pub(super) fn claim(&self) -> io::Result<bool> {
        let mut lock = self.lock.lock();
        if lock.is_some() {
            return Ok(true);
        }
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NO_LINK | NO_WAIT)
            .open(self.path.join(LOCK))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(false),
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, "cannot lock the folder of checkpoints");
            }
            Ok(()) => {}
        }
        // A process that was killed leaves what it was writing.
        for unfinished in self.files(UNFINISHED)? {
            remove(&unfinished);
        }
        *lock = Some(file);
        Ok(true)
    }

    /// Writes a checkpoint in the place of the scope's last one. Returns its length.
    ///
    /// A reader finds the whole new file or the whole old one, even after a crash.
    pub(super) fn write(
        &self,
        header: &CheckpointHeader,
        blocks: impl FnOnce(&mut CheckpointWriter<BufWriter<File>>) -> io::Result<()>,
    ) -> io::Result<u64> {
        let path = self.path(&header.scope, ENDING);
        let unfinished = self.path(&header.scope, UNFINISHED);
        let written = Self::write_file(&unfinished, header, blocks);
        let length = written.inspect_err(|_| {
            let _ = fs::remove_file(&unfinished);
        })?;
        fs::rename(&unfinished, &path)?;
        // Without this, the name may be lost with the power.
        File::open(&self.path)?.sync_all()?;
        Ok(length)
    }

    fn write_file(
        path: &Path,
        header: &CheckpointHeader,
        blocks: impl FnOnce(&mut CheckpointWriter<BufWriter<File>>) -> io::Result<()>,
    ) -> io::Result<u64> {
        // The mode is that of a new file. One that is there may have another, or be a link.
        let _ = fs::remove_file(path);
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let mut writer = CheckpointWriter::begin(BufWriter::with_capacity(BUFFER, file), header)?;
        blocks(&mut writer)?;
        let (mut file, length) = writer.end()?;
        file.flush()?;
        file.get_ref().sync_all()?;
        Ok(length)
    }

    /// Opens a scope's checkpoint; `None` if it has none. What is read of it counts as progress.
    pub(super) fn read(
        &self,
        scope: &str,
        progress: &Arc<ReadingProgress>,
    ) -> Result<Option<OpenCheckpoint>, CheckpointFileError> {
        match Self::open_file(&self.path(scope, ENDING), progress) {
            Err(CheckpointFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    fn open_file(
        path: &Path,
        progress: &Arc<ReadingProgress>,
    ) -> Result<OpenCheckpoint, CheckpointFileError> {
        let file = FileOfDisk::open(path, progress)?;
        CheckpointReader::begin(file)
    }

    /// Removes a scope's checkpoint.
    pub(super) fn remove(&self, scope: &str) {
        // It may be gone already. What stays is refused again.
        let _ = fs::remove_file(self.path(scope, ENDING));
    }

    /// Removes the checkpoints whose header is not wanted, and those whose header cannot be read,
    /// which are reported.
    pub(super) fn sweep(
        &self,
        is_wanted: impl Fn(&CheckpointHeader) -> bool,
        report: impl Fn(&Path, CheckpointFileError),
    ) -> io::Result<()> {
        let progress = Arc::default();
        for path in self.files(ENDING)? {
            match Self::open_file(&path, &progress) {
                Ok((_, header)) if is_wanted(&header) => continue,
                Ok(_) => {}
                Err(CheckpointFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                // It may be of a type that is not to be stored any more.
                Err(error) => report(&path, error),
            }
            remove(&path);
        }
        Ok(())
    }

    /// Removes all checkpoints.
    pub(super) fn clear(&self) -> io::Result<()> {
        for path in self.files(ENDING)? {
            remove(&path);
        }
        Ok(())
    }

    /// Removes the checkpoints that were written before a moment, but those of these scopes. Those of the
    /// future, from before the clock was set back, are of no use either.
    pub(super) fn remove_older(&self, than: SystemTime, but: &HashSet<String>) -> io::Result<()> {
        let now = SystemTime::now();
        let kept: HashSet<_> = but.iter().map(|scope| self.path(scope, ENDING)).collect();
        for path in self.files(ENDING)? {
            if kept.contains(&path) {
                continue;
            }
            let written = unless_gone(fs::metadata(&path).and_then(|file| file.modified()))?;
            if written.is_some_and(|written| written < than || written > now) {
                unless_gone(fs::remove_file(path))?;
            }
        }
        Ok(())
    }

    /// Returns the bytes of all checkpoints.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let files = self.files(ENDING)?.into_iter();
        let length = |path| Ok(unless_gone(fs::metadata(path))?.map_or(0, |file| file.len()));
        files.map(length).sum()
    }

    /// Returns the bytes of a scope's checkpoint; none if it has none.
    pub(super) fn bytes_of(&self, scope: &str) -> u64 {
        let own = fs::metadata(self.path(scope, ENDING));
        own.map_or(0, |own| own.len())
    }

    /// Returns the regular files with this ending. Nothing else there is the proxy's.
    fn files(&self, ending: &str) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let path = entry.path();
            let has_ending = path.extension().is_some_and(|found| found == ending);
            if has_ending && unless_gone(entry.file_type())?.is_some_and(|kind| kind.is_file()) {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// Returns the path of a scope's file. Names of types and selectors may be long.
    fn path(&self, scope: &str, ending: &str) -> PathBuf {
        let name = blake3::hash(scope.as_bytes()).to_hex();
        self.path.join(&name[..32]).with_extension(ending)
    }
}

/// Removes a file. One that stays, as another user's may, is never read: its reader finds out again.
fn remove(path: &Path) {
    if let Err(error) = unless_gone(fs::remove_file(path)) {
        let file = path.display();
        tracing::warn!(%file, %error, "cannot remove a checkpoint");
    }
}

/// Returns `None` if a file is not there any more. Others may have removed it.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
