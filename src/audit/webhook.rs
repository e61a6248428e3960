//! The webhook sink. It posts EventLists, a few at the same time, so that one that is not accepted
//! does not hold up the others. Like kube-apiserver's, they may arrive in any order.
//!
//! Source: `apiserver/plugin/pkg/audit/webhook/webhook.go`,
//! `apiserver/plugin/pkg/audit/buffered/buffered.go`, `apiserver/pkg/util/webhook/webhook.go`
//! (timeouts and retries).
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Limited};
use kube_client::client::Body;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use watershed_connect::one_line;

mod connection;

use super::config::AuditWebhookConfig;
use super::error::AuditError;
use super::event;
use super::queue::{EventQueue, Losses, QueueMessage, QueueOutlet, queue};
use connection::{FollowedConnection, REQUEST_TIMEOUT, WebhookConnection};

/// Batches that are under way at the same time. kube-apiserver has no such limit.
const MAX_UNDER_WAY: usize = 4;
/// Number of times that a batch is sent before it is dropped.
const ATTEMPTS: u32 = 5;
/// Growth of the time between two attempts.
const BACKOFF_FACTOR: f64 = 1.5;
/// Random share that is added to the time between two attempts.
const JITTER: f64 = 0.2;
/// Limit of configured times. Longer ones would overflow the clock.
const LONGEST_WAIT: Duration = Duration::from_hours(24);
/// Size limit of a batch. Source: kube-apiserver's limit where batches are limited
/// (apiserver/pkg/server/options/audit.go).
const MAX_BATCH_BYTES: usize = 10 << 20;
/// Bytes of an answer that are read, so that its connection can be used again.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Reads the kubeconfig and starts the task. The task ends with the queue.
pub(super) async fn start(config: AuditWebhookConfig) -> Result<EventQueue, AuditError> {
    let webhook = open(config).await?;
    let (queue, outlet) = queue("webhook", webhook.config.buffer_size);
    tokio::spawn(Arc::new(webhook).run(outlet));
    Ok(queue)
}

/// Checks that the kubeconfig can be used.
pub(super) async fn check(config: AuditWebhookConfig) -> Result<(), AuditError> {
    open(config).await.map(drop)
}

async fn open(config: AuditWebhookConfig) -> Result<Webhook, AuditError> {
    let path = config.config_file.clone();
    Webhook::new(config)
        .await
        .map_err(|reason| AuditError::Webhook { path, reason })
}

struct Webhook {
    connection: Arc<FollowedConnection>,
    config: AuditWebhookConfig,
}

impl Webhook {
    async fn new(mut config: AuditWebhookConfig) -> Result<Self, String> {
        config.batch_max_wait = config.batch_max_wait.min(LONGEST_WAIT);
        config.initial_backoff = config.initial_backoff.min(LONGEST_WAIT);
        let connection = FollowedConnection::open(config.config_file.clone()).await?;
        Ok(Self {
            connection: Arc::new(connection),
            config,
        })
    }

    async fn run(self: Arc<Self>, mut outlet: QueueOutlet) {
        loop {
            let delivering = AssertUnwindSafe(self.deliver_all(&mut outlet));
            if delivering.catch_unwind().await.is_ok() {
                return;
            }
            tracing::error!("delivering audit events panicked; going on with the next ones");
        }
    }

    async fn deliver_all(self: &Arc<Self>, outlet: &mut QueueOutlet) {
        let mut under_way = JoinSet::new();
        loop {
            let batch = self.collect(outlet).await;
            if !batch.events.is_empty() {
                while under_way.try_join_next().is_some() {}
                if under_way.len() == MAX_UNDER_WAY {
                    under_way.join_next().await;
                }
                let (losses, ending) = (Arc::clone(&outlet.losses), outlet.ending.clone());
                under_way.spawn(Arc::clone(self).deliver(batch.events, losses, ending));
            }
            if let Some(sender) = batch.flushed {
                while under_way.join_next().await.is_some() {}
                // The receiver is gone if it has stopped waiting.
                let _ = sender.send(());
            }
            if batch.is_last {
                while under_way.join_next().await.is_some() {}
                return;
            }
        }
    }

    async fn collect(&self, outlet: &mut QueueOutlet) -> EventBatch {
        let mut batch = EventBatch::default();
        let mut bytes = 0;
        let mut deadline = None;
        while batch.events.len() < self.config.batch_max_size && bytes < MAX_BATCH_BYTES {
            let Some(next) = next_until(outlet, deadline).await else {
                return batch;
            };
            match next {
                Some(QueueMessage::Event(event)) => {
                    bytes += event.len();
                    batch.events.push(event);
                    deadline.get_or_insert_with(|| Instant::now() + self.config.batch_max_wait);
                }
                Some(QueueMessage::Flush(sender)) => {
                    batch.flushed = Some(sender);
                    return batch;
                }
                None => {
                    batch.is_last = true;
                    return batch;
                }
            }
        }
        batch
    }

    /// Posts a batch. Counts its events as lost if it is not accepted.
    async fn deliver(
        self: Arc<Self>,
        events: Vec<Bytes>,
        losses: Arc<Losses>,
        ending: CancellationToken,
    ) {
        let count = events.len();
        let body = event::list(&events);
        drop(events);
        let posted = AssertUnwindSafe(self.post_with_retries(body, &ending)).catch_unwind();
        let panicked = |_| Err("delivering it panicked".to_owned());
        if let Err(error) = posted.await.unwrap_or_else(panicked) {
            losses.count(count, &error);
        }
    }

    async fn post_with_retries(
        self: &Arc<Self>,
        body: Bytes,
        ending: &CancellationToken,
    ) -> Result<(), String> {
        let mut wait = self.config.initial_backoff;
        let mut attempt = 1;
        loop {
            let Err(error) = self.post(body.clone()).await else {
                return Ok(());
            };
            if attempt == ATTEMPTS || ending.is_cancelled() {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "the audit webhook did not accept a batch");
            tokio::select! {
                () = sleep(wait.mul_f64(1.0 + JITTER * fastrand::f64())) => {}
                // At shutdown there is one more attempt, without a wait.
                () = ending.cancelled() => {}
            }
            // Certificates may have been renewed since the last one was read. A plugin that hangs holds up
            // this batch for no longer than the webhook may.
            let following = tokio::spawn(Arc::clone(&self.connection).follow_files());
            tokio::select! {
                followed = timeout(REQUEST_TIMEOUT, following) => {
                    if followed.is_err() {
                        tracing::warn!("the plugin of the audit webhook's credentials does not answer");
                    }
                }
                () = ending.cancelled() => {}
            }
            wait = wait.mul_f64(BACKOFF_FACTOR);
            attempt += 1;
        }
    }

    async fn post(&self, body: Bytes) -> Result<(), String> {
        timeout(REQUEST_TIMEOUT, self.post_unlimited(body))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {REQUEST_TIMEOUT:?}")))
    }

    async fn post_unlimited(&self, body: Bytes) -> Result<(), String> {
        let WebhookConnection { client, uri, .. } = self.connection.current();
        let mut request = Request::post(uri)
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
        let response = client
            .send(request)
            .await
            .map_err(|error| one_line(&error))?;
        let status = response.status();
        // Only the status matters. The body is read to free the connection.
        let _ = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await;
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("it answers {status}"))
        }
    }
}

/// Events that are posted together.
#[derive(Default)]
struct EventBatch {
    events: Vec<Bytes>,
    /// Gets a message when the events have been posted.
    flushed: Option<oneshot::Sender<()>>,
    /// No event will follow.
    is_last: bool,
}

/// Waits for the next message of the queue, whose end is `Some(None)`. Returns `None` at the
/// deadline, and at shutdown when no message is left. Without a deadline it waits in any case.
async fn next_until(
    outlet: &mut QueueOutlet,
    deadline: Option<Instant>,
) -> Option<Option<QueueMessage>> {
    let Some(deadline) = deadline else {
        return Some(outlet.next().await);
    };
    let ending = outlet.ending.clone();
    tokio::select! {
        biased;
        next = timeout_at(deadline, outlet.next()) => next.ok(),
        () = ending.cancelled() => outlet.ready().map(Some),
    }
}
