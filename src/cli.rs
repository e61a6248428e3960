//! The command line.
mod access;
mod admin;
mod audit;
mod config;
mod demo;
mod kubeconfig;
mod limits;
mod load;
mod plot;
mod serve;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::telemetry::{LogFormat, logs};

/// What is logged unless asked for otherwise.
const LOG_LEVEL: &str = "info";

/// A caching reverse proxy and watch multiplexer for the Kubernetes API.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    log: Log,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Debug)]
struct Log {
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value_t, env = "WATERSHED_LOG_FORMAT")]
    log_format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace) or a filter such as "info,watershed::upstream=debug".
    /// Without it: info, warn for the demo, and for the load what each round brought, where no bars show it.
    #[arg(long, global = true, env = "WATERSHED_LOG_LEVEL", value_name = "FILTER")]
    log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy in front of an API server.
    Serve(Box<serve::Serve>),
    /// Print a kubeconfig that leads through the proxy.
    Kubeconfig(kubeconfig::Kubeconfig),
    /// Show the main job on a simulated API server, with proof that every client sees the truth.
    Demo(crate::demo::Args),
    /// Put load on any API server and measure what its clients get; compare servers, such as one with and without a proxy.
    Load(Box<load::Load>),
    /// Draw what servers cost against the number of watches, from several results of load.
    Plot(plot::Plot),
    /// Run a simulated API server by itself, for experiments.
    Simulate(crate::sim::simulate::Args),
}

impl Cli {
    /// Runs what was asked for.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let Log { log_format, log_level } = self.log;
        let level = log_level.as_deref();
        match self.command {
            Command::Serve(serve) => {
                logs(log_format, level.unwrap_or(LOG_LEVEL))?;
                serve.run().await
            }
            Command::Kubeconfig(command) => command.run(),
            Command::Demo(args) => demo::run(args, log_format, level).await,
            Command::Load(load) => load.run(log_format, level).await,
            Command::Plot(plot) => plot.run(),
            Command::Simulate(args) => {
                logs(log_format, level.unwrap_or(LOG_LEVEL))?;
                crate::sim::simulate::run(args).await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
