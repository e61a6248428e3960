//! `watershed plot`: draws several results of `watershed load` as one picture.
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use watershed_lab::plot::plot_by_watches;

use super::output::print_line;

/// Flags of `watershed plot`.
#[derive(Args, Debug)]
pub(super) struct PlotCommand {
    /// Files result.json of `watershed load --out`, each with another number of watches.
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// File for the picture (SVG).
    #[arg(long, default_value = "clients.svg", value_name = "FILE")]
    out: PathBuf,
}

impl PlotCommand {
    /// Draws the picture and prints its path.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let texts: Vec<_> = self
            .results
            .iter()
            .map(read)
            .collect::<anyhow::Result<_>>()?;
        let picture = plot_by_watches(&texts)?;
        std::fs::write(&self.out, picture)
            .with_context(|| format!("cannot write {} (--out)", self.out.display()))?;
        print_line(self.out.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &PathBuf) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
