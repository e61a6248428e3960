//! A file that is set aside when it is full, under the names that kube-apiserver gives:
//! `audit-2026-01-02T15-04-05.000.log`.
//!
//! Source of names and meanings: the library that kube-apiserver writes with
//! (gopkg.in/natefinch/lumberjack.v2). The crates that rotate files use other names, or keep to
//! times instead of sizes.
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::AuditLogConfig;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const MILLISECOND: SignedDuration = SignedDuration::from_millis(1);

/// A file for whole lines.
pub(super) struct Rotated {
    config: AuditLogConfig,
    /// Gone after a failure; then it is opened anew.
    open: Option<Open>,
    /// A part of a line may stand at the end.
    torn: bool,
}

struct Open {
    file: File,
    /// Of a file that can be full; others (devices, pipes) are not rotated.
    size: Option<u64>,
}

impl Rotated {
    /// Makes the file and its folder, if they are not there, and removes what is too old.
    pub(super) fn open(config: AuditLogConfig, now: Timestamp) -> io::Result<Self> {
        let folder = folder(&config.path);
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(folder)?;
        let open = open(&config.path)?;
        let this = Self {
            config,
            open: Some(open),
            torn: false,
        };
        this.clean(now);
        Ok(this)
    }

    /// How many more bytes fit into the file before it is set aside.
    pub(super) fn room(&self) -> u64 {
        match self.open.as_ref().and_then(|open| open.size) {
            Some(size) if self.config.max_size > 0 => self.config.max_size.saturating_sub(size),
            _ => u64::MAX,
        }
    }

    /// Adds whole lines. After an error none of them is there.
    pub(super) fn append(&mut self, lines: &[u8], now: Timestamp) -> io::Result<()> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => open(&self.config.path)?,
        };
        let limit = self.config.max_size;
        if limit > 0
            && open
                .size
                .is_some_and(|size| size > 0 && size + lines.len() as u64 > limit)
        {
            drop(open);
            self.set_aside(now)?;
            open = self::open(&self.config.path)?;
            self.clean(now);
        }
        let written = if self.torn {
            open.file.write_all(b"\n")
        } else {
            Ok(())
        };
        match written.and_then(|()| open.file.write_all(lines)) {
            Ok(()) => {
                let added = lines.len() as u64 + u64::from(self.torn);
                self.torn = false;
                open.size = open.size.map(|size| size + added);
                self.open = Some(open);
                Ok(())
            }
            Err(error) => {
                // Half a line would spoil the next one.
                self.torn = open
                    .size
                    .is_none_or(|size| open.file.set_len(size).is_err());
                Err(error)
            }
        }
    }

    fn set_aside(&self, now: Timestamp) -> io::Result<()> {
        let mut at = now;
        loop {
            let aside = self.aside(at);
            if !aside.try_exists()? {
                return fs::rename(&self.config.path, aside);
            }
            at += MILLISECOND;
        }
    }

    fn aside(&self, at: Timestamp) -> PathBuf {
        let (start, end) = name(&self.config.path);
        let at = at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H-%M-%S%.3f");
        folder(&self.config.path).join(format!("{start}-{at}{end}"))
    }

    /// Removes what was set aside too long ago, or is too much. What cannot be removed is tried
    /// again with the next file.
    fn clean(&self, now: Timestamp) {
        let (start, end) = name(&self.config.path);
        let Ok(entries) = fs::read_dir(folder(&self.config.path)) else {
            return;
        };
        let mut aside: Vec<(Timestamp, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name();
                let at = name
                    .to_str()?
                    .strip_prefix(&start)?
                    .strip_prefix('-')?
                    .strip_suffix(&end)?;
                let at = DateTime::strptime("%Y-%m-%dT%H-%M-%S%.f", at).ok()?;
                Some((at.to_zoned(TimeZone::UTC).ok()?.timestamp(), entry.path()))
            })
            .collect();
        aside.sort();
        aside.reverse();
        let kept = match self.config.max_backups {
            0 => usize::MAX,
            kept => kept,
        };
        let oldest = match self.config.max_age {
            0 => None,
            days => now
                .checked_sub(SignedDuration::from_hours(i64::from(days) * 24))
                .ok(),
        };
        for (index, (at, path)) in aside.into_iter().enumerate() {
            let old = index >= kept || oldest.is_some_and(|oldest| at < oldest);
            if old && let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "an old audit log cannot be removed");
            }
        }
    }
}

fn open(path: &Path) -> io::Result<Open> {
    // Open for reading too, or a pipe would be waited for.
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(path)?;
    let about = file.metadata()?;
    Ok(Open {
        file,
        size: about.is_file().then_some(about.len()),
    })
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// The file's name without its ending, and its ending with the dot.
fn name(path: &Path) -> (String, String) {
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

    /// Names and what is in them.
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
    fn a_full_file_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, 10);
        let mut log = Rotated::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        log.append(b"1234\n", at("2026-01-02T03:04:05Z")).unwrap();
        assert_eq!(log.room(), 5);
        log.append(b"6789\n", at("2026-01-02T03:04:05Z")).unwrap();
        assert_eq!(
            names(&config),
            ["audit.log"],
            "it is full, and not more than full"
        );
        log.append(b"a\n", at("2026-01-02T03:04:05.678Z")).unwrap();
        // More than a file takes is a file of its own.
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
        // What was there is counted after a restart.
        drop(log);
        let mut log = Rotated::open(config.clone(), at("2026-01-02T03:04:07Z")).unwrap();
        assert_eq!(log.room(), 8);
        log.append(b"123456789\n", at("2026-01-02T03:04:07Z"))
            .unwrap();
        assert_eq!(files(&config)["audit-2026-01-02T03-04-07.000.log"], "b\n");
    }

    #[test]
    fn nothing_is_set_aside_where_that_is_switched_off() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, 0);
        let mut log = Rotated::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
        for _ in 0..100 {
            log.append(&[b'a'; 1000], Timestamp::UNIX_EPOCH).unwrap();
        }
        assert_eq!(
            (names(&config), log.room()),
            (vec!["audit.log".to_owned()], u64::MAX)
        );
    }

    #[test]
    fn only_so_many_and_not_too_old_ones_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder, 1);
        config.max_backups = 2;
        let mut log = Rotated::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
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
        Rotated::open(config.clone(), at("2026-01-04T12:00:00Z")).unwrap();
        assert_eq!(names(&config), with(&["audit-2026-01-04T00-00-00.000.log"]));
        Rotated::open(config.clone(), at("2026-01-05T00:00:01Z")).unwrap();
        assert_eq!(names(&config), with(&[]));
    }

    #[test]
    fn a_device_that_is_full_is_an_error_and_nothing_more() {
        let config = AuditLogConfig {
            max_size: 10,
            ..AuditLogConfig::new("/dev/full".into())
        };
        let mut log = Rotated::open(config, Timestamp::UNIX_EPOCH).unwrap();
        for _ in 0..3 {
            let error = log
                .append(b"too much for any file\n", Timestamp::UNIX_EPOCH)
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }

    #[test]
    fn a_folder_that_went_away_is_an_error_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, 4);
        let mut log = Rotated::open(config.clone(), Timestamp::UNIX_EPOCH).unwrap();
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
    fn names_end_where_upstreams_do() {
        for (path, wanted) in [
            ("a/audit.log", ("audit", ".log")),
            ("audit", ("audit", "")),
            ("a.b.c", ("a.b", ".c")),
        ] {
            assert_eq!(
                name(Path::new(path)),
                (wanted.0.to_owned(), wanted.1.to_owned())
            );
        }
    }
}
