//! `watershed completion`, `watershed man` and `watershed config-schema`: what is made from the
//! definition of the program.
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::aot::{self, generate};

use super::{Cli, reference};

/// Flags of `watershed completion`.
#[derive(Args, Debug)]
pub(super) struct Completion {
    /// The shell that is to complete the program's flags.
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// source <(watershed completion bash)
    Bash,
    /// watershed completion zsh > "${fpath[1]}/_watershed"
    Zsh,
    /// watershed completion fish > ~/.config/fish/completions/watershed.fish
    Fish,
}

impl Completion {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shell = match self.shell {
            Shell::Bash => aot::Shell::Bash,
            Shell::Zsh => aot::Shell::Zsh,
            Shell::Fish => aot::Shell::Fish,
        };
        // Into memory first: it panics where standard output is closed.
        let mut script = Vec::new();
        generate(shell, &mut Cli::command(), "watershed", &mut script);
        print(&script)
    }
}

/// Flags of `watershed man`.
#[derive(Args, Debug)]
pub(super) struct Man {
    /// Folder for watershed.1 and a page for each command; made if it is not there.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Man {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = &self.folder;
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
            .with_context(|| format!("cannot write manual pages to {} (DIR)", folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the schema of the configuration file.
pub(super) fn config_schema() -> anyhow::Result<ExitCode> {
    print(reference::config_schema().as_bytes())
}

fn print(text: &[u8]) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        written => written
            .map(|()| ExitCode::SUCCESS)
            .context("cannot write to standard output"),
    }
}
