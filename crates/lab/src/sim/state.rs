//! The state of the simulated cluster: the objects of every type, one version counter over all of
//! them, and a bounded history per type.
//!
//! This plays etcd and the API server's watch cache at once. The two differ in one point that
//! clients can see, and it is kept: a type's *cache version* stays behind the global version until
//! an event of its own type, a consistent read, or etcd's progress notification moves it.
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fixtures;
use super::kinds::{KINDS, ResourceKind};
use super::object::{Draft, SimulatedObject};
use table::TypeTable;
pub(crate) use table::{TypeView, WriteEvent};
use watershed_protocol::GroupVersionResource;

/// The refusal of a write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The type is unknown, or not served at the moment.
    #[error("the server could not find the requested resource")]
    UnknownResource,
    /// The body isn't an object this server can store.
    #[error("{0}")]
    Invalid(String),
    /// Create of a name that is taken.
    #[error("already exists")]
    AlreadyExists,
    /// Update or delete of a name that isn't there.
    #[error("not found")]
    NotFound,
    /// Update with a resourceVersion that isn't the object's.
    #[error(
        "the object has been modified; \
         please apply your changes to the latest version and try again"
    )]
    Conflict,
}

#[derive(Clone, Debug)]
struct ClusterTables {
    version: u64,
    tables: Vec<TypeTable>,
    /// Number of times that everything was replaced by a branch.
    restores: u64,
}

/// The state of the simulated cluster. It is cheap to share, and no method holds the lock for long.
#[derive(Debug)]
pub struct ClusterState {
    inner: RwLock<ClusterTables>,
    /// One sender a type, outside of the lock so that watchers wake after it is released.
    wake: Vec<watch::Sender<u64>>,
    /// Events kept per type.
    history: usize,
    /// Makes uids differ between seeds and equal between runs.
    seed: u64,
}

/// The result of a look for events after a watcher's cursor.
pub(crate) enum EventsSince {
    /// The events, oldest first, and the type's cache version after the last of them.
    Events(Vec<Arc<WriteEvent>>, u64),
    /// The cursor has fallen out of the history; the oldest version that would do.
    TooOld(u64),
    /// The type is not served any more.
    Gone,
}

impl ClusterState {
    pub(crate) fn new(history: usize, seed: u64) -> Self {
        // A fresh etcd isn't at zero either, and zero means "any" on the wire.
        let version = 1;
        Self {
            inner: RwLock::new(ClusterTables {
                version,
                tables: KINDS.iter().map(|_| TypeTable::empty(version)).collect(),
                restores: 0,
            }),
            wake: KINDS.iter().map(|_| watch::Sender::new(version)).collect(),
            history: history.max(1),
            seed,
        }
    }

    /// The global version: what a consistent read would see now.
    pub fn version(&self) -> u64 {
        self.inner.read().version
    }

    /// Creates an object from its JSON; kind and apiVersion may be missing. Returns the version of
    /// the write.
    pub fn create(&self, gvr: &GroupVersionResource, json: &str) -> Result<u64, WriteError> {
        let (index, _) = ResourceKind::of(gvr).ok_or(WriteError::UnknownResource)?;
        let draft = Draft::parse(json.as_bytes()).map_err(WriteError::Invalid)?;
        self.create_draft(index, draft).map(|o| o.version)
    }

    /// Creates `count` copies of an object. `name_of` returns the name of each. The JSON is parsed
    /// once, which matters for large objects.
    pub fn create_copies(
        &self,
        gvr: &GroupVersionResource,
        json: &str,
        count: usize,
        name_of: impl Fn(usize) -> String,
    ) -> Result<(), WriteError> {
        let (index, _) = ResourceKind::of(gvr).ok_or(WriteError::UnknownResource)?;
        let draft = Draft::parse(json.as_bytes()).map_err(WriteError::Invalid)?;
        for number in 0..count {
            let mut copy = draft.clone();
            copy.set_text("name", &name_of(number));
            self.create_draft(index, copy)?;
        }
        Ok(())
    }

    /// Replaces an object by its JSON. A resourceVersion in it must be the present one.
    ///
    /// There is an event in any case. Clients of the server make none by updates without a change.
    pub fn update(&self, gvr: &GroupVersionResource, json: &str) -> Result<u64, WriteError> {
        let (index, _) = ResourceKind::of(gvr).ok_or(WriteError::UnknownResource)?;
        let draft = Draft::parse(json.as_bytes()).map_err(WriteError::Invalid)?;
        self.update_draft(index, draft).map(|o| o.version)
    }

    /// Deletes an object. `namespace` is ignored for cluster-scoped types. Returns the version of
    /// the deletion.
    pub fn delete(
        &self,
        gvr: &GroupVersionResource,
        namespace: &str,
        name: &str,
    ) -> Result<u64, WriteError> {
        let (index, kind) = ResourceKind::of(gvr).ok_or(WriteError::UnknownResource)?;
        self.delete_key(index, &key(kind, namespace, name))
            .map(|(version, _)| version)
    }

    /// Every object of a type: key (`namespace/name` or name) → version and bytes.
    pub fn snapshot(&self, gvr: &GroupVersionResource) -> BTreeMap<String, (u64, Bytes)> {
        let Some((index, _)) = ResourceKind::of(gvr) else {
            return BTreeMap::new();
        };
        let objects = self.inner.read().tables[index].objects.clone();
        objects
            .iter()
            .map(|(k, o)| (k.to_string(), (o.version, o.bytes.clone())))
            .collect()
    }

    /// One object by its key (`namespace/name`), with its version.
    pub fn object(&self, gvr: &GroupVersionResource, key: &str) -> Option<(u64, Bytes)> {
        let object = self.get(ResourceKind::of(gvr)?.0, key)?;
        Some((object.version, object.bytes.clone()))
    }

    /// Changes how an object is printed, in the same version and without an event, as an upgrade of
    /// the API server does.
    pub fn reprint(
        &self,
        gvr: &GroupVersionResource,
        key: &str,
        change: impl FnOnce(&str) -> String,
    ) -> Result<(), WriteError> {
        let (index, kind) = ResourceKind::of(gvr).ok_or(WriteError::UnknownResource)?;
        let table = &mut self.inner.write().tables[index];
        let object = table.objects.get(key).cloned();
        let object = object.ok_or(WriteError::NotFound)?;
        let text = change(&String::from_utf8_lossy(&object.bytes));
        let draft = Draft::parse(text.as_bytes()).map_err(WriteError::Invalid)?;
        let printed = draft.finish(kind, object.version).printed_as(text);
        table.reprint(&Arc::new(printed));
        Ok(())
    }

    /// Forgets a type's history, as etcd's compaction followed by an eviction would: only the
    /// present stays.
    pub fn compact(&self, gvr: &GroupVersionResource) {
        if let Some((index, _)) = ResourceKind::of(gvr) {
            let mut inner = self.inner.write();
            let table = &mut inner.tables[index];
            table.forget(table.cache_version);
        }
    }

    /// Forgets the history of every type, as a restart of the API server does: a watch from any
    /// version below the present *global* one is too old, even where the type has not changed
    /// since.
    pub fn forget_history(&self) {
        let mut inner = self.inner.write();
        let version = inner.version;
        for table in &mut inner.tables {
            table.hear(version);
            table.forget(version);
        }
    }

    /// Returns a copy that goes its own way from here on, as an etcd does that is started from a
    /// backup. API servers in front of it have no history from before.
    #[must_use]
    pub fn branch(&self) -> Self {
        let inner = self.inner.read().clone();
        let version = inner.version;
        let branch = Self {
            inner: RwLock::new(inner),
            wake: KINDS.iter().map(|_| watch::Sender::new(version)).collect(),
            history: self.history,
            // An object that is made at the same version in both must not be the same.
            seed: self.seed.wrapping_add(1),
        };
        branch.forget_history();
        branch
    }

    /// Becomes a copy of a branch, in one step. Open watches break.
    pub(crate) fn restore(&self, branch: &Self) {
        let restored = branch.inner.read().clone();
        let version = restored.version;
        {
            let mut inner = self.inner.write();
            let restores = inner.restores + 1;
            *inner = ClusterTables {
                restores,
                ..restored
            };
        }
        for wake in &self.wake {
            wake.send_replace(version);
        }
    }

    /// Returns the number of restores so far. A watch ends with the next one.
    pub(crate) fn restores(&self) -> u64 {
        self.inner.read().restores
    }

    /// Serves the custom type or takes it away, with its definition and all its objects. Watches on
    /// it end.
    pub fn serve_custom(&self, gvr: &GroupVersionResource, served: bool) {
        let Some((index, _)) = ResourceKind::of(gvr) else {
            return;
        };
        let definitions =
            GroupVersionResource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        // A server that was populated by hand may have none.
        let _ = if served {
            self.create(&definitions, &fixtures::widget_definition())
        } else {
            self.delete(&definitions, "", &format!("{}.{}", gvr.resource, gvr.group))
        };
        let version = {
            let mut inner = self.inner.write();
            inner.version += 1;
            let version = inner.version;
            let table = &mut inner.tables[index];
            table.objects = OrdMap::new();
            table.served = served;
            table.hear(version);
            table.forget(version);
            version
        };
        self.wake[index].send_replace(version);
    }

    /// Tells every type's cache the global version, as etcd's periodic progress notification does.
    pub fn notify_progress(&self) {
        let version = {
            let mut inner = self.inner.write();
            let version = inner.version;
            for table in &mut inner.tables {
                table.hear(version);
            }
            version
        };
        for wake in &self.wake {
            wake.send_if_modified(|v| std::mem::replace(v, version) != version);
        }
    }

    pub(crate) fn served(&self, index: usize) -> bool {
        self.inner.read().tables[index].served
    }

    pub(crate) fn create_draft(
        &self,
        index: usize,
        mut draft: Draft,
    ) -> Result<Arc<SimulatedObject>, WriteError> {
        let kind = &KINDS[index];
        let name = draft.text("name");
        if name.is_empty() {
            return Err(WriteError::Invalid(
                "name or generateName is required".to_owned(),
            ));
        }
        if !kind.namespaced {
            draft.set_text("namespace", "");
        } else if draft.text("namespace").is_empty() {
            draft.set_text("namespace", "default");
        }
        let at = key(kind, &draft.text("namespace"), &name);
        self.write(index, &at, |before, version| {
            if before.is_some() {
                return Err(WriteError::AlreadyExists);
            }
            draft.set_text("uid", &uid(self.seed, version));
            draft.set_text("creationTimestamp", &timestamp(version));
            if draft.number("generation").is_none() && matches!(kind.group, "apps" | "example.com")
            {
                draft.set_raw("generation", "1".to_owned());
            }
            Ok(Some(draft))
        })
        .map(|event| {
            event
                .after
                .clone()
                .unwrap_or_else(|| unreachable!("a creation leaves an object"))
        })
    }

    pub(crate) fn update_draft(
        &self,
        index: usize,
        mut draft: Draft,
    ) -> Result<Arc<SimulatedObject>, WriteError> {
        let kind = &KINDS[index];
        let at = key(kind, &draft.text("namespace"), &draft.text("name"));
        self.write(index, &at, |before, _| {
            let before = before.ok_or(WriteError::NotFound)?;
            let expected = draft.text("resourceVersion");
            if !expected.is_empty() && expected != before.version.to_string() {
                return Err(WriteError::Conflict);
            }
            draft.follow(before).map_err(WriteError::Invalid)?;
            Ok(Some(draft))
        })
        .map(|event| {
            event
                .after
                .clone()
                .unwrap_or_else(|| unreachable!("an update leaves an object"))
        })
    }

    /// Deletes an object by its key. Returns the version of the deletion and the last state.
    pub(crate) fn delete_key(
        &self,
        index: usize,
        at: &str,
    ) -> Result<(u64, Arc<SimulatedObject>), WriteError> {
        let event = self.write(index, at, |before, _| {
            before.map(|_| None).ok_or(WriteError::NotFound)
        })?;
        let before = event
            .before
            .clone()
            .unwrap_or_else(|| unreachable!("a deletion had an object"));
        Ok((event.version, before))
    }

    /// Returns the newest state of one object.
    pub(crate) fn get(&self, index: usize, at: &str) -> Option<Arc<SimulatedObject>> {
        self.inner.read().tables[index].objects.get(at).cloned()
    }

    /// Returns the type's state in its cache.
    pub(crate) fn view(&self, index: usize) -> TypeView {
        self.inner.read().tables[index].view()
    }

    /// Returns the type's state in a cache that is so far behind.
    pub(crate) fn view_behind(&self, index: usize, by: Duration) -> TypeView {
        let moment = Instant::now().checked_sub(by);
        self.inner.read().tables[index].view_at(moment)
    }

    /// The type's present, after its cache has caught up with the global version: a consistent
    /// read.
    pub(crate) fn fresh_view(&self, index: usize) -> TypeView {
        let (view, moved) = {
            let mut inner = self.inner.write();
            let version = inner.version;
            let table = &mut inner.tables[index];
            let moved = table.hear(version);
            (table.view(), moved)
        };
        if moved {
            self.wake[index].send_replace(view.version);
        }
        view
    }

    /// The type exactly at a version not beyond the present; `None` when the history doesn't reach
    /// back so far.
    pub(crate) fn exact_view(&self, index: usize, version: u64) -> Option<TypeView> {
        self.inner.read().tables[index].exact(version)
    }

    /// Waits until the global version is at least `version`; false when `limit` passes first.
    pub(crate) async fn reached(&self, version: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        // Any type's write moves the global version, so this polls; upstream asks etcd every 100 ms
        // as well.
        while self.version() < version {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        true
    }

    /// The events after a cursor.
    pub(crate) fn recent(&self, index: usize, cursor: u64) -> EventsSince {
        let inner = self.inner.read();
        let table = &inner.tables[index];
        if !table.served {
            return EventsSince::Gone;
        }
        if cursor < table.floor {
            return EventsSince::TooOld(table.floor);
        }
        let first = table.events.partition_point(|e| e.version <= cursor);
        EventsSince::Events(
            table.events.range(first..).cloned().collect(),
            table.cache_version,
        )
    }

    /// Wakes the watchers of a type.
    pub(crate) fn subscribe(&self, index: usize) -> watch::Receiver<u64> {
        self.wake[index].subscribe()
    }

    /// Assigns the next version to a write. `decide` gets the old object and the new version, and
    /// returns the new object, or `None` for a deletion.
    fn write(
        &self,
        index: usize,
        at: &str,
        decide: impl FnOnce(Option<&SimulatedObject>, u64) -> Result<Option<Draft>, WriteError>,
    ) -> Result<Arc<WriteEvent>, WriteError> {
        let event = {
            let mut inner = self.inner.write();
            let version = inner.version + 1;
            let table = &mut inner.tables[index];
            if !table.served {
                return Err(WriteError::UnknownResource);
            }
            let before = table.objects.get(at).cloned();
            let after = decide(before.as_deref(), version)?
                .map(|d| Arc::new(d.finish(&KINDS[index], version)));
            match &after {
                Some(object) => table
                    .objects
                    .insert(Arc::clone(&object.key), Arc::clone(object)),
                None => table.objects.remove(at),
            };
            let objects = table.objects.clone();
            let event = Arc::new(WriteEvent {
                version,
                before,
                after,
                objects,
                at: Instant::now(),
            });
            table.push(Arc::clone(&event), self.history);
            inner.version = version;
            event
        };
        self.wake[index].send_replace(event.version);
        Ok(event)
    }
}

/// The storage key of an object below its type's prefix.
pub(crate) fn key(kind: &ResourceKind, namespace: &str, name: &str) -> String {
    if kind.namespaced {
        format!("{namespace}/{name}")
    } else {
        name.to_owned()
    }
}

/// A uid made of the seed and the version, so that equal seeds give equal bytes.
fn uid(seed: u64, version: u64) -> String {
    let mut rng = fastrand::Rng::with_seed(seed ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (a, b) = (rng.u64(..), rng.u64(..));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | (b >> 48 & 0x3fff),
        b & 0xffff_ffff_ffff
    )
}

/// A wall clock that only versions move, for the same reason: fifty writes a second from a fixed
/// day.
fn timestamp(version: u64) -> String {
    const START: i64 = 1_767_225_600; // 2026-01-01T00:00:00Z
    let seconds = START + i64::try_from(version / 50).unwrap_or_default();
    jiff::Timestamp::from_second(seconds)
        .map(|t| t.to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
