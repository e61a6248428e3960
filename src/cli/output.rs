//! Writes to standard output and standard error, which may be closed or full, and to files.
use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// Prints a text on standard output.
pub(super) fn print(text: impl Display) -> anyhow::Result<()> {
    match write!(io::stdout(), "{text}") {
        // A reader such as `head` may close the pipe early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Prints a text and the end of its line on standard output.
pub(super) fn print_line(text: impl Display) -> anyhow::Result<()> {
    print(format_args!("{text}\n"))
}

/// Prints a line of the program on standard error. If that is closed or full, nobody reads it.
pub(super) fn complain(message: impl Display) {
    let _ = writeln!(io::stderr(), "watershed: {message}");
}

/// Writes a file that holds secrets, which only its owner can read. What was there before stays
/// until the new content is complete.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays one, and what it leads to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.metadata().is_ok_and(|there| !there.is_file()) {
        // A device or a pipe.
        let mut there = fs::OpenOptions::new().write(true).open(target)?;
        return there.write_all(bytes);
    }
    let folder = target.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::metadata(folder)?;
    let mut beside = NamedTempFile::new_in(folder).map_err(without_path)?;
    beside.write_all(bytes)?;
    beside.as_file().sync_all()?;
    beside.persist(target)?;
    Ok(())
}

/// Returns the error without the name of the temporary file, which nobody knows.
fn without_path(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.source());
    let number = inner.and_then(|inner| inner.downcast_ref::<io::Error>()?.raw_os_error());
    number.map_or(error, io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_private_file_names_no_temporary_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nowhere").join("file");
        let error = write_private(&path, b"").unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }
}
