//! A log file that is rotated when it is full. Rotated files have the names that kube-apiserver
//! gives them: `audit-2026-01-02T15-04-05.000.log`.
//!
//! Source of names and meanings: the library that kube-apiserver writes with
//! (gopkg.in/natefinch/lumberjack.v2). Crates that rotate files use other names, or rotate by time
//! only.
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::config::AuditLogConfig;
use super::metrics;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const MILLISECOND: SignedDuration = SignedDuration::from_millis(1);
/// Pause after a rotation that failed.
const RETRY_AFTER_FAILURE: SignedDuration = SignedDuration::from_mins(1);

/// A rotated file of whole lines.
pub(super) struct RotatedFile {
    config: AuditLogConfig,
    /// `None` after a failure. The next write opens the file again.
    open: Option<OpenLogFile>,
    /// The file may end in the middle of a line.
    is_torn: bool,
    /// The moment of the last rotation, if it failed. The file is written to beyond its limit.
    rotation_failed: Option<Timestamp>,
}

impl RotatedFile {
    /// Creates the file and its folder if they are missing, and removes rotated files that are too
    /// old.
    pub(super) fn open(config: AuditLogConfig, now: Timestamp) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(folder(&config.path))?;
        let open = OpenLogFile::new(&config.path)?;
        // The series exists from the start.
        metrics::ROTATIONS_FAILED.with([]).increment(0);
        let file = Self {
            config,
            open: Some(open),
            is_torn: false,
            rotation_failed: None,
        };
        file.remove_old(now);
        Ok(file)
    }

    /// Returns the number of bytes that fit into the file before it is rotated.
    pub(super) fn bytes_left(&self) -> u64 {
        let is_limited = self.config.max_size > 0 && self.rotation_failed.is_none();
        match self.open.as_ref().and_then(|open| open.size) {
            Some(size) if is_limited => self.config.max_size.saturating_sub(size),
            _ => u64::MAX,
        }
    }

    /// Appends whole lines. After an error the file contains none of them.
    pub(super) fn append(&mut self, lines: &[u8], now: Timestamp) -> io::Result<()> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => OpenLogFile::new(&self.config.path)?,
        };
        if self.must_rotate(&open, lines, now) {
            drop(open);
            let rotated = self.rotate(now);
            // Opened anew after a failure, too: the file may be gone.
            open = OpenLogFile::new(&self.config.path)?;
            self.note_rotation(rotated, now);
        }
        match open.write(lines, self.is_torn) {
            Ok(()) => {
                self.is_torn = false;
                self.open = Some(open);
                Ok(())
            }
            Err(error) => {
                // Half a line would make the next one unreadable, too.
                self.is_torn = !open.undo();
                Err(error)
            }
        }
    }

    fn must_rotate(&self, open: &OpenLogFile, lines: &[u8], now: Timestamp) -> bool {
        let limit = self.config.max_size;
        let is_paused = self
            .rotation_failed
            // The clock may have been set back.
            .is_some_and(|at| now.duration_since(at).abs() < RETRY_AFTER_FAILURE);
        limit > 0
            && !is_paused
            && open
                .size
                .is_some_and(|size| size > 0 && size + lines.len() as u64 > limit)
    }

    fn rotate(&self, now: Timestamp) -> io::Result<()> {
        let mut at = now;
        loop {
            let path = self.rotated_path(at);
            if !path.try_exists()? {
                return fs::rename(&self.config.path, path);
            }
            at += MILLISECOND;
        }
    }

    /// Notes the end of a rotation. One that fails, as in a folder that cannot be written, costs no
    /// events.
    fn note_rotation(&mut self, rotated: io::Result<()>, now: Timestamp) {
        self.rotation_failed = rotated.is_err().then_some(now);
        if let Err(error) = rotated {
            metrics::ROTATIONS_FAILED.with([]).increment(1);
            tracing::warn!(
                path = %self.config.path.display(),
                %error,
                advice = "give --audit-log-path a file in a folder that can be written, not a mount of its own",
                "cannot rotate the audit log, which grows beyond its limit"
            );
        }
        self.remove_old(now);
    }

    fn rotated_path(&self, at: Timestamp) -> PathBuf {
        let (start, end) = name_parts(&self.config.path);
        let at = at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H-%M-%S%.3f");
        folder(&self.config.path).join(format!("{start}-{at}{end}"))
    }

    /// Removes rotated files that are too old or too many. A file that cannot be removed now is
    /// tried again at the next rotation.
    fn remove_old(&self, now: Timestamp) {
        let kept = match self.config.max_backups {
            0 => usize::MAX,
            limit => limit,
        };
        let oldest = match self.config.max_age {
            0 => None,
            days => now
                .checked_sub(SignedDuration::from_hours(i64::from(days) * 24))
                .ok(),
        };
        for (index, (at, path)) in self.rotated_files().into_iter().enumerate() {
            let is_old = index >= kept || oldest.is_some_and(|oldest| at < oldest);
            if is_old && let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove an old audit log");
            }
        }
    }

    /// Returns the rotated files and the times of their rotation, newest first.
    fn rotated_files(&self) -> Vec<(Timestamp, PathBuf)> {
        let Ok(entries) = fs::read_dir(folder(&self.config.path)) else {
            return Vec::new();
        };
        let (start, end) = name_parts(&self.config.path);
        let mut files: Vec<_> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let at = rotation_time(entry.file_name().to_str()?, &start, &end)?;
                Some((at, entry.path()))
            })
            .collect();
        files.sort();
        files.reverse();
        files
    }
}

struct OpenLogFile {
    file: File,
    /// `None` for devices and pipes, which are not rotated.
    size: Option<u64>,
}

impl OpenLogFile {
    fn new(path: &Path) -> io::Result<Self> {
        // Opened for reading, too. Otherwise opening a pipe would wait for its reader.
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(FILE_MODE)
            .open(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            file,
            size: metadata.is_file().then_some(metadata.len()),
        })
    }

    /// Writes lines. Ends a torn line first.
    fn write(&mut self, lines: &[u8], is_torn: bool) -> io::Result<()> {
        if is_torn {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(lines)?;
        let added = lines.len() as u64 + u64::from(is_torn);
        self.size = self.size.map(|size| size + added);
        Ok(())
    }

    /// Removes what a failed write has written. Returns `true` if that succeeded.
    fn undo(&self) -> bool {
        self.size
            .is_some_and(|size| self.file.set_len(size).is_ok())
    }
}

/// Returns the folder of a file.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn rotation_time(name: &str, start: &str, end: &str) -> Option<Timestamp> {
    let text = name
        .strip_prefix(start)?
        .strip_prefix('-')?
        .strip_suffix(end)?;
    let time = DateTime::strptime("%Y-%m-%dT%H-%M-%S%.f", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Returns the file's name without its extension, and the extension with the dot.
fn name_parts(path: &Path) -> (String, String) {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    match name.rfind('.') {
        Some(dot) => (name[..dot].to_owned(), name[dot..].to_owned()),
        None => (name, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tempfile::TempDir;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn config(folder: &TempDir, max_size: u64) -> AuditLogConfig {
        AuditLogConfig {
            max_age: 0,
            max_backups: 0,
            max_size,
            path: folder.path().join("log/audit.log"),
        }
    }

    /// Returns the contents of the files by name.
    fn files(config: &AuditLogConfig) -> BTreeMap<String, String> {
        let entries = fs::read_dir(folder(&config.path))
            .unwrap()
            .map(Result::unwrap);
        let text = |entry: &fs::DirEntry| fs::read_to_string(entry.path()).unwrap();
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), text(&entry)))
            .collect()
    }

    fn names(config: &AuditLogConfig) -> Vec<String> {
        files(config).into_keys().collect()
    }

    #[test]
    fn a_full_file_is_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, 10);
        let mut log = RotatedFile::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        log.append(b"1234\n", at("2026-01-02T03:04:05Z")).unwrap();
        assert_eq!(log.bytes_left(), 5);
        log.append(b"6789\n", at("2026-01-02T03:04:05Z")).unwrap();
        assert_eq!(names(&config), ["audit.log"], "a file may be exactly full");
        log.append(b"a\n", at("2026-01-02T03:04:05.678Z")).unwrap();
        // A block larger than a file gets a file of its own.
        log.append(b"more than fits\n", at("2026-01-02T03:04:05.678Z"))
            .unwrap();
        log.append(b"b\n", at("2026-01-02T03:04:06Z")).unwrap();
        let wanted = [
            ("audit-2026-01-02T03-04-05.678.log", "1234\n6789\n"),
            ("audit-2026-01-02T03-04-05.679.log", "a\n"),
            ("audit-2026-01-02T03-04-06.000.log", "more than fits\n"),
            ("audit.log", "b\n"),
        ];
        let wanted: BTreeMap<_, _> = wanted
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into();
        assert_eq!(files(&config), wanted);
        // Existing contents count after a restart.
        drop(log);
        let mut log = RotatedFile::open(config.clone(), at("2026-01-02T03:04:07Z")).unwrap();
        assert_eq!(log.bytes_left(), 8);
        log.append(b"123456789\n", at("2026-01-02T03:04:07Z"))
            .unwrap();
        assert_eq!(files(&config)["audit-2026-01-02T03-04-07.000.log"], "b\n");
    }

    #[test]
    fn no_file_is_rotated_while_rotation_is_disabled() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, 0);
        let mut log = RotatedFile::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        for _ in 0..100 {
            log.append(&[b'a'; 1000], Timestamp::UNIX_EPOCH).unwrap();
        }
        assert_eq!(
            (names(&config), log.bytes_left()),
            (vec!["audit.log".to_owned()], u64::MAX)
        );
    }

    #[test]
    fn rotated_files_are_kept_up_to_a_number_and_an_age() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder, 1);
        config.max_backups = 2;
        let mut log = RotatedFile::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        for other in [
            "audit-notes.log",
            "other-2026-01-01T00-00-00.000.log",
            "audit-2026-01-01T00-00-00.000.txt",
        ] {
            fs::write(config.path.with_file_name(other), "").unwrap();
        }
        for day in 1..=4 {
            log.append(b"x\n", at(&format!("2026-01-0{day}T00:00:00Z")))
                .unwrap();
        }
        let others = [
            "audit-2026-01-01T00-00-00.000.txt",
            "audit-notes.log",
            "audit.log",
            "other-2026-01-01T00-00-00.000.log",
        ];
        let with = |aside: &[&str]| {
            let mut all: Vec<_> = aside
                .iter()
                .chain(&others)
                .map(|name| (*name).to_owned())
                .collect();
            all.sort();
            all
        };
        assert_eq!(
            names(&config),
            with(&[
                "audit-2026-01-03T00-00-00.000.log",
                "audit-2026-01-04T00-00-00.000.log"
            ])
        );
        config.max_age = 1;
        RotatedFile::open(config.clone(), at("2026-01-04T12:00:00Z")).unwrap();
        assert_eq!(names(&config), with(&["audit-2026-01-04T00-00-00.000.log"]));
        RotatedFile::open(config.clone(), at("2026-01-05T00:00:01Z")).unwrap();
        assert_eq!(names(&config), with(&[]));
    }

    #[test]
    fn a_full_device_is_an_error_for_each_write() {
        let config = AuditLogConfig {
            max_size: 10,
            ..AuditLogConfig::new("/dev/full".into())
        };
        let mut log = RotatedFile::open(config, Timestamp::UNIX_EPOCH).unwrap();
        for _ in 0..3 {
            let error = log
                .append(b"too much for any file\n", Timestamp::UNIX_EPOCH)
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }

    #[test]
    fn a_file_that_cannot_be_rotated_is_written_to_beyond_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder, 4);
        // With the time of its rotation, the name is longer than names may be.
        config.path.set_file_name("a".repeat(240));
        let mut log = RotatedFile::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        for line in [b"one\n", b"two\n", b"six\n"] {
            log.append(line, Timestamp::UNIX_EPOCH).unwrap();
        }
        let text = || fs::read_to_string(&config.path).unwrap();
        assert_eq!(
            (text().as_str(), log.bytes_left()),
            ("one\ntwo\nsix\n", u64::MAX)
        );
        // It is tried again after a while, and goes on from there.
        log.config.path.set_file_name("audit.log");
        fs::rename(&config.path, &log.config.path).unwrap();
        log.append(b"ten\n", Timestamp::UNIX_EPOCH + RETRY_AFTER_FAILURE)
            .unwrap();
        let wanted = [
            ("audit-1970-01-01T00-01-00.000.log", "one\ntwo\nsix\n"),
            ("audit.log", "ten\n"),
        ];
        assert_eq!(
            files(&config)
                .iter()
                .map(|(name, text)| (&**name, &**text))
                .collect::<Vec<_>>(),
            wanted
        );
        assert_eq!(log.bytes_left(), 0);
    }

    #[test]
    fn a_missing_folder_is_an_error_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, 4);
        let mut log = RotatedFile::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        log.append(b"one\n", Timestamp::UNIX_EPOCH).unwrap();
        let log_folder = config.path.parent().unwrap();
        fs::remove_dir_all(log_folder).unwrap();
        log.append(b"two\n", Timestamp::UNIX_EPOCH).unwrap_err();
        log.append(b"three\n", Timestamp::UNIX_EPOCH).unwrap_err();
        fs::create_dir(log_folder).unwrap();
        log.append(b"four\n", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(fs::read_to_string(&config.path).unwrap(), "four\n");
    }

    #[test]
    fn file_names_are_split_like_upstreams() {
        for (path, wanted) in [
            ("a/audit.log", ("audit", ".log")),
            ("audit", ("audit", "")),
            ("a.b.c", ("a.b", ".c")),
        ] {
            assert_eq!(
                name_parts(Path::new(path)),
                (wanted.0.to_owned(), wanted.1.to_owned())
            );
        }
    }
}
