//! An immutable view of a scope at one resourceVersion.
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdSet;

use super::object::{ByKey, Object};
use super::window::Event;
use crate::kube::ResourceVersion;

/// The objects of a scope at one version, in upstream's key order. Cloning costs O(1).
///
/// The persistent map behind it is an implementation detail: nothing outside this file names it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    version: ResourceVersion,
    /// Which of the scope's lists it goes back to. What was known before a fresh list does not mix with it.
    generation: u64,
    objects: OrdSet<ByKey>,
    size: usize,
}

impl Snapshot {
    /// A snapshot of `objects` at `version`; of several objects with one key the last stays.
    pub fn new(version: ResourceVersion, objects: impl IntoIterator<Item = Arc<Object>>) -> Self {
        let mut snapshot = Self { version, ..Self::default() };
        for object in objects {
            snapshot.insert(object);
        }
        snapshot
    }

    /// The version this is the state at. Every object's own version is at most this.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Bytes held by the objects.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The object with this key (`namespace/name`, or `name` when cluster-scoped).
    pub fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(key).map(|entry| &entry.0)
    }

    /// The objects of one namespace, or of all, in key order.
    pub fn items<'a>(&'a self, namespace: Option<&str>) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let (from, to) = bounds(namespace);
        self.objects.range::<_, str>((as_deref(&from), as_deref(&to))).map(|entry| &entry.0)
    }

    /// The objects of one namespace, or of all, whose keys come after `after`. That is relative to the
    /// namespace, as in a continue token.
    pub fn items_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let (mut from, to) = bounds(namespace);
        match (after, &mut from) {
            (Some(after), Bound::Included(key)) => {
                key.push_str(after);
                from = Bound::Excluded(std::mem::take(key));
            }
            (Some(after), from) => *from = Bound::Excluded(after.to_owned()),
            (None, _) => {}
        }
        // A token of another list may lie behind the end.
        let empty = matches!((&from, &to), (Bound::Excluded(from), Bound::Excluded(to)) if from >= to);
        let range = (!empty).then(|| self.objects.range::<_, str>((as_deref(&from), as_deref(&to))));
        range.into_iter().flatten().map(|entry| &entry.0)
    }

    /// As [`Snapshot::items`], as an iterator that owns its snapshot, for bodies that outlive the caller.
    pub fn into_items(self, namespace: Option<&str>) -> Items {
        let (from, to) = bounds(namespace);
        Items { snapshot: self, from, to }
    }

    /// Takes an event back that led to this state. Its version is the caller's to set.
    pub(super) fn undo(&mut self, event: &Event) {
        match &event.previous {
            Some(previous) => self.insert(Arc::clone(previous)),
            None => self.remove(event.object.key()),
        };
    }

    /// The same objects, as the state at another version.
    pub(super) fn at_version(mut self, version: ResourceVersion) -> Self {
        self.version = version;
        self
    }

    pub(super) fn set_version(&mut self, version: ResourceVersion) {
        self.version = version;
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    pub(super) fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        self.size += object.size();
        let old = self.objects.insert(ByKey(object)).map(|entry| entry.0);
        self.size -= old.as_ref().map_or(0, |old| old.size());
        old
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Arc<Object>> {
        let old = self.objects.remove(key).map(|entry| entry.0);
        self.size -= old.as_ref().map_or(0, |old| old.size());
        old
    }
}

/// The keys of a namespace: they start with `namespace/`, and `0` is the byte after `/`.
fn bounds(namespace: Option<&str>) -> (Bound<String>, Bound<String>) {
    match namespace {
        None => (Bound::Unbounded, Bound::Unbounded),
        Some(namespace) => {
            (Bound::Included(format!("{namespace}/")), Bound::Excluded(format!("{namespace}0")))
        }
    }
}

fn as_deref(bound: &Bound<String>) -> Bound<&str> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Walks a snapshot it owns, a batch at a time.
#[derive(Debug)]
pub struct Items {
    snapshot: Snapshot,
    from: Bound<String>,
    to: Bound<String>,
}

impl Items {
    /// The version of the snapshot walked over.
    pub fn version(&self) -> ResourceVersion {
        self.snapshot.version
    }

    /// Calls `each` with the next objects until it answers `false` or the end is reached.
    /// Returns whether there is more; the object at which `each` said `false` counts as taken.
    pub fn next_batch(&mut self, mut each: impl FnMut(&Arc<Object>) -> bool) -> bool {
        let mut last = None;
        for entry in self.snapshot.objects.range::<_, str>((as_deref(&self.from), as_deref(&self.to))) {
            if !each(&entry.0) {
                last = Some(entry.0.key().to_owned());
                break;
            }
        }
        match last {
            Some(key) => {
                self.from = Bound::Excluded(key);
                true
            }
            None => false,
        }
    }
}
