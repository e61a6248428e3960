//! The webhook: EventLists are posted to it as kube-apiserver posts them, one after the other.
//!
//! Source: `apiserver/plugin/pkg/audit/webhook/webhook.go`,
//! `apiserver/plugin/pkg/audit/buffered/buffered.go`, `apiserver/pkg/util/webhook/webhook.go` (time
//! limits and repetitions).
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use kube_client::client::Body;
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::{Client, Config};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::AuditWebhookConfig;
use super::error::{AuditError, one_line};
use super::event;
use super::queue::{Next, Outlet, Queue, queue};

/// How long one request may take; upstream tells the webhook, too.
const ANSWER: Duration = Duration::from_secs(30);
const QUERY: &str = "timeout=30s";
/// Times that a batch is sent before it is given up, and how the time between them grows.
const ATTEMPTS: u32 = 5;
const FACTOR: f64 = 1.5;
const JITTER: f64 = 0.2;
/// Nobody wants to wait longer, and clocks take it.
const LONGEST_WAIT: Duration = Duration::from_hours(24);
/// A batch is not larger. Source: kube-apiserver's limit where batches are limited
/// (apiserver/pkg/server/options/audit.go).
const MAX_BATCH_BYTES: usize = 10 << 20;
/// Of an answer so much is read, so that its connection can be used again.
const MAX_ANSWER: usize = 1 << 20;

struct Webhook {
    client: Client,
    uri: Uri,
    config: AuditWebhookConfig,
}

/// Events that go together, and who is to be told when they are gone.
#[derive(Default)]
struct Batch {
    events: Vec<Bytes>,
    flushed: Option<oneshot::Sender<()>>,
    /// Nothing will follow.
    last: bool,
}

/// Reads the kubeconfig and starts the task. It ends with the queue.
pub(super) async fn start(config: AuditWebhookConfig) -> Result<Queue, AuditError> {
    let path = config.config_file.clone();
    let webhook = Webhook::new(config)
        .await
        .map_err(|reason| wrong(path, reason))?;
    let (queue, outlet) = queue("webhook", webhook.config.buffer_size);
    tokio::spawn(webhook.run(outlet));
    Ok(queue)
}

/// Reads the kubeconfig.
pub(super) async fn check(config: AuditWebhookConfig) -> Result<(), AuditError> {
    let path = config.config_file.clone();
    Webhook::new(config)
        .await
        .map(drop)
        .map_err(|reason| wrong(path, reason))
}

fn wrong(path: PathBuf, reason: String) -> AuditError {
    AuditError::Webhook { path, reason }
}

impl Webhook {
    async fn new(mut config: AuditWebhookConfig) -> Result<Self, String> {
        config.batch_max_wait = config.batch_max_wait.min(LONGEST_WAIT);
        config.initial_backoff = config.initial_backoff.min(LONGEST_WAIT);
        let kubeconfig =
            Kubeconfig::read_from(&config.config_file).map_err(|error| one_line(&error))?;
        let mut clusters = kubeconfig
            .clusters
            .iter()
            .filter_map(|named| named.cluster.as_ref());
        if clusters.any(|cluster| {
            cluster
                .proxy_url
                .as_ref()
                .is_some_and(|url| !url.is_empty())
        }) {
            return Err("it has a proxy-url, which is not supported".to_owned());
        }
        // kube-client builds its TLS on the process' default provider.
        watershed_connect::install_crypto();
        let options = KubeConfigOptions::default();
        let mut target = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| one_line(&error))?;
        // Like client-go, which leaves a query in the server's URL out.
        let path = target.cluster_url.path().trim_end_matches('/');
        let uri = Uri::try_from(format!(
            "{}?{QUERY}",
            if path.is_empty() { "/" } else { path }
        ));
        let uri = uri.map_err(|error| one_line(&error))?;
        let mut parts = std::mem::take(&mut target.cluster_url).into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        target.cluster_url = Uri::from_parts(parts).map_err(|error| one_line(&error))?;
        target.read_timeout = Some(ANSWER);
        // What HTTPS_PROXY says is not meant for it.
        target.proxy_url = None;
        let client = Client::try_from(target).map_err(|error| one_line(&error))?;
        Ok(Self {
            client,
            uri,
            config,
        })
    }

    async fn run(self, mut outlet: Outlet) {
        loop {
            let batch = self.collect(&mut outlet).await;
            if !batch.events.is_empty()
                && let Err(error) = self.deliver(&batch.events, &outlet).await
            {
                outlet.losses.count(batch.events.len(), &error);
            }
            if let Some(told) = batch.flushed {
                // Whoever asked may have stopped waiting.
                let _ = told.send(());
            }
            if batch.last {
                return;
            }
        }
    }

    async fn collect(&self, outlet: &mut Outlet) -> Batch {
        let mut batch = Batch::default();
        let (mut bytes, mut deadline) = (0, None);
        while batch.events.len() < self.config.batch_max_size && bytes < MAX_BATCH_BYTES {
            let next = match deadline {
                None => outlet.next().await,
                Some(deadline) => {
                    let ending = outlet.ending.clone();
                    tokio::select! {
                        biased;
                        next = timeout_at(deadline, outlet.next()) => match next {
                            Ok(next) => next,
                            Err(_) => return batch,
                        },
                        () = ending.cancelled() => match outlet.ready() {
                            Some(next) => next,
                            None => return batch,
                        },
                    }
                }
            };
            match next {
                Next::Event(event) => {
                    bytes += event.len();
                    batch.events.push(event);
                    deadline.get_or_insert_with(|| Instant::now() + self.config.batch_max_wait);
                }
                Next::Flush(told) => {
                    batch.flushed = Some(told);
                    return batch;
                }
                Next::End => {
                    batch.last = true;
                    return batch;
                }
            }
        }
        batch
    }

    async fn deliver(&self, events: &[Bytes], outlet: &Outlet) -> Result<(), String> {
        let body = event::list(events);
        let mut wait = self.config.initial_backoff;
        let mut attempt = 1;
        loop {
            let Err(error) = self.post(body.clone()).await else {
                return Ok(());
            };
            if attempt == ATTEMPTS || outlet.ending.is_cancelled() {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "the audit webhook did not take a batch");
            tokio::select! {
                () = sleep(wait.mul_f64(1.0 + JITTER * fastrand::f64())) => {}
                // Once more, at once.
                () = outlet.ending.cancelled() => {}
            }
            wait = wait.mul_f64(FACTOR);
            attempt += 1;
        }
    }

    async fn post(&self, body: Bytes) -> Result<(), String> {
        let mut request = Request::post(self.uri.clone())
            .body(Body::from(body))
            .map_err(|error| one_line(&error))?;
        let headers = request.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, */*"),
        );
        let agent = concat!("watershed/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let answered = async {
            let response = self
                .client
                .send(request)
                .await
                .map_err(|error| one_line(&error))?;
            let status = response.status();
            // What it says does not matter.
            let _ = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await;
            if status.is_success() {
                Ok(())
            } else {
                Err(format!("it answers {status}"))
            }
        };
        timeout(ANSWER, answered)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {ANSWER:?}")))
    }
}
