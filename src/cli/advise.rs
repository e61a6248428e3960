//! `watershed advise`: what a proxy would save, from kube-apiserver's audit log.
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use super::config;
use super::failure::InvalidUsage;
use super::output::{print, print_line};
use crate::advise::{LogInput, Replay, picture, table};
use crate::serve::CachingPolicy;

/// Flags of `watershed advise`.
#[derive(Args, Debug)]
pub(super) struct AdviseCommand {
    /// Audit logs of kube-apiserver: JSON lines of audit.k8s.io/v1, also compressed by gzip; - for
    /// standard input. Several files are read in the order in which their first events were
    /// written.
    #[arg(long = "audit-log", required = true, num_args = 1.., value_name = "FILE")]
    audit_logs: Vec<PathBuf>,
    /// Configuration file of the proxy (YAML), as for serve.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Node of the proxy, as for serve.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    node_name: Option<String>,
    /// Output format.
    #[arg(long, short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    output: AdviceFormat,
    /// Clients and types that a table or picture shows, those with most requests first.
    #[arg(long, default_value_t = 15, value_name = "N")]
    top: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum AdviceFormat {
    /// Text.
    #[default]
    Table,
    /// A JSON object, with all clients and types.
    Json,
    /// A picture.
    Svg,
}

impl AdviseCommand {
    /// Reads the logs and prints the report.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let preset = self.node_name.as_deref().map(CachingPolicy::of_node);
        let policy = match &self.config {
            Some(file) => config::read(file, preset.unwrap_or_default()),
            None => Ok(preset.unwrap_or_default()),
        };
        let mut replay = Replay::new(policy.map_err(InvalidUsage::from)?);
        let inputs = self.audit_logs.iter().map(|path| LogInput::of(path));
        replay.read(inputs.collect()).context("--audit-log")?;
        ensure!(
            !replay.has_only_damaged_lines(),
            "--audit-log: no line is an audit event of audit.k8s.io/v1: the log needs one event in \
             each line, not an EventList or indented JSON"
        );
        let report = replay.report();
        match self.output {
            AdviceFormat::Table => print(table(&report, self.top)),
            AdviceFormat::Json => print_line(serde_json::to_string_pretty(&report)?),
            AdviceFormat::Svg => print(picture(&report, self.top)),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
