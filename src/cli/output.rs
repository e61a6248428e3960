//! Writes to standard output and standard error, which may be closed or full.
use std::fmt::Display;
use std::io::{self, Write as _};

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
