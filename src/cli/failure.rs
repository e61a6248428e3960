//! Reports of failed commands: one line with the cause and the flag, and an exit code.
use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use watershed_connect::one_line;

use super::output::complain;

/// Exit codes with their meanings, for the documents.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (
        0,
        "The command succeeded. `serve`: SIGTERM or SIGINT ended it.",
    ),
    #[cfg(feature = "lab")]
    (
        1,
        "The command failed. The line on standard error names the cause, and the flag or right \
         to change. `check` found an error; `serve` received a second signal; in `demo` a \
         client's state differs from upstream's; `load` saw lost or duplicate events, or failed requests.",
    ),
    #[cfg(not(feature = "lab"))]
    (
        1,
        "The command failed. The line on standard error names the cause, and the flag or right \
         to change. `check` found an error; `serve` received a second signal.",
    ),
    (
        INVALID_USAGE,
        "The command line cannot be understood, or the configuration file is invalid. `check` reports \
         an invalid configuration file as an error that it found, and exits with 1.",
    ),
    #[cfg(feature = "lab")]
    (
        INTERRUPTED,
        "`load`, `demo` or `simulate` was interrupted twice. The objects that `load` wrote may \
         remain.",
    ),
];

/// A second interrupt ended the process at once: 128 and the number of SIGINT.
#[cfg(feature = "lab")]
pub(super) const INTERRUPTED: u8 = 130;

/// The command line or the configuration file is invalid.
const INVALID_USAGE: u8 = 2;

/// A mistake in the command line or the configuration file.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct InvalidUsage(#[from] anyhow::Error);

/// Reports the failure of a command on standard error.
pub fn report(error: &anyhow::Error) -> ExitCode {
    complain(one_line(error.as_ref()));
    if error.is::<InvalidUsage>() {
        ExitCode::from(INVALID_USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// Prints help and versions as clap renders them, and mistakes on one line.
pub(super) fn report_command_line(
    error: &clap::Error,
    definition: &Command,
    words: &[String],
) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard output is closed, nobody reads an error either.
        let _ = error.print();
        return if error.use_stderr() {
            ExitCode::from(INVALID_USAGE)
        } else {
            ExitCode::SUCCESS
        };
    }
    complain(mistake(error, definition, words));
    ExitCode::from(INVALID_USAGE)
}

/// Old names of flags, each with its new one.
const RENAMED: [(&str, &str); 3] = [
    ("--handshake-seconds", "--handshake-timeout-seconds"),
    ("--header-seconds", "--header-timeout-seconds"),
    ("--idle-seconds", "--idle-timeout-seconds"),
];

/// Returns clap's message on one line, with the command whose `--help` says more.
fn mistake(error: &clap::Error, definition: &Command, words: &[String]) -> String {
    let message = renamed(error).unwrap_or_else(|| on_one_line(&error.render().to_string()));
    let subcommand = words
        .iter()
        .skip(1)
        .find(|word| definition.find_subcommand(word).is_some())
        .map(|name| format!(" {name}"));
    format!(
        "{message} (see watershed{} --help)",
        subcommand.unwrap_or_default()
    )
}

/// Returns the message for a flag that has a new name.
fn renamed(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (old, new) = RENAMED.iter().find(|(old, _)| old == flag)?;
    Some(format!("{old} is now {new}"))
}

/// Returns clap's error without its usage and pointers to help.
fn on_one_line(text: &str) -> String {
    let mut message = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        match line.strip_prefix("tip: ") {
            _ if message.is_empty() => {
                message.push_str(line.strip_prefix("error: ").unwrap_or(line));
            }
            Some(tip) => message = format!("{message}; {tip}"),
            None => message = format!("{message} {line}"),
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use crate::cli::Cli;

    use super::*;

    #[test]
    fn mistakes_on_the_command_line_are_one_line_with_the_flag() {
        for (line, told) in [
            (
                "serve --listn a",
                "unexpected argument '--listn' found; a similar argument exists: '--listen' (see \
                 watershed serve --help)",
            ),
            (
                "serve --tls-cert a",
                "the following required arguments were not provided: --tls-key <FILE> (see \
                 watershed serve --help)",
            ),
            (
                "serv",
                "unrecognized subcommand 'serv'; a similar subcommand exists: 'serve' (see \
                 watershed --help)",
            ),
            (
                "--log-format xml kubeconfig",
                "invalid value 'xml' for '--log-format <LOG_FORMAT>' [possible values: text, json] \
                 (see watershed kubeconfig --help)",
            ),
            (
                "serve --idle-seconds 5",
                "--idle-seconds is now --idle-timeout-seconds (see watershed serve --help)",
            ),
            (
                "serve --admin-listen a",
                "invalid value 'a' for '--admin-listen <ADDR:PORT>': invalid socket address syntax \
                 (see watershed serve --help)",
            ),
        ] {
            let words: Vec<String> = std::iter::once("watershed")
                .chain(line.split(' '))
                .map(str::to_owned)
                .collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            assert_eq!(mistake(&error, &Cli::command(), &words), told);
        }
    }
}
