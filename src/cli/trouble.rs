//! What is said when a command fails: one line that names the cause and the knob, and an exit code.
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;
use watershed_connect::one_line;

/// What the exit codes mean, for the documents.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (
        0,
        "It did what it was asked for. `serve`: it was ended by SIGTERM or SIGINT.",
    ),
    (
        1,
        "It failed: the line on standard error says of what, and which flag or right would help. `check` found an error, \
         `demo` a client with another state than upstream, `load` events that were lost or doubled; `serve` was asked to end twice.",
    ),
    (
        2,
        "The command line or the configuration file is not understood. The same again will not help.",
    ),
    (130, "`load` was interrupted twice, and left what it wrote."),
];

/// The command line was not understood, or the configuration file.
const MISUSED: u8 = 2;

/// The operator asked for something that is not understood or cannot be.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Misused(#[from] anyhow::Error);

/// Says on standard error why a command failed.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    eprintln!("watershed: {}", one_line(error.as_ref()));
    if error.is::<Misused>() {
        ExitCode::from(MISUSED)
    } else {
        ExitCode::FAILURE
    }
}

/// Help and versions are printed as they are, mistakes as a line.
pub(super) fn of_command_line(error: &clap::Error, words: &[String]) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A closed standard output is nothing to complain about to anybody.
        let _ = error.print();
        return if error.use_stderr() {
            ExitCode::from(MISUSED)
        } else {
            ExitCode::SUCCESS
        };
    }
    eprintln!("watershed: {}", mistake(error, words));
    ExitCode::from(MISUSED)
}

/// Flags that have a new name, with it.
const RENAMED: [(&str, &str); 3] = [
    ("--handshake-seconds", "--handshake-timeout-seconds"),
    ("--header-seconds", "--header-timeout-seconds"),
    ("--idle-seconds", "--idle-timeout-seconds"),
];

/// Returns clap's message on one line, with the command whose `--help` says more.
fn mistake(error: &clap::Error, words: &[String]) -> String {
    let message = renamed(error).unwrap_or_else(|| on_one_line(&error.render().to_string()));
    let command = Cli::command();
    let known = |word: &&String| command.find_subcommand(word).is_some();
    let subcommand = words
        .iter()
        .skip(1)
        .find(known)
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
    use clap::Parser as _;

    use super::*;

    #[test]
    fn mistakes_on_the_command_line_are_one_line_with_the_flag() {
        for (line, told) in [
            (
                "serve --listn a",
                "unexpected argument '--listn' found; a similar argument exists: '--listen' (see watershed serve --help)",
            ),
            (
                "serve --tls-cert a",
                "the following required arguments were not provided: --tls-key <FILE> (see watershed serve --help)",
            ),
            (
                "serv",
                "unrecognized subcommand 'serv'; a similar subcommand exists: 'serve' (see watershed --help)",
            ),
            (
                "--log-format xml kubeconfig",
                "invalid value 'xml' for '--log-format <LOG_FORMAT>' [possible values: text, json] (see watershed kubeconfig --help)",
            ),
            (
                "serve --idle-seconds 5",
                "--idle-seconds is now --idle-timeout-seconds (see watershed serve --help)",
            ),
            (
                "serve --admin-listen a",
                "invalid value 'a' for '--admin-listen <ADDR:PORT>': invalid socket address syntax (see watershed serve --help)",
            ),
        ] {
            let words: Vec<String> = std::iter::once("watershed")
                .chain(line.split(' '))
                .map(str::to_owned)
                .collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            assert_eq!(mistake(&error, &words), told);
        }
    }
}
