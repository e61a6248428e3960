//! The command line.
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use self::command_line::{Command, LogFlags};
use self::output::print;
use crate::telemetry::{logs, queued_logs};

mod admin;
mod advise;
mod audit;
mod callers;
mod check;
mod checkpoint;
mod command_line;
mod completion;
pub(crate) mod config;
#[cfg(feature = "lab")]
mod demo;
mod duration;
pub mod failure;
#[cfg(feature = "lab")]
mod interrupt;
mod kubeconfig;
mod limits;
#[cfg(feature = "lab")]
mod load;
mod output;
#[cfg(feature = "lab")]
mod plot;
pub mod reference;
mod request_filter;
mod serve;
mod share;
#[cfg(feature = "lab")]
mod simulate;
mod tls;

pub use command_line::Cli;
pub use config::config_schema;

/// Log filter of long-running commands unless `--log-level` is given.
const LOG_LEVEL: &str = "info";
/// Time for what still runs at the end of the command.
const LAST_TASKS: Duration = Duration::from_secs(1);

/// Runs the command that the command line names, in a runtime of its own.
///
/// The runtime starts here so that all futures are compiled with the library. A program that
/// awaited them would compile them once more.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(run_command(cli));
    // A thread that reads from a disk that hangs, or waits for a credential plugin, may never end.
    runtime.shutdown_timeout(LAST_TASKS);
    result
}

async fn run_command(cli: Cli) -> anyhow::Result<ExitCode> {
    let LogFlags {
        log_format,
        log_level,
    } = cli.log;
    let level = log_level.as_deref();
    match cli.command {
        Command::Serve(command) => {
            let _last_lines = queued_logs(log_format, level.unwrap_or(LOG_LEVEL))?;
            command.run().await
        }
        Command::Check(command) => {
            logs(log_format, level.unwrap_or("off"))?;
            command.run().await
        }
        Command::Advise(command) => command.run(),
        Command::Kubeconfig(command) => command.run(),
        Command::Completion(command) => command.run(command_line::definition()),
        Command::Man(command) => command.run(command_line::definition()),
        Command::ConfigSchema => print(config_schema()).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "lab")]
        Command::Demo(args) => demo::run(args, log_format, level).await,
        #[cfg(feature = "lab")]
        Command::Load(command) => command.run(log_format, level).await,
        #[cfg(feature = "lab")]
        Command::Plot(command) => command.run(),
        #[cfg(feature = "lab")]
        Command::Simulate(args) => {
            logs(log_format, level.unwrap_or(LOG_LEVEL))?;
            simulate::run(args).await
        }
    }
}
