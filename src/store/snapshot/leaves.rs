//! The leaves of a snapshot by their first key.
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use crate::store::leaf::Leaf;

/// Leaves in the order of their keys. Cloning costs O(1).
///
/// It is a map by keys and no set of leaves: inner nodes of the tree keep copies of keys that were
/// removed long ago. A leaf among these would stay in memory as a whole.
///
/// The persistent map is an implementation detail: nothing outside this module names it.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves(OrdMap<Arc<str>, Arc<Leaf>>);

impl Leaves {
    /// Returns the number of leaves.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if both have the same leaves because one is a copy of the other.
    pub(super) fn is_copy_of(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Returns the leaves in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.0.values()
    }

    /// Returns the leaves that begin behind `key`, in order.
    pub(super) fn behind<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Arc<Leaf>> + use<'a> {
        self.range((Bound::Excluded(key), Bound::Unbounded))
    }

    /// Returns the leaves that begin with `key` or behind it, in order.
    pub(super) fn starting_at<'a>(
        &'a self,
        key: &str,
    ) -> impl Iterator<Item = &'a Arc<Leaf>> + use<'a> {
        self.range((Bound::Included(key), Bound::Unbounded))
    }

    fn range<'a>(
        &'a self,
        keys: (Bound<&str>, Bound<&str>),
    ) -> impl Iterator<Item = &'a Arc<Leaf>> + use<'a> {
        self.0.range::<_, str>(keys).map(|(_, leaf)| leaf)
    }

    /// Returns the last leaf that begins with `key` or before it: the one that has the key, if any
    /// has.
    pub(super) fn around(&self, key: &str) -> Option<&Arc<Leaf>> {
        self.0.get_prev(key).map(|(_, leaf)| leaf)
    }

    /// Returns the first leaf.
    pub(super) fn first(&self) -> Option<&Arc<Leaf>> {
        self.0.get_min().map(|(_, leaf)| leaf)
    }

    /// Adds a leaf. Replaces the one that begins with the same key.
    pub(super) fn insert(&mut self, leaf: Leaf) {
        match self.0.get_mut(leaf.first_key()) {
            Some(place) => *place = Arc::new(leaf),
            None => drop(self.0.insert(leaf.first_key().into(), Arc::new(leaf))),
        }
    }

    /// Removes a leaf.
    pub(super) fn remove(&mut self, leaf: &Leaf) {
        self.0.remove(leaf.first_key());
    }
}
