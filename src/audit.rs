//! The audit log of the requests that this process answers, so that upstream cannot log them.
//!
//! The events have the form of kube-apiserver's at level Metadata and go to the same kinds of
//! sinks: a rotated file, or a webhook in batches. Serving never waits for a sink. An event that
//! does not fit into the sink's bounded queue is dropped and counted.
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Request};

mod config;
mod error;
mod event;
mod log;
pub mod metrics;
pub(crate) mod policy;
mod queue;
mod record;
mod rotate;
mod source_ips;
mod webhook;
mod write;

pub use config::{AuditConfig, AuditLogConfig, AuditWebhookConfig};
pub use error::AuditError;
pub use record::{AuditRecord, kept_bytes, record_caller, record_decision, record_impersonated};

use log::AuditLog;
use policy::AuditPolicy;

/// Checks that an audit log can start, without starting one.
pub async fn check(config: &AuditConfig) -> Result<(), AuditError> {
    if let Some(path) = &config.policy_file {
        AuditPolicy::read(path)?;
    }
    if let Some(log) = &config.log {
        write::check(&log.path)?;
    }
    if let Some(webhook) = &config.webhook {
        webhook::check(webhook.clone()).await?;
    }
    Ok(())
}

/// The audit log. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Arc<AuditLog>);

impl Audit {
    /// Reads the policy and opens the sinks. Needs a running runtime.
    pub async fn start(config: AuditConfig) -> Result<Self, AuditError> {
        let policy = match &config.policy_file {
            Some(path) => AuditPolicy::read(path)?,
            None => AuditPolicy::default(),
        };
        if policy.names_bodies() {
            tracing::warn!(
                "the audit policy has rules with level Request or RequestResponse: reads from \
                 memory are logged with level Metadata there"
            );
        }
        let mut sinks = Vec::new();
        if let Some(log) = config.log {
            sinks.push(write::start(log)?);
        }
        if let Some(webhook) = config.webhook {
            sinks.push(webhook::start(webhook).await?);
        }
        Ok(Self(Arc::new(AuditLog::new(policy, sinks))))
    }

    /// Starts the record of a request. Its extensions carry what is found out about its caller.
    pub fn begin<B>(
        &self,
        request: &mut Request<B>,
        peer: IpAddr,
        id: &HeaderValue,
    ) -> AuditRecord {
        AuditRecord::begin(Arc::clone(&self.0), request, peer, id)
    }

    /// Waits a few seconds until the logged events have arrived. Call it when nothing is served
    /// any more.
    pub async fn shut_down(&self) {
        self.0.shut_down().await;
    }
}
