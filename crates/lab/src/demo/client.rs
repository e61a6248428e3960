//! One watching client: lists, watches from there, and keeps what a controller's cache would keep.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Buf as _, Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde::Deserialize;

use super::connect::Connection;

/// Which pods a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Every pod, as a scheduler does.
    All,
    /// One namespace's, as a team's controller does.
    Namespace(String),
    /// One node's, as a node agent does.
    Node(String),
    /// Those with a label.
    Label(&'static str, String),
}

/// How a client gets its first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// LIST, then WATCH from its version.
    List,
    /// One WATCH with `sendInitialEvents`.
    WatchList,
}

/// What all clients together did.
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

/// What a client believes.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Key → version.
    pub(crate) objects: BTreeMap<String, u64>,
    /// The newest version heard of.
    pub(crate) version: u64,
    /// Whether the first state is complete.
    pub(crate) synced: bool,
}

/// One client.
pub(crate) struct Client {
    pub(crate) interest: Interest,
    pub(crate) opening: Opening,
    pub(crate) connection: Arc<Connection>,
    pub(crate) token: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) view: Arc<Mutex<View>>,
    /// Spreads the clients' watch timeouts.
    pub(crate) timeout: Duration,
}

/// How a watch ended.
enum Ended {
    /// Go on from the last version.
    Resume,
    /// 410: start over.
    Expired,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMetadata,
    items: Vec<Object>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    /// Of a Status.
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

// === impl Interest ===

impl Interest {
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

impl fmt::Display for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => write!(f, "all pods"),
            Self::Namespace(namespace) => write!(f, "pods of namespace {namespace}"),
            Self::Node(node) => write!(f, "pods of {node}"),
            Self::Label(key, value) => write!(f, "pods with {key}={value}"),
        }
    }
}

// === impl Client ===

impl Client {
    /// Runs until it is dropped. Failures are counted and tried again, as client-go does.
    pub(crate) async fn run(self) {
        let mut pause = Duration::from_millis(100);
        loop {
            let before = self.view.lock().version;
            let round = self.round().await;
            if self.view.lock().version > before {
                pause = Duration::from_millis(100);
            }
            match round {
                Ok(Ended::Resume) => continue,
                Ok(Ended::Expired) => {
                    self.counters.expired.fetch_add(1, Ordering::Relaxed);
                    self.view.lock().synced = false;
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%error, interest = %self.interest, "client tries again")
                }
            }
            self.counters.retries.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// One request's worth: the list, or a watch until it ends.
    async fn round(&self) -> anyhow::Result<Ended> {
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
                Ok(Ended::Resume)
            }
        }
    }

    async fn get(&self, query: &str) -> anyhow::Result<Incoming> {
        let path = format!(
            "{}?{query}{}",
            self.interest.path(),
            self.interest.selector()
        );
        let answer = self.connection.get(&path, &self.token).await?;
        let status = answer.status();
        if status != StatusCode::OK {
            let body = answer.into_body().collect().await?.to_bytes();
            bail!("{status} for {path}: {}", String::from_utf8_lossy(&body));
        }
        Ok(answer.into_body())
    }

    async fn list(&self, version: u64) -> anyhow::Result<()> {
        self.counters.lists.fetch_add(1, Ordering::Relaxed);
        let mut body = self.get(&format!("resourceVersion={version}")).await?;
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                self.counters
                    .bytes
                    .fetch_add(data.len() as u64, Ordering::Relaxed);
                bytes.extend_from_slice(&data);
            }
        }
        let list: List = serde_json::from_slice(&bytes)?;
        let objects = list.items.iter().map(|o| Ok((o.key(), o.version()?)));
        let objects = objects.collect::<anyhow::Result<_>>()?;
        let version = list.metadata.resource_version.parse()?;
        *self.view.lock() = View {
            objects,
            version,
            synced: true,
        };
        Ok(())
    }

    async fn watch(&self, version: u64, initial: bool) -> anyhow::Result<Ended> {
        self.counters.watches.fetch_add(1, Ordering::Relaxed);
        let timeout = self.timeout.as_secs();
        let mut query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={timeout}&resourceVersion={version}"
        );
        if initial {
            query.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        }
        let mut body = self.get(&query).await?;
        // The state under construction replaces the old one at the end mark, not before.
        let mut building = initial.then(BTreeMap::new);
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data): Result<Bytes, _> = frame?.into_data() else {
                continue;
            };
            self.counters
                .bytes
                .fetch_add(data.len() as u64, Ordering::Relaxed);
            rest.extend_from_slice(&data);
            while let Some(end) = memchr::memchr(b'\n', &rest) {
                let event: Event = serde_json::from_slice(&rest[..end])?;
                rest.advance(end + 1);
                self.counters.events.fetch_add(1, Ordering::Relaxed);
                if event.r#type == "ERROR" {
                    if event.object.code == 410 {
                        return Ok(Ended::Expired);
                    }
                    bail!("watch failed: {}", event.object.message);
                }
                self.apply(&event, &mut building)?;
            }
        }
        Ok(Ended::Resume)
    }

    fn apply(
        &self,
        event: &Event,
        building: &mut Option<BTreeMap<String, u64>>,
    ) -> anyhow::Result<()> {
        let version = event.object.version()?;
        let mut view = self.view.lock();
        if event.r#type == "BOOKMARK" {
            let end_mark = event
                .object
                .metadata
                .annotations
                .contains_key("k8s.io/initial-events-end");
            if let Some(objects) = building.take_if(|_| end_mark) {
                *view = View {
                    objects,
                    version,
                    synced: true,
                };
            } else if building.is_none() {
                view.version = view.version.max(version);
            }
            return Ok(());
        }
        let objects = if let Some(objects) = building {
            objects
        } else {
            view.version = version;
            &mut view.objects
        };
        match event.r#type.as_str() {
            "ADDED" | "MODIFIED" => objects.insert(event.object.key(), version),
            "DELETED" => objects.remove(&event.object.key()),
            other => bail!("an event of type {other:?}"),
        };
        Ok(())
    }
}

// === impl Object ===

impl Object {
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
