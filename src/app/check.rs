//! Whether a proxy with this configuration would work, found out before it is started, or beside
//! one that runs.
//!
//! Everything is read by what `serve` itself reads it with. Nothing is written, and upstream is
//! asked for nothing but its version, its types and what the proxy may.
mod files;
mod places;
mod rights;
mod upstream;

use std::fmt;

use serde::Serialize;

use super::AppConfig;
use watershed_connect::one_line;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, though not as well as it could, or not for much longer.
    Warning,
    /// It does not start, or answers nothing from memory.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was looked at, in a word.
    pub subject: &'static str,
    /// What was found, on one line; where something is wrong, with the flag or right that would
    /// help.
    pub message: String,
}

/// What was found so far.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, subject: &'static str, message: impl Into<String>) {
        self.0.push(Finding {
            level,
            subject,
            message: message.into(),
        });
    }

    fn ok(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(Level::Ok, subject, message);
    }

    fn warning(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(Level::Warning, subject, message);
    }

    fn error(&mut self, subject: &'static str, message: impl Into<String>) {
        self.add(Level::Error, subject, message);
    }

    /// With all causes, each of them once.
    fn failed(&mut self, subject: &'static str, error: impl Into<anyhow::Error>) {
        self.error(subject, one_line(error.into().as_ref()));
    }
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

/// Looks at everything that can be looked at.
pub async fn check(config: &AppConfig) -> Vec<Finding> {
    let mut findings = Findings::default();
    places::examine(config, &mut findings).await;
    files::examine(config, &mut findings).await;
    if let Some(client) = upstream::examine(config, &mut findings).await {
        rights::examine(config, &client, &mut findings).await;
    }
    findings.0
}
