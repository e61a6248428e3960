//! Why the audit log cannot begin.
use std::io;
use std::path::PathBuf;

/// Why the audit log cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy cannot be used.
    #[error("cannot use the audit policy {path} (--audit-policy-file): {reason}")]
    Policy {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write the audit log {path} (--audit-log-path): {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The webhook's kubeconfig cannot be used.
    #[error(
        "cannot use the audit webhook's kubeconfig {path} (--audit-webhook-config-file): {reason}"
    )]
    Webhook {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// An error and its causes in one line.
pub(super) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}
