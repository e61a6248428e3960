//! Errors of the audit log.
use std::io;
use std::path::PathBuf;

/// The audit log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy cannot be used.
    #[error("cannot use the audit policy {path} (--audit-policy-file): {reason}")]
    Policy {
        /// The file.
        path: PathBuf,
        /// The mistake.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write the audit log {path} (--audit-log-path): {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The webhook's kubeconfig cannot be used.
    #[error(
        "cannot use the audit webhook's kubeconfig {path} (--audit-webhook-config-file): {reason}"
    )]
    Webhook {
        /// The file.
        path: PathBuf,
        /// The mistake.
        reason: String,
    },
}
