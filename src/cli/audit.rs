//! Flags of the audit log: kube-apiserver's own.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use watershed_figures::parse_duration;

use crate::audit::{AuditConfig, AuditLogConfig, AuditWebhookConfig};

/// Flags of the audit log.
#[expect(
    clippy::struct_field_names,
    reason = "the fields have the names of the flags"
)]
#[derive(Args, Debug)]
#[command(next_help_heading = "Audit log of requests answered from the cache")]
pub(super) struct AuditFlags {
    /// Audit policy (audit.k8s.io/v1). Default: log every request at level Metadata when it
    /// completes.
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// File to which events are written as JSON lines; "-" is standard output.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Days for which rotated files are kept; 0 for no limit.
    #[arg(
        long,
        default_value_t = 366,
        requires = "audit_log_path",
        value_name = "DAYS"
    )]
    audit_log_maxage: u32,
    /// Maximum number of rotated files; 0 for no limit.
    #[arg(
        long,
        default_value_t = 100,
        requires = "audit_log_path",
        value_name = "FILES"
    )]
    audit_log_maxbackup: usize,
    /// Size at which the file is rotated (MiB); 0 for never.
    #[arg(
        long,
        default_value_t = 100,
        requires = "audit_log_path",
        value_name = "MIB"
    )]
    audit_log_maxsize: u32,
    /// Kubeconfig of a webhook to which events are posted in batches.
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Maximum number of events that wait for the webhook. Further events are dropped and counted.
    #[arg(
        long,
        default_value_t = 10_000,
        requires = "audit_webhook_config_file",
        value_name = "EVENTS"
    )]
    audit_webhook_batch_buffer_size: usize,
    /// Maximum number of events in a batch.
    #[arg(
        long,
        default_value_t = 400,
        requires = "audit_webhook_config_file",
        value_name = "EVENTS"
    )]
    audit_webhook_batch_max_size: usize,
    /// Maximum time that a batch waits for further events.
    #[arg(
        long,
        default_value = "30s",
        value_parser = parse_duration,
        requires = "audit_webhook_config_file",
        value_name = "DURATION"
    )]
    audit_webhook_batch_max_wait: Duration,
    /// Delay before a batch that the webhook refused is sent again.
    #[arg(
        long,
        default_value = "10s",
        value_parser = parse_duration,
        requires = "audit_webhook_config_file",
        value_name = "DURATION"
    )]
    audit_webhook_initial_backoff: Duration,
}

impl AuditFlags {
    /// Returns the configuration of the audit log, unless no flag asks for one.
    pub(super) fn config(self) -> anyhow::Result<Option<AuditConfig>> {
        let log = self.audit_log_path.map(|path| AuditLogConfig {
            path,
            max_age: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size: u64::from(self.audit_log_maxsize) << 20,
        });
        let webhook = self
            .audit_webhook_config_file
            .map(|config_file| AuditWebhookConfig {
                config_file,
                batch_max_size: self.audit_webhook_batch_max_size,
                batch_max_wait: self.audit_webhook_batch_max_wait,
                buffer_size: self.audit_webhook_batch_buffer_size,
                initial_backoff: self.audit_webhook_initial_backoff,
            });
        if let Some(webhook) = &webhook {
            ensure!(
                webhook.buffer_size > 0,
                "--audit-webhook-batch-buffer-size must be above 0"
            );
            ensure!(
                webhook.batch_max_size > 0,
                "--audit-webhook-batch-max-size must be above 0"
            );
        }
        if log.is_none() && webhook.is_none() {
            ensure!(
                self.audit_policy_file.is_none(),
                "--audit-policy-file needs --audit-log-path or --audit-webhook-config-file"
            );
            return Ok(None);
        }
        Ok(Some(AuditConfig {
            policy_file: self.audit_policy_file,
            log,
            webhook,
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: AuditFlags,
    }

    fn config(line: &str) -> anyhow::Result<Option<AuditConfig>> {
        Line::try_parse_from(["test"].into_iter().chain(line.split_whitespace()))?
            .flags
            .config()
    }

    #[test]
    fn there_is_no_audit_log_unless_asked_for() {
        assert!(config("").unwrap().is_none());
        config("--audit-policy-file p").unwrap_err();
        config("--audit-log-maxsize 1").unwrap_err();
        config("--audit-webhook-batch-max-size 1").unwrap_err();
        config("--audit-webhook-config-file w --audit-webhook-batch-max-size 0").unwrap_err();
        config("--audit-webhook-config-file w --audit-webhook-batch-max-wait -1s").unwrap_err();
    }

    #[test]
    fn defaults_are_kube_apiservers() {
        let audit = config("--audit-log-path a.log --audit-webhook-config-file w")
            .unwrap()
            .unwrap();
        let shown = format!("{:?} {:?}", audit.log.unwrap(), audit.webhook.unwrap());
        let wanted = format!(
            "{:?} {:?}",
            AuditLogConfig::new("a.log".into()),
            AuditWebhookConfig::new("w".into())
        );
        assert_eq!(shown, wanted);
        let line = "--audit-log-path - --audit-log-maxsize 1 \
                    --audit-webhook-config-file w --audit-webhook-batch-max-wait 1m30s";
        let audit = config(line).unwrap().unwrap();
        assert_eq!(audit.log.unwrap().max_size, 1 << 20);
        assert_eq!(
            audit.webhook.unwrap().batch_max_wait,
            Duration::from_secs(90)
        );
    }
}
