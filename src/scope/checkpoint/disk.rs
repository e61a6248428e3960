//! Reading from a disk that may be slow, or hang.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::geteuid;
use tokio::time::{Instant, sleep};

use super::file::CheckpointFileError;
use crate::upstream::{STATE_SILENCE, is_slower_than_a_list};

/// Flag for opening a file that others may have put in a folder: a link would lead elsewhere.
pub(super) const NO_LINK: i32 = OFlags::NOFOLLOW.bits().cast_signed();
/// The mode of a file that everybody may write.
const WRITABLE_BY_ALL: u32 = 0o002;
/// Pause between two looks at the progress.
const LOOK: Duration = Duration::from_millis(100);

/// Progress of a thread that reads from a disk.
#[derive(Debug, Default)]
pub(super) struct ReadingProgress {
    bytes: AtomicU64,
    /// Nobody waits for it any more.
    is_given_up: AtomicBool,
}

impl ReadingProgress {
    /// Waits until the disk gives too little, and gives the reading up. A thread that hangs stays
    /// until the disk answers.
    pub(super) async fn too_slow(&self) {
        let began = Instant::now();
        let (mut known, mut last) = (0, began);
        loop {
            sleep(LOOK).await;
            let (now, bytes) = (Instant::now(), self.bytes.load(Ordering::Relaxed));
            if bytes > known {
                (known, last) = (bytes, now);
            }
            if now - last >= STATE_SILENCE || is_slower_than_a_list(bytes, now - began) {
                self.is_given_up.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// A file on a disk, which tells how far it was read.
#[derive(Debug)]
pub(super) struct FileOfDisk {
    file: File,
    progress: Arc<ReadingProgress>,
}

impl FileOfDisk {
    /// Opens a file that this user has written, and that nobody else can have changed but its group.
    /// A folder's pods may share one.
    pub(super) fn open(
        path: &Path,
        progress: &Arc<ReadingProgress>,
    ) -> Result<Self, CheckpointFileError> {
        // Before it is opened: whoever opens a pipe waits for its writer.
        if !fs::symlink_metadata(path)?.is_file() {
            return Err(CheckpointFileError::Foreign("it is not a regular file"));
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(NO_LINK)
            .open(path)?;
        let metadata = file.metadata()?;
        let is_own = metadata.uid() == geteuid().as_raw();
        if !is_own || metadata.mode() & WRITABLE_BY_ALL != 0 {
            return Err(CheckpointFileError::Foreign(
                "other users may have written it",
            ));
        }
        Ok(Self {
            file,
            progress: Arc::clone(progress),
        })
    }
}

impl Read for FileOfDisk {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.progress.is_given_up.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let read = self.file.read(out)?;
        self.progress
            .bytes
            .fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Least bytes in a second.
    const RATE: u64 = 4 << 20;

    /// Returns the seconds after which a reading is given up that comes to so many bytes a second.
    async fn given_up_after(bytes_per_second: u64) -> u64 {
        let (began, progress) = (Instant::now(), ReadingProgress::default());
        let reading = async {
            loop {
                progress
                    .bytes
                    .fetch_add(bytes_per_second, Ordering::Relaxed);
                sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = progress.too_slow() => began.elapsed().as_secs(),
            () = reading => unreachable!(),
            () = sleep(Duration::from_mins(10)) => 600,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_or_is_slower_than_a_list_is_given_up() {
        assert_eq!(given_up_after(0).await, 3);
        assert_eq!(given_up_after(RATE / 5).await, 7);
        assert_eq!(given_up_after(2 * RATE).await, 600);
    }

    #[test]
    fn a_reading_that_was_given_up_ends_with_its_next_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "text").unwrap();
        let progress = Arc::default();
        let mut file = FileOfDisk::open(file.path(), &progress).unwrap();
        let mut byte = [0];
        assert_eq!(file.read(&mut byte).unwrap(), 1);
        progress.is_given_up.store(true, Ordering::Relaxed);
        let error = file.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
