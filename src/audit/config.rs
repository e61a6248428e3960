//! Configuration of the audit log. The defaults are kube-apiserver's.
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of the audit log.
#[derive(Clone, Debug, Default)]
pub struct AuditConfig {
    /// A Policy of kube-apiserver's (audit.k8s.io/v1). Without one, each request is logged when it
    /// is answered.
    pub policy_file: Option<PathBuf>,
    /// The file, if events go to one.
    pub log: Option<AuditLogConfig>,
    /// The webhook, if events go to one.
    pub webhook: Option<AuditWebhookConfig>,
}

/// Configuration of the log file and its rotation.
#[derive(Clone, Debug)]
pub struct AuditLogConfig {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// Days for which rotated files are kept; 0 keeps them forever.
    pub max_age: u32,
    /// Number of rotated files that are kept; 0 keeps all.
    pub max_backups: usize,
    /// Bytes at which a file is rotated; 0 disables rotation.
    pub max_size: u64,
}

impl AuditLogConfig {
    /// Returns kube-apiserver's defaults.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            max_age: 366,
            max_backups: 100,
            max_size: 100 << 20,
        }
    }
}

/// Configuration of the webhook and its batches.
#[derive(Clone, Debug)]
pub struct AuditWebhookConfig {
    /// A kubeconfig with the webhook's address and the credentials for it.
    pub config_file: PathBuf,
    /// Limit of events in a batch.
    pub batch_max_size: usize,
    /// Time for which an event may wait for others.
    pub batch_max_wait: Duration,
    /// Limit of waiting events.
    pub buffer_size: usize,
    /// Time before a failed batch is sent again. It grows by half with each attempt.
    pub initial_backoff: Duration,
}

impl AuditWebhookConfig {
    /// Returns kube-apiserver's defaults.
    pub fn new(config_file: PathBuf) -> Self {
        Self {
            config_file,
            batch_max_size: 400,
            batch_max_wait: Duration::from_secs(30),
            buffer_size: 10_000,
            initial_backoff: Duration::from_secs(10),
        }
    }
}
