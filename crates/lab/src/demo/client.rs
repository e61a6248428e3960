//! One watching client: lists, watches from there, and keeps what a controller's cache would keep.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::connect::SharedConnection;
use crate::body::empty_body;
use crate::client::{ClientConnection, Lines, NextLine, expect_success};

/// Pauses between two watches, growing.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The pods that a client watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodInterest {
    /// Every pod, as a scheduler does.
    All,
    /// One namespace's, as a team's controller does.
    Namespace(String),
    /// One node's, as a node agent does.
    Node(String),
    /// The pods with a label.
    Label(&'static str, String),
}

/// The requests that bring a client its first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// LIST, then WATCH from its version.
    List,
    /// One WATCH with `sendInitialEvents`.
    WatchList,
}

/// Counts over all clients.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lists: AtomicU64,
    pub(crate) watches: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Streams and requests that failed and were tried again.
    pub(crate) retries: AtomicU64,
    /// Times a client had to start over because its version was too old.
    pub(crate) expired: AtomicU64,
}

/// The state that a client has built from what it received.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodView {
    /// Key → version.
    pub(crate) objects: BTreeMap<String, u64>,
    /// The newest version heard of.
    pub(crate) version: u64,
    /// True once the first state is complete.
    pub(crate) synced: bool,
}

/// One client.
pub(crate) struct DemoClient {
    pub(crate) interest: PodInterest,
    pub(crate) opening: Opening,
    pub(crate) connection: Arc<SharedConnection>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) view: Arc<Mutex<PodView>>,
    /// Spreads the clients' watch timeouts.
    pub(crate) timeout: Duration,
}

/// The reason for the end of a watch.
enum WatchEnd {
    /// Go on from the last version.
    Resume,
    /// 410: start over.
    Expired,
}

#[derive(Deserialize)]
struct PodList {
    metadata: PodListMetadata,
    items: Vec<PodObject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodListMetadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct PodEvent {
    r#type: String,
    object: PodObject,
}

#[derive(Deserialize)]
struct PodObject {
    #[serde(default)]
    metadata: PodMetadata,
    /// Code of a Status.
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodMetadata {
    name: String,
    namespace: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

impl PodInterest {
    fn path(&self) -> String {
        match self {
            Self::All | Self::Node(_) | Self::Label(..) => "/api/v1/pods".to_owned(),
            Self::Namespace(namespace) => format!("/api/v1/namespaces/{namespace}/pods"),
        }
    }

    fn selector(&self) -> String {
        match self {
            Self::All | Self::Namespace(_) => String::new(),
            Self::Node(node) => format!("&fieldSelector=spec.nodeName%3D{node}"),
            Self::Label(key, value) => format!("&labelSelector={key}%3D{value}"),
        }
    }
}

impl fmt::Display for PodInterest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => write!(f, "all pods"),
            Self::Namespace(namespace) => write!(f, "pods of namespace {namespace}"),
            Self::Node(node) => write!(f, "pods of {node}"),
            Self::Label(key, value) => write!(f, "pods with {key}={value}"),
        }
    }
}

impl DemoClient {
    /// Runs until it is dropped. Failures are counted and tried again, as client-go does.
    pub(crate) async fn run(self) {
        let mut pause = PAUSE;
        loop {
            let opened = Instant::now();
            match self.round().await {
                Ok(WatchEnd::Resume) => {}
                Ok(WatchEnd::Expired) => {
                    self.counters.expired.fetch_add(1, Ordering::Relaxed);
                    self.view.lock().synced = false;
                }
                Err(error) => {
                    self.counters.retries.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%error, interest = %self.interest, "client tries again");
                }
            }
            // Watches that end immediately, one after the other, did not reach their timeout.
            if opened.elapsed() > LONGEST_PAUSE {
                pause = PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows the pods until a watch ends. Gets the first state before, if it is missing.
    async fn round(&self) -> anyhow::Result<WatchEnd> {
        let (synced, version) = {
            let view = self.view.lock();
            (view.synced, view.version)
        };
        if synced {
            return self.watch(version, false).await;
        }
        match self.opening {
            Opening::WatchList => self.watch(version, true).await,
            Opening::List => {
                self.list(version).await?;
                let listed = self.view.lock().version;
                self.watch(listed, false).await
            }
        }
    }

    /// Sends a GET for the pods. The connection has to live for as long as the answer is read.
    async fn get(&self, query: &str) -> anyhow::Result<(ClientConnection, Response<Incoming>)> {
        let path = format!(
            "{}?{query}{}",
            self.interest.path(),
            self.interest.selector()
        );
        let request = Request::get(&path)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "watershed-demo")
            .body(empty_body())?;
        let connection = self.connection.get().await?;
        let answer = connection.send(request).await?;
        Ok((connection, expect_success(&path, answer).await?))
    }

    async fn list(&self, version: u64) -> anyhow::Result<()> {
        self.counters.lists.fetch_add(1, Ordering::Relaxed);
        let (_connection, answer) = self.get(&format!("resourceVersion={version}")).await?;
        let bytes = answer.into_body().collect().await?.to_bytes();
        self.counters
            .bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let list: PodList = serde_json::from_slice(&bytes)?;
        let objects = list.items.iter().map(|o| Ok((o.key(), o.version()?)));
        *self.view.lock() = PodView {
            objects: objects.collect::<anyhow::Result<_>>()?,
            version: list.metadata.resource_version.parse()?,
            synced: true,
        };
        Ok(())
    }

    async fn watch(&self, version: u64, initial: bool) -> anyhow::Result<WatchEnd> {
        self.counters.watches.fetch_add(1, Ordering::Relaxed);
        let timeout = self.timeout.as_secs();
        let mut query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={timeout}&resourceVersion={version}"
        );
        if initial {
            query.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        }
        let (connection, answer) = self.get(&query).await?;
        let mut lines = Lines::new(&connection, answer);
        // The state under construction replaces the old one at the end mark, not before.
        let mut building = initial.then(PodView::default);
        loop {
            let line = match lines.next().await {
                NextLine::Line(line) => line,
                NextLine::End => return Ok(WatchEnd::Resume),
                NextLine::Broken(why) => bail!("a watch broke: {why}"),
            };
            self.counters
                .bytes
                .fetch_add(line.len() as u64, Ordering::Relaxed);
            self.counters.events.fetch_add(1, Ordering::Relaxed);
            let event: PodEvent = serde_json::from_slice(&line)?;
            if event.r#type == "ERROR" {
                if event.object.code == 410 {
                    return Ok(WatchEnd::Expired);
                }
                bail!("watch failed: {}", event.object.message);
            }
            match &mut building {
                None => self.view.lock().apply(&event)?,
                Some(view) => view.apply(&event)?,
            }
            if event.is_end_mark()
                && let Some(view) = building.take()
            {
                *self.view.lock() = PodView {
                    synced: true,
                    ..view
                };
            }
        }
    }
}

impl PodView {
    fn apply(&mut self, event: &PodEvent) -> anyhow::Result<()> {
        let version = event.object.version()?;
        match event.r#type.as_str() {
            "BOOKMARK" => {}
            "ADDED" | "MODIFIED" => {
                self.objects.insert(event.object.key(), version);
            }
            "DELETED" => {
                self.objects.remove(&event.object.key());
            }
            other => bail!("an event of type {other:?}"),
        }
        self.version = self.version.max(version);
        Ok(())
    }
}

impl PodEvent {
    /// Returns `true` if the event ends the first state of a watch.
    fn is_end_mark(&self) -> bool {
        let annotations = &self.object.metadata.annotations;
        self.r#type == "BOOKMARK" && annotations.contains_key("k8s.io/initial-events-end")
    }
}

impl PodObject {
    fn key(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    fn version(&self) -> anyhow::Result<u64> {
        self.metadata
            .resource_version
            .parse()
            .context("an object without a resourceVersion")
    }
}
