//! Making events: ConfigMaps whose stamp is changed in turn, made before and deleted after.
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::connect::{Connections, LoadRequest};
use super::grace::end_of_grace;
use super::group::{KubectlResource, SelectableObject};
use super::plan::LoadWrites;
use super::stamp::{self, ANNOTATION, Stamp};
use super::tally::RoundTally;
use super::trouble::LoadError;
use crate::rate::Rate;
use watershed_connect::ApiServer;

/// Every object and namespace that is made here has this label.
const OWN: (&str, &str) = ("app.kubernetes.io/managed-by", "watershed-load");
/// And ConfigMaps their number, for selectors.
const NUMBER: &str = "watershed-load-object";
/// Before their number.
const NAME: &str = "watershed-load-";

const CONNECTIONS: usize = 2;
const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// An answer to a write is an object of our own.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Attempts at a write, and the pause between two. The same bytes twice change nothing the second
/// time.
const ATTEMPTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(300);

/// Requests at a time while making and deleting.
const AT_A_TIME: usize = 16;

/// For all deletions together.
const CLEAN_UP: Duration = Duration::from_mins(1);

/// The written objects, and how often each was written.
pub(super) struct Ledger {
    pub(super) namespace: String,
    objects: Vec<WrittenObject>,
}

struct WrittenObject {
    name: String,
    labels: Vec<(String, String)>,
    creation: Mutex<Creation>,
    /// Number of its last confirmed write.
    confirmed: AtomicU32,
}

/// The creation of an object, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Creation {
    /// It was not sent, or was refused.
    #[default]
    Absent,
    /// It was sent, and its outcome is not known.
    Unanswered,
    /// It is done.
    Done,
}

/// Writes, with the identity of its kubeconfig.
pub(super) struct LoadWriter {
    connections: Connections,
    run: u64,
    rate: Rate,
    ledger: Arc<Ledger>,
    object_bytes: usize,
    /// The creation of the run's own namespace; `None` if an existing one is given.
    own_namespace: Option<Mutex<Creation>>,
    /// Objects that may be written now: their last write has ended, and its outcome is known.
    idle: Mutex<VecDeque<u16>>,
}

impl WrittenObject {
    fn new(number: usize) -> Self {
        Self {
            name: format!("{NAME}{number}"),
            labels: vec![
                (OWN.0.to_owned(), OWN.1.to_owned()),
                (NUMBER.to_owned(), number.to_string()),
            ],
            creation: Mutex::default(),
            confirmed: AtomicU32::new(0),
        }
    }
}

impl Creation {
    fn of(answer: &Result<(), LoadError>) -> Self {
        let is_refused = |error: &LoadError| {
            let status = error.status();
            matches!(error, LoadError::Connect(_))
                || status.is_some_and(|status| status.is_client_error())
        };
        match answer {
            Ok(()) => Self::Done,
            Err(error) if is_refused(error) => Self::Absent,
            Err(_) => Self::Unanswered,
        }
    }
}

impl Ledger {
    fn new(namespace: String, count: usize) -> Self {
        Self {
            namespace,
            objects: (0..count).map(WrittenObject::new).collect(),
        }
    }

    /// Returns a ledger without objects.
    pub(super) fn empty() -> Self {
        Self::new(String::new(), 0)
    }

    /// The objects as selectors see them.
    pub(super) fn written(&self) -> Vec<SelectableObject<'_>> {
        self.objects
            .iter()
            .map(|entry| SelectableObject {
                namespace: &self.namespace,
                name: &entry.name,
                labels: &entry.labels,
            })
            .collect()
    }

    /// Returns the number of confirmed writes of an object.
    pub(super) fn confirmed(&self, object: u16) -> u32 {
        self.objects
            .get(usize::from(object))
            .map_or(0, |entry| entry.confirmed.load(Ordering::Acquire))
    }

    /// Returns the number of confirmed writes of each object.
    pub(super) fn all_confirmed(&self) -> Vec<u32> {
        self.objects
            .iter()
            .map(|entry| entry.confirmed.load(Ordering::Acquire))
            .collect()
    }

    fn path(&self, object: u16) -> Option<String> {
        let entry = self.objects.get(usize::from(object))?;
        Some(format!(
            "{}/{}",
            KubectlResource::config_maps().collection(&self.namespace),
            entry.name
        ))
    }
}

impl LoadWriter {
    /// Creates a writer, which has sent nothing.
    pub(super) fn new(upstream: ApiServer, writes: &LoadWrites, run: u64) -> anyhow::Result<Self> {
        let own_namespace = writes.namespace.is_none().then(Mutex::default);
        let namespace = writes
            .namespace
            .clone()
            .unwrap_or_else(|| format!("{NAME}{run:016x}"));
        Ok(Self {
            connections: Connections::new(upstream, false, CONNECTIONS),
            run,
            rate: writes.rate,
            ledger: Arc::new(Ledger::new(namespace, writes.objects)),
            object_bytes: writes.object_bytes,
            own_namespace,
            idle: (0..u16::try_from(writes.objects)?)
                .collect::<VecDeque<_>>()
                .into(),
        })
    }

    /// Creates the objects, and the namespace if none is given, until the user interrupts.
    pub(super) async fn make(&self, interrupt: &CancellationToken) -> anyhow::Result<()> {
        let made = async {
            self.make_namespace().await?;
            self.make_objects(interrupt).await
        };
        tokio::select! {
            made = made => made,
            () = end_of_grace(interrupt) => Ok(()),
        }
    }

    async fn make_namespace(&self) -> anyhow::Result<()> {
        let Some(creation) = &self.own_namespace else {
            return Ok(());
        };
        let name = &self.ledger.namespace;
        let body = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {OWN.0: OWN.1}},
        });
        let path = "/api/v1/namespaces".to_owned();
        self.create(path, body.to_string(), creation)
            .await
            .with_context(|| format!("cannot make namespace {name} (--writer, --write-namespace)"))
    }

    /// Creates the objects. After the first that fails, or an interruption, no other is begun.
    async fn make_objects(&self, interrupt: &CancellationToken) -> anyhow::Result<()> {
        // Random, as real data does not shrink to nothing under gzip.
        let filler: String = std::iter::repeat_with(fastrand::alphanumeric)
            .take(self.object_bytes)
            .collect();
        for some in self.ledger.objects.chunks(AT_A_TIME) {
            if interrupt.is_cancelled() {
                break;
            }
            let creations: Vec<_> = some
                .iter()
                .map(|entry| self.make_object(entry, &filler))
                .collect();
            let made = futures_util::future::join_all(creations).await;
            made.into_iter().collect::<anyhow::Result<()>>()?;
        }
        Ok(())
    }

    async fn make_object(&self, entry: &WrittenObject, filler: &str) -> anyhow::Result<()> {
        let path = KubectlResource::config_maps().collection(&self.ledger.namespace);
        let labels: serde_json::Map<_, _> = entry
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), value.clone().into()))
            .collect();
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": entry.name, "labels": labels},
            "data": {"filler": filler},
        });
        let created = self.create(path, body.to_string(), &entry.creation).await;
        created.map_err(|error| {
            let exists = error.status() == Some(StatusCode::CONFLICT);
            anyhow::Error::new(error).context(self.cannot_make(entry, exists))
        })
    }

    /// Creates an object and notes what is known of it.
    async fn create(
        &self,
        path: String,
        body: String,
        creation: &Mutex<Creation>,
    ) -> Result<(), LoadError> {
        *creation.lock() = Creation::Unanswered;
        let answer = self.send(Method::POST, path, JSON, body.into()).await;
        *creation.lock() = Creation::of(&answer);
        answer
    }

    /// Returns the message for an object that cannot be created. If it exists, another load made it.
    fn cannot_make(&self, entry: &WrittenObject, exists: bool) -> String {
        let (name, namespace) = (&entry.name, &self.ledger.namespace);
        let advice = if exists {
            format!(
                "; is there another load, or was one killed? `kubectl delete configmaps -n \
                 {namespace} -l {}={}` removes what it left",
                OWN.0, OWN.1
            )
        } else {
            String::new()
        };
        format!(
            "cannot make ConfigMap {name} in namespace {namespace} (--writer, \
             --write-namespace{advice})"
        )
    }

    async fn send(
        &self,
        method: Method,
        path: String,
        content_type: &str,
        body: Bytes,
    ) -> Result<(), LoadError> {
        let content = (!body.is_empty()).then_some((content_type, body));
        let lane = fastrand::usize(..CONNECTIONS);
        let request = LoadRequest {
            method,
            path,
            accept: JSON,
            gzip: false,
            content,
        };
        self.connections
            .send(lane, request)
            .await?
            .whole(MAX_ANSWER_BYTES)
            .await
            .map(drop)
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Writes at its rate until it is stopped; returns when all writes under way have ended. After an
    /// interruption none is tried again.
    pub(super) async fn run(
        self: &Arc<Self>,
        tally: &Arc<RoundTally>,
        stop: &CancellationToken,
        interrupt: &CancellationToken,
    ) {
        let started = Instant::now();
        let mut under_way = JoinSet::new();
        for n in 0.. {
            let due = started + self.rate.due(n);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep_until(due) => {}
            }
            while under_way.try_join_next().is_some() {}
            let Some(object) = self.idle.lock().pop_front() else {
                tally.writes.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let (writer, tally) = (Arc::clone(self), Arc::clone(tally));
            let interrupt = interrupt.clone();
            under_way.spawn(async move {
                if writer.write(object, due, &tally, &interrupt).await {
                    writer.idle.lock().push_back(object);
                }
            });
        }
        while under_way.join_next().await.is_some() {}
    }

    /// Does the write that was due at a moment. Returns `true` if it is known to have been done.
    async fn write(
        &self,
        object: u16,
        due: Instant,
        tally: &RoundTally,
        interrupt: &CancellationToken,
    ) -> bool {
        let (Some(entry), Some(path)) = (
            self.ledger.objects.get(usize::from(object)),
            self.ledger.path(object),
        ) else {
            return false;
        };
        let sequence = entry.confirmed.load(Ordering::Acquire) + 1;
        let stamp = Stamp {
            run: self.run,
            object,
            sequence,
            nanos: stamp::now(),
        };
        let body = Bytes::from(
            json!({"metadata": {"annotations": {ANNOTATION: stamp.to_string()}}}).to_string(),
        );
        for attempt in 1..=ATTEMPTS {
            match self
                .send(Method::PATCH, path.clone(), MERGE_PATCH, body.clone())
                .await
            {
                Ok(()) => {
                    // A stalled server would hide the writes that it delayed otherwise.
                    tally.writes.add(due.elapsed(), body.len() as u64);
                    entry.confirmed.store(sequence, Ordering::Release);
                    return true;
                }
                Err(error) => tally.error("write", error),
            }
            if attempt == ATTEMPTS || interrupt.is_cancelled() {
                break;
            }
            sleep(PAUSE).await;
        }
        false
    }

    /// Deletes all that was made. Returns `false` if something is or may be left, which is then
    /// logged.
    pub(super) async fn clean_up(&self) -> bool {
        let is_own = self.own_namespace.is_some();
        let (mut is_clean, mut objects) = (true, Vec::new());
        for (number, entry) in (0_u16..).zip(&self.ledger.objects) {
            match *entry.creation.lock() {
                Creation::Absent => {}
                // Another load may have an object of this name in a given namespace.
                Creation::Unanswered if !is_own => {
                    tracing::error!(name = entry.name, "this ConfigMap may have been made");
                    is_clean = false;
                }
                Creation::Unanswered | Creation::Done => objects.push(number),
            }
        }
        self.delete(objects).await && is_clean
    }

    async fn delete(&self, objects: Vec<u16>) -> bool {
        let deleted = async {
            let mut clean = true;
            for some in objects.chunks(AT_A_TIME) {
                let paths = some.iter().filter_map(|object| self.ledger.path(*object));
                let answers =
                    futures_util::future::join_all(paths.map(|path| self.remove(path))).await;
                clean &= answers.into_iter().all(|gone| gone);
            }
            let namespace = self.own_namespace.as_ref();
            if namespace.is_some_and(|creation| *creation.lock() != Creation::Absent) {
                let path = format!("/api/v1/namespaces/{}", self.ledger.namespace);
                clean &= self.remove(path).await;
            }
            clean
        };
        timeout(CLEAN_UP, deleted).await.unwrap_or_else(|_| {
            tracing::error!(
                namespace = self.ledger.namespace,
                "not all that was written could be deleted in time"
            );
            false
        })
    }

    async fn remove(&self, path: String) -> bool {
        for attempt in 1..=ATTEMPTS {
            match self
                .send(Method::DELETE, path.clone(), JSON, Bytes::new())
                .await
            {
                Ok(()) => return true,
                Err(error)
                    if matches!(
                        error.status(),
                        Some(StatusCode::NOT_FOUND | StatusCode::CONFLICT)
                    ) =>
                {
                    return true;
                }
                Err(error) if attempt == ATTEMPTS => {
                    tracing::error!(path, %error, "cannot delete what was written");
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
        false
    }
}
