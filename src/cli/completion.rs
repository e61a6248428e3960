//! `watershed completion` and `watershed man`: output generated from the definition of the command
//! line.
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, ValueEnum};
use clap_complete::aot::{self, generate};

use super::output::print;

/// Flags of `watershed completion`.
#[derive(Args, Debug)]
pub(super) struct CompletionCommand {
    /// Shell that runs the script.
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

impl CompletionCommand {
    /// Prints the script.
    pub(super) fn run(self, mut definition: Command) -> anyhow::Result<ExitCode> {
        let shell = match self.shell {
            Shell::Bash => aot::Shell::Bash,
            Shell::Zsh => aot::Shell::Zsh,
            Shell::Fish => aot::Shell::Fish,
        };
        // `generate` panics if it cannot write, for example when standard output is closed.
        let mut script = Vec::new();
        generate(shell, &mut definition, "watershed", &mut script);
        print(String::from_utf8(script)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Flags of `watershed man`.
#[derive(Args, Debug)]
pub(super) struct ManCommand {
    /// Folder for watershed.1 and a page for each command. It is created if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl ManCommand {
    /// Writes the pages.
    pub(super) fn run(self, definition: Command) -> anyhow::Result<ExitCode> {
        let folder = &self.folder;
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(definition, folder))
            .with_context(|| format!("cannot write manual pages to {} (DIR)", folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
