//! Finds objects by the value of the field that clients select by most.
use std::sync::Arc;

use imbl::OrdSet;

use super::object::StoredObject;

/// The keys of a snapshot's objects by the value of one field. Cloning costs O(1).
#[derive(Clone, Debug)]
pub(super) struct ByField {
    position: usize,
    /// Value and key, with a byte between them that neither has.
    entries: OrdSet<Arc<str>>,
}

const BETWEEN: char = '\0';
const AFTER: char = '\u{1}';

impl ByField {
    pub(super) fn new(position: usize) -> Self {
        Self {
            position,
            entries: OrdSet::new(),
        }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Returns the keys of the objects with this value, in order and behind `after`.
    pub(super) fn keys_after(
        &self,
        value: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &str> {
        let mut from = format!("{value}{BETWEEN}");
        let skipped = from.len();
        let to = format!("{value}{AFTER}");
        // No key is empty, so that the bound itself is never an entry.
        from.push_str(after.unwrap_or_default());
        let entries = self.entries.range::<_, str>((
            std::ops::Bound::Excluded(from.as_str()),
            std::ops::Bound::Excluded(to.as_str()),
        ));
        entries.map(move |entry| &entry[skipped..])
    }

    pub(super) fn insert(&mut self, object: &StoredObject) {
        self.entries.insert(self.entry(object).into());
    }

    pub(super) fn remove(&mut self, object: &StoredObject) {
        self.entries.remove(self.entry(object).as_str());
    }

    /// Removes the entry of an object that `new` replaced. `new` is in the index already.
    pub(super) fn replaced(&mut self, old: &StoredObject, new: &StoredObject) {
        if old.attributes.field(self.position) != new.attributes.field(self.position) {
            self.remove(old);
        }
    }

    fn entry(&self, object: &StoredObject) -> String {
        format!(
            "{}{BETWEEN}{}",
            object.attributes.field(self.position),
            object.key()
        )
    }
}
