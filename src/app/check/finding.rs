//! The findings of a check.
use std::fmt;

use serde::Serialize;
use watershed_connect::one_line;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    Ok,
    /// It works, but not as well as it could, or not for much longer.
    Warning,
    /// The proxy would not start, or would answer nothing from memory.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The severity.
    pub level: Level,
    /// The checked thing, in one word.
    pub subject: &'static str,
    /// The result on one line. A problem comes with the flag or right that would solve it.
    pub message: String,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, subject: &'static str, message: impl Into<String>) {
        self.0.push(Finding {
            level,
            subject,
            message: message.into(),
        });
    }

    pub(super) fn ok(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(Level::Ok, subject, message);
    }

    pub(super) fn warning(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(Level::Warning, subject, message);
    }

    pub(super) fn error(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(Level::Error, subject, message);
    }

    /// Adds an error with all its causes.
    pub(super) fn failed(&mut self, subject: &'static str, error: impl Into<anyhow::Error>) {
        self.error(subject, one_line(error.into().as_ref()));
    }
}
