//! The program: allocator, crypto provider and command line.
use std::process::ExitCode;

use watershed::app;
use watershed::cli::{self, Cli, failure};

/// Thousands of connections and long-lived buffers of all sizes: jemalloc keeps fragmentation low.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let command_line = match Cli::from_command_line() {
        Ok(command_line) => command_line,
        Err(code) => return code,
    };
    watershed_connect::install_crypto();
    app::raise_file_limit();
    cli::run(command_line).unwrap_or_else(|error| failure::report(&error))
}
