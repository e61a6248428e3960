//! Writes to standard output, which may be closed or full.
use std::fmt::Display;
use std::io::{self, Write as _};

use anyhow::Context as _;

/// Prints a text and the end of its line.
pub(crate) fn print_line(text: impl Display) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        // A reader such as `head` may close the pipe early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
