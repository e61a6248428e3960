//! An audit log of the requests that are answered here, and so never reach upstream's own.
//!
//! The events have the form of kube-apiserver's at level Metadata, and go where its own go: to a
//! file that is rotated, or to a webhook in batches. Serving never waits for either: what does not
//! fit into a bounded queue is dropped and counted.
mod error;
mod event;
pub mod metrics;
mod policy;
mod queue;
mod record;
mod rotate;
mod source_ips;
mod webhook;
mod write;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request};
use tokio_util::task::TaskTracker;

use crate::metric::Counter;
pub use error::AuditError;
use policy::Policy;
use queue::Queue;
pub use record::{AuditRecord, record_caller, record_decision};

/// How long requests that were cut may take to say so, at the end.
const LAST_EVENTS: Duration = Duration::from_secs(1);
/// How long the queues may take to become empty, at the end.
const FLUSH: Duration = Duration::from_secs(5);
/// Events that may wait for the file. Source: kube-apiserver's default for both of its sinks
/// (apiserver/pkg/server/options/audit.go).
const LOG_BUFFER: usize = 10_000;

/// What is logged, and where to.
#[derive(Clone, Debug, Default)]
pub struct AuditConfig {
    /// A Policy of kube-apiserver's (audit.k8s.io/v1). Without it everything is logged when it is
    /// answered.
    pub policy_file: Option<PathBuf>,
    /// A file.
    pub log: Option<AuditLogConfig>,
    /// A webhook.
    pub webhook: Option<AuditWebhookConfig>,
}

/// A file, and how it is rotated. The defaults are kube-apiserver's.
#[derive(Clone, Debug)]
pub struct AuditLogConfig {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// Days for which rotated files are kept; 0 for ever.
    pub max_age: u32,
    /// How many rotated files are kept; 0 for all.
    pub max_backups: usize,
    /// Bytes at which a file is rotated; 0 for never.
    pub max_size: u64,
}

impl AuditLogConfig {
    /// With kube-apiserver's defaults.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            max_age: 366,
            max_backups: 100,
            max_size: 100 << 20,
        }
    }
}

/// A webhook, and how events are put together for it. The defaults are kube-apiserver's.
#[derive(Clone, Debug)]
pub struct AuditWebhookConfig {
    /// A kubeconfig: where it is, and what it is to be shown.
    pub config_file: PathBuf,
    /// Events of one request at most.
    pub batch_max_size: usize,
    /// How long an event may wait for others.
    pub batch_max_wait: Duration,
    /// Events that may wait.
    pub buffer_size: usize,
    /// How long to wait before a failed request is tried again; then half as long again each time.
    pub initial_backoff: Duration,
}

impl AuditWebhookConfig {
    /// With kube-apiserver's defaults.
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

/// Whether an audit log can begin, without beginning one.
pub async fn check(config: &AuditConfig) -> Result<(), AuditError> {
    if let Some(path) = &config.policy_file {
        Policy::read(path)?;
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
pub struct Audit(Arc<Inner>);

struct Inner {
    policy: Policy,
    sinks: Vec<Queue>,
    events: Counter,
    /// Requests that will still have something to say.
    open: TaskTracker,
}

impl Audit {
    /// Reads the policy and opens the sinks. Needs a running runtime.
    pub async fn start(config: AuditConfig) -> Result<Self, AuditError> {
        let policy = match &config.policy_file {
            Some(path) => Policy::read(path)?,
            None => Policy::default(),
        };
        if policy.names_bodies() {
            tracing::warn!(
                "the audit policy has rules with level Request or RequestResponse: reads from memory are logged with level Metadata there"
            );
        }
        let mut sinks = Vec::new();
        if let Some(log) = config.log {
            sinks.push(write::start(log)?);
        }
        if let Some(webhook) = config.webhook {
            sinks.push(webhook::start(webhook).await?);
        }
        let events = metrics::EVENTS.with([]);
        Ok(Self(Arc::new(Inner {
            policy,
            sinks,
            events,
            open: TaskTracker::new(),
        })))
    }

    /// A request has arrived. What is found out about its caller is kept with it.
    pub fn begin<B>(
        &self,
        request: &mut Request<B>,
        peer: IpAddr,
        id: &HeaderValue,
    ) -> AuditRecord {
        AuditRecord::begin(self.clone(), request, peer, id)
    }

    fn emit(&self, line: &Bytes) {
        self.0.events.increment(1);
        for sink in &self.0.sinks {
            sink.push(line.clone());
        }
    }

    /// Sees to it that what was logged arrives, within a few seconds. For the end, when nothing is
    /// served any more.
    pub async fn shut_down(&self) {
        self.0.open.close();
        let _ = tokio::time::timeout(LAST_EVENTS, self.0.open.wait()).await;
        join_all(self.0.sinks.iter().map(|sink| sink.flush(FLUSH))).await;
    }
}
