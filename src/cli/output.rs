//! Writes to standard output and standard error, which may be closed or full, and to files.
use std::fmt::Display;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;

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

/// Writes a file that holds secrets: only its owner can read it, also if it was there before.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(bytes)
}
