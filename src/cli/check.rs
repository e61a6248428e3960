//! `watershed check`: finds mistakes before `serve` starts, or while it runs.
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;
use watershed_connect::one_line;

use super::output::print_line;
use super::serve::ServeCommand;
use crate::app::check::{Finding, Level, check};

/// Flags of `watershed check`.
#[derive(Args, Debug)]
pub(super) struct CheckCommand {
    /// Output format.
    #[arg(long, short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    output: CheckFormat,
    #[command(flatten)]
    serve: ServeCommand,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// One line for each finding.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl CheckCommand {
    /// Prints the findings. Fails for errors, not for warnings.
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let findings = match self.serve.config() {
            Ok(config) => check(&config).await,
            Err(error) => {
                vec![Finding {
                    level: Level::Error,
                    subject: "configuration",
                    message: one_line(error.as_ref()),
                }]
            }
        };
        let good = findings.iter().all(|finding| finding.level != Level::Error);
        match self.output {
            CheckFormat::Json => {
                let report = json!({ "ok": good, "findings": findings });
                print_line(format_args!("{report:#}"))?;
            }
            CheckFormat::Text => {
                for Finding {
                    level,
                    subject,
                    message,
                } in &findings
                {
                    print_line(format_args!("{level:<8} {subject:<12} {message}"))?;
                }
            }
        }
        Ok(if good {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
