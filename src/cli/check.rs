//! `watershed check`: what is wrong, before `serve` is started or while it runs.
#![expect(
    clippy::print_stdout,
    reason = "the findings are the command's product, and standard output is where they belong"
)]
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::serve::Serve;
use crate::app::check::{Finding, Level, check};
use watershed_connect::one_line;

/// Flags of `watershed check`.
#[derive(Args, Debug)]
pub(super) struct Check {
    /// How findings are written.
    #[arg(long, short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One line for each finding.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl Check {
    /// Fails if there is an error, and not for warnings.
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
            Output::Json => println!("{:#}", json!({ "ok": good, "findings": findings })),
            Output::Text => {
                for Finding {
                    level,
                    subject,
                    message,
                } in &findings
                {
                    println!("{level:<8} {subject:<12} {message}");
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
