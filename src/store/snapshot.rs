//! An immutable view of a scope at one resourceVersion.
mod builder;
#[cfg(test)]
mod tests;

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdSet;

use super::by_field::ByField;
use super::leaf::{Leaf, ObjectRun};
use super::object::StoredObject;
use super::window::WindowEvent;
pub use builder::SnapshotBuilder;
use watershed_protocol::{ResourceVersion, WireFormat};

/// How the objects of a scope are held.
#[derive(Clone, Debug)]
pub struct Layout {
    /// How upstream frames lists and events of the type.
    pub format: Arc<WireFormat>,
    /// The position of the selectable field that objects are found by, if there is one.
    pub indexed: Option<usize>,
}

/// The objects of a scope at one version, in upstream's key order. Cloning costs O(1).
///
/// The persistent map behind it is an implementation detail: nothing outside this file names it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    version: ResourceVersion,
    /// Which of the scope's lists it goes back to. What was known before a fresh list does not mix
    /// with it.
    generation: u64,
    /// `None` before the first list.
    layout: Option<Layout>,
    leaves: OrdSet<ByFirstKey>,
    by_field: Option<ByField>,
    len: usize,
    size: usize,
}

/// An object that is not part of the newest state any more.
pub(super) struct Replaced {
    pub(super) object: Arc<StoredObject>,
    /// Its bytes hold the bytes of others in memory.
    pub(super) shares: bool,
}

impl Snapshot {
    /// A snapshot of `objects` at `version`; of several objects with one key the last stays.
    pub fn new(
        version: ResourceVersion,
        layout: Layout,
        objects: impl IntoIterator<Item = StoredObject>,
    ) -> Self {
        let mut builder = SnapshotBuilder::new(layout);
        objects.into_iter().for_each(|object| builder.put(object));
        builder.finish(version)
    }

    /// The version this is the state at. Every object's own version is at most this.
    pub fn version(&self) -> ResourceVersion {
        self.version
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held by the objects.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes of what is held for readers that take gzip. Looks at all leaves.
    pub fn compressed_size(&self) -> usize {
        self.leaves
            .iter()
            .map(|leaf| leaf.0.compressed_bytes())
            .sum()
    }

    /// The object with this key (`namespace/name`, or `name` when cluster-scoped).
    pub fn get(&self, key: &str) -> Option<&Arc<StoredObject>> {
        let leaf = &self.leaves.get_prev(key)?.0;
        Some(&leaf.objects()[leaf.place(key).ok()?])
    }

    /// The objects of one namespace, or of all, in key order.
    pub fn items<'a>(
        &'a self,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<StoredObject>> + use<'a> {
        self.items_after(namespace, None)
    }

    /// The objects of one namespace, or of all, whose keys come after `after`. That is relative to
    /// the namespace, as in a continue token.
    pub fn items_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<StoredObject>> + use<'a> {
        self.parts(Bounds::after(namespace, after))
            .flat_map(|(leaf, from, to)| &leaf.objects()[from..to])
    }

    /// The same, in pieces that can be sent as they are.
    pub fn runs_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = ObjectRun> + use<'a> {
        let parts = self.parts(Bounds::after(namespace, after));
        parts.map(|(leaf, from, to)| ObjectRun {
            leaf: Arc::clone(leaf),
            range: from..to,
        })
    }

    /// The objects whose field at this position has this value, in key order; `None` if they are
    /// not known by it.
    pub fn with_field(
        &self,
        position: usize,
        value: &str,
    ) -> Option<impl Iterator<Item = &Arc<StoredObject>>> {
        let index = self
            .by_field
            .as_ref()
            .filter(|index| index.position() == position)?;
        Some(index.keys(value).filter_map(|key| self.get(key)))
    }

    /// As [`Snapshot::runs_after`] from the beginning, as an iterator that owns its snapshot, for
    /// bodies that outlive the caller.
    pub fn into_runs(self, namespace: Option<&str>) -> ObjectRuns {
        ObjectRuns {
            bounds: Bounds::after(namespace, None),
            snapshot: self,
        }
    }

    /// Takes an event back that led to this state. Its version is the caller's to set.
    pub(super) fn undo(&mut self, event: &WindowEvent) {
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

    /// How many leaves there are: what one look at all of them costs.
    pub(super) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Lets go of what is held twice, as its bytes were put in one place for a reader.
    pub(super) fn settle(&mut self) {
        self.settle_those(Leaf::is_held_twice);
    }

    fn settle_those(&mut self, are_concerned: impl Fn(&Leaf) -> bool) {
        let concerned: Vec<_> = self
            .leaves
            .iter()
            .filter(|leaf| are_concerned(&leaf.0))
            .cloned()
            .collect();
        for leaf in concerned {
            self.leaves.insert(ByFirstKey(Arc::new(leaf.0.settle())));
        }
    }

    /// Puts an object in the place of the one with its key. Before the first list there is no
    /// place.
    pub(super) fn insert(&mut self, object: Arc<StoredObject>) -> Option<Replaced> {
        let format = Arc::clone(&self.layout.as_ref()?.format);
        self.size += object.size();
        if let Some(index) = &mut self.by_field {
            index.insert(&object);
        }
        let Some(leaf) = self
            .leaves
            .get_prev(object.key())
            .or_else(|| self.leaves.get_min())
            .cloned()
        else {
            self.len += 1;
            self.leaves
                .insert(ByFirstKey(Arc::new(Leaf::new(&format, vec![object]))));
            return None;
        };
        let (changed, old) = leaf.0.with(Arc::clone(&object));
        if changed.first_key() != leaf.0.first_key() {
            self.leaves.remove(&leaf);
        }
        match changed.split() {
            None => drop(self.leaves.insert(ByFirstKey(Arc::new(changed)))),
            Some((one, next)) => {
                self.leaves.insert(ByFirstKey(Arc::new(one)));
                self.leaves.insert(ByFirstKey(Arc::new(next)));
            }
        }
        let Some(old) = old else {
            self.len += 1;
            return None;
        };
        self.size -= old.size();
        if let Some(index) = &mut self.by_field {
            index.replaced(&old, &object);
        }
        Some(Replaced {
            shares: leaf.0.shares(&old),
            object: old,
        })
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Replaced> {
        let leaf = self.leaves.get_prev(key)?.clone();
        let (rest, old) = leaf.0.without(key)?;
        self.leaves.remove(&leaf);
        if let Some(rest) = rest {
            let next = self
                .leaves
                .get_next(rest.first_key())
                .filter(|next| rest.is_to_join(&next.0))
                .cloned();
            let joined = next.map(|next| {
                self.leaves.remove(&next);
                rest.join(&next.0)
            });
            self.leaves
                .insert(ByFirstKey(Arc::new(joined.unwrap_or(rest))));
        }
        self.len -= 1;
        self.size -= old.size();
        if let Some(index) = &mut self.by_field {
            index.remove(&old);
        }
        Some(Replaced {
            shares: leaf.0.shares(&old),
            object: old,
        })
    }

    /// The leaves that have keys within the bounds, and the first and last of their objects that
    /// do.
    fn parts(&self, bounds: Bounds) -> impl Iterator<Item = (&Arc<Leaf>, usize, usize)> {
        let begin = self
            .leaves
            .get_prev(bounds.from.as_str())
            .map_or("", |leaf| leaf.0.first_key());
        let leaves = self
            .leaves
            .range::<_, str>((Bound::Included(begin), Bound::Unbounded));
        let parts = leaves.map_while(move |ByFirstKey(leaf)| {
            let (from, to) = bounds.within(leaf);
            // The first leaf may end before the bounds begin.
            (from < to || leaf.first_key() <= bounds.from.as_str()).then_some((leaf, from, to))
        });
        parts.filter(|(_, from, to)| from < to)
    }
}

/// Keys from one, which may count or not, to one before which they end.
#[derive(Clone, Debug)]
struct Bounds {
    from: String,
    with_from: bool,
    to: Option<String>,
}

impl Bounds {
    /// The keys of a namespace start with `namespace/`, and `0` is the byte after `/`.
    fn after(namespace: Option<&str>, after: Option<&str>) -> Self {
        let prefix = namespace
            .map(|namespace| format!("{namespace}/"))
            .unwrap_or_default();
        let to = namespace.map(|namespace| format!("{namespace}0"));
        Self {
            from: prefix + after.unwrap_or_default(),
            with_from: after.is_none(),
            to,
        }
    }

    /// Whether no key has to be looked at.
    fn is_everything(&self) -> bool {
        self.from.is_empty() && self.with_from && self.to.is_none()
    }

    /// The first of a leaf's objects within, and the first behind them.
    fn within(&self, leaf: &Leaf) -> (usize, usize) {
        if self.is_everything() {
            return (0, leaf.objects().len());
        }
        let (first, last) = (
            leaf.first_key(),
            leaf.objects().last().map_or("", |object| object.key()),
        );
        let from = if first > self.from.as_str() {
            0
        } else {
            leaf.place(&self.from)
                .map_or_else(|place| place, |place| place + usize::from(!self.with_from))
        };
        let to = match &self.to {
            Some(to) if last >= to.as_str() => leaf.place(to).unwrap_or_else(|place| place),
            _ => leaf.objects().len(),
        };
        // A token of another list may lie behind the end.
        (from.min(to), to)
    }
}

/// Walks a snapshot it owns, a piece at a time.
#[derive(Debug)]
pub struct ObjectRuns {
    snapshot: Snapshot,
    bounds: Bounds,
}

impl ObjectRuns {
    /// The version of the snapshot walked over.
    pub fn version(&self) -> ResourceVersion {
        self.snapshot.version
    }
}

impl Iterator for ObjectRuns {
    type Item = ObjectRun;

    fn next(&mut self) -> Option<ObjectRun> {
        let (leaf, from, to) = self.snapshot.parts(self.bounds.clone()).next()?;
        let run = ObjectRun {
            leaf: Arc::clone(leaf),
            range: from..to,
        };
        run.objects()
            .last()?
            .key()
            .clone_into(&mut self.bounds.from);
        self.bounds.with_from = false;
        Some(run)
    }
}

/// Orders leaves by their first key, so that a snapshot is a set that can be searched by key.
#[derive(Clone, Debug)]
struct ByFirstKey(Arc<Leaf>);

impl PartialEq for ByFirstKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.first_key() == other.0.first_key()
    }
}

impl Eq for ByFirstKey {}

impl PartialOrd for ByFirstKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByFirstKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.first_key().cmp(other.0.first_key())
    }
}

impl std::borrow::Borrow<str> for ByFirstKey {
    fn borrow(&self) -> &str {
        self.0.first_key()
    }
}
