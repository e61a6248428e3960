//! The program: allocator, crypto provider, command line. Everything else is the library's.
use std::process::ExitCode;

use watershed::cli::{Cli, trouble};

/// Thousands of connections and long-lived buffers of all sizes: jemalloc keeps fragmentation low.
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::from_command_line() {
        Ok(cli) => cli,
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
    match runtime.block_on(cli.run()) {
        Ok(code) => code,
        Err(error) => trouble::tell(&error),
    }
}
