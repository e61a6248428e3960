//! The program: allocator, crypto provider and command line.
use std::process::ExitCode;

use watershed::cli::{self, Cli, failure};

/// Thousands of connections and long-lived buffers of all sizes: jemalloc keeps fragmentation low.
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let command_line = match Cli::from_command_line() {
        Ok(command_line) => command_line,
        Err(code) => return code,
    };
    watershed_connect::install_crypto();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("watershed: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli::run(command_line)) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
