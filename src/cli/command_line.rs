//! The commands and the flags that all of them share.
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use super::{advise, check, completion, failure, kubeconfig, serve};
#[cfg(feature = "lab")]
use super::{load, plot};
use crate::telemetry::{LogFormat, check_filter};

/// Examples below the list of commands.
#[cfg(feature = "lab")]
const EXAMPLES: &str = "Examples:
  watershed demo --for 20s                            show the savings, without a cluster
  watershed advise --audit-log audit.log              show what it would save a cluster
  watershed check --kubeconfig proxy.kubeconfig       check that serve will work
  watershed serve --kubeconfig proxy.kubeconfig       run the proxy
  watershed kubeconfig --out watershed.kubeconfig     write a kubeconfig for clients

`watershed COMMAND --help` explains the flags of a command. The repository's docs/configuration.md
lists all flags, keys of the configuration file, metrics and exit codes.";
#[cfg(not(feature = "lab"))]
const EXAMPLES: &str = "Examples:
  watershed advise --audit-log audit.log              show what it would save a cluster
  watershed check --kubeconfig proxy.kubeconfig       check that serve will work
  watershed serve --kubeconfig proxy.kubeconfig       run the proxy
  watershed kubeconfig --out watershed.kubeconfig     write a kubeconfig for clients

`watershed COMMAND --help` explains the flags of a command. The repository's docs/configuration.md
lists all flags, keys of the configuration file, metrics and exit codes.";

/// A caching reverse proxy and watch multiplexer for the Kubernetes API.
#[derive(Debug, Parser)]
#[command(version, about, disable_help_subcommand = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    pub(super) log: LogFlags,
    #[command(subcommand)]
    pub(super) command: Command,
}

impl Cli {
    /// Parses the process's arguments. Prints help or the mistake in them otherwise, and returns
    /// the exit code.
    pub fn from_command_line() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            let words: Vec<_> = std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            failure::report_command_line(&error, &definition(), &words)
        })
    }
}

/// Flags of the logs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Logs")]
pub(super) struct LogFlags {
    /// Format of log lines.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "WATERSHED_LOG_FORMAT"
    )]
    pub(super) log_format: LogFormat,
    /// Level of the logs (error, warn, info, debug, trace), or a filter such as
    /// "info,watershed::upstream=debug". Default: info; off for check.
    #[cfg_attr(
        feature = "lab",
        doc = "`demo` logs warnings. `load` logs its rounds if it shows no progress bars."
    )]
    #[arg(
        long,
        global = true,
        env = "WATERSHED_LOG_LEVEL",
        value_name = "FILTER",
        value_parser = filter
    )]
    pub(super) log_level: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the proxy in front of an API server.
    Serve(Box<serve::ServeCommand>),
    /// Check the configuration, the certificates, the API server and the proxy's rights, without
    /// starting the proxy.
    Check(Box<check::CheckCommand>),
    /// Report what the proxy would answer from memory, from an audit log of kube-apiserver.
    Advise(advise::AdviseCommand),
    /// Print a kubeconfig for clients of the proxy.
    Kubeconfig(kubeconfig::KubeconfigCommand),
    /// Run the proxy against a simulated API server, and compare each client's state with the
    /// server's.
    #[cfg(feature = "lab")]
    Demo(watershed_lab::demo::DemoArgs),
    /// Put load on API servers, such as one with and without a proxy, and measure what clients
    /// get.
    #[cfg(feature = "lab")]
    Load(Box<load::LoadCommand>),
    /// Draw the cost of servers by number of watches, from several results of load.
    #[cfg(feature = "lab")]
    Plot(plot::PlotCommand),
    /// Run a simulated API server, for experiments.
    #[cfg(feature = "lab")]
    Simulate(watershed_lab::sim::simulate::SimulateArgs),
    /// Print a script for a shell that completes commands and flags.
    Completion(completion::CompletionCommand),
    /// Write manual pages.
    Man(completion::ManCommand),
    /// Print the JSON schema of the configuration file, for editors.
    ConfigSchema,
}

/// Returns clap's definition of the command line.
pub(super) fn definition() -> clap::Command {
    Cli::command()
}

/// Checks the filter while the command line is parsed, so that a mistake is one of the command
/// line.
fn filter(text: &str) -> Result<String, String> {
    check_filter(text)
        .map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}
