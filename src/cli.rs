//! The command line.
mod access;
mod admin;
mod audit;
mod check;
mod completion;
mod config;
#[cfg(feature = "lab")]
mod demo;
mod kubeconfig;
mod limits;
#[cfg(feature = "lab")]
mod load;
#[cfg(feature = "lab")]
mod plot;
pub mod reference;
mod serve;
pub mod trouble;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::telemetry::{LogFormat, check_filter, logs};

/// What is logged unless asked for otherwise.
const LOG_LEVEL: &str = "info";

/// The first steps of a newcomer, below the list of commands.
#[cfg(feature = "lab")]
const EXAMPLES: &str = "Examples:
  watershed demo --for 20s                          what it saves, without any cluster
  watershed check --kubeconfig proxy.kubeconfig     would it work in front of this one?
  watershed serve --kubeconfig proxy.kubeconfig     it does
  watershed kubeconfig > watershed.kubeconfig       how clients find it

docs/configuration.md has every flag, key, metric and exit code.";
#[cfg(not(feature = "lab"))]
const EXAMPLES: &str = "Examples:
  watershed check --kubeconfig proxy.kubeconfig     would it work in front of this one?
  watershed serve --kubeconfig proxy.kubeconfig     it does
  watershed kubeconfig > watershed.kubeconfig       how clients find it

docs/configuration.md has every flag, key, metric and exit code.";

/// A caching reverse proxy and watch multiplexer for the Kubernetes API.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    log: Log,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Logs")]
struct Log {
    /// How log lines look.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "WATERSHED_LOG_FORMAT"
    )]
    log_format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace) or a filter such as
    /// "info,watershed::upstream=debug". Without it: info, warn for the demo, and for the load what
    /// each round brought, where no bars show it.
    #[arg(long, global = true, env = "WATERSHED_LOG_LEVEL", value_name = "FILTER", value_parser = filter)]
    log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy in front of an API server.
    Serve(Box<serve::Serve>),
    /// Say what would keep the proxy from working with these flags, without starting it: the
    /// configuration, certificates, the API server and the proxy's rights there.
    Check(Box<check::Check>),
    /// Print a kubeconfig that leads through the proxy.
    Kubeconfig(kubeconfig::Kubeconfig),
    /// Show the main job on a simulated API server, with proof that every client sees the truth.
    #[cfg(feature = "lab")]
    Demo(watershed_lab::demo::DemoArgs),
    /// Put load on any API server and measure what its clients get; compare servers, such as one
    /// with and without a proxy.
    #[cfg(feature = "lab")]
    Load(Box<load::LoadCommand>),
    /// Draw what servers cost against the number of watches, from several results of load.
    #[cfg(feature = "lab")]
    Plot(plot::PlotCommand),
    /// Run a simulated API server by itself, for experiments.
    #[cfg(feature = "lab")]
    Simulate(watershed_lab::sim::simulate::SimulateArgs),
    /// Print a script that lets a shell complete commands and flags.
    Completion(completion::Completion),
    /// Write manual pages.
    Man(completion::Man),
    /// Print the JSON schema of the configuration file, for editors.
    ConfigSchema,
}

/// Refused here rather than when the logs begin.
fn filter(text: &str) -> Result<String, String> {
    check_filter(text)
        .map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

impl Cli {
    /// What the process was asked for. Where that is not understood it is told, and the exit code
    /// is given back.
    pub fn from_command_line() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            let words: Vec<_> = std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            trouble::of_command_line(&error, &words)
        })
    }

    /// Runs what was asked for.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let Log {
            log_format,
            log_level,
        } = self.log;
        let level = log_level.as_deref();
        match self.command {
            Command::Serve(serve) => {
                logs(log_format, level.unwrap_or(LOG_LEVEL))?;
                serve.run().await
            }
            Command::Check(check) => {
                logs(log_format, level.unwrap_or("off"))?;
                check.run().await
            }
            Command::Kubeconfig(command) => command.run(),
            Command::Completion(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::ConfigSchema => completion::config_schema(),
            #[cfg(feature = "lab")]
            Command::Demo(args) => demo::run(args, log_format, level).await,
            #[cfg(feature = "lab")]
            Command::Load(load) => load.run(log_format, level).await,
            #[cfg(feature = "lab")]
            Command::Plot(plot) => plot.run(),
            #[cfg(feature = "lab")]
            Command::Simulate(args) => {
                logs(log_format, level.unwrap_or(LOG_LEVEL))?;
                watershed_lab::sim::simulate::run(args).await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
