//! The objects of a selection, as references.
use std::ops::Deref;
use std::sync::Arc;

use crate::store::{ObjectRun, StoredObject};

/// Objects of a state, in the order of their keys.
#[derive(Default)]
pub(super) struct SelectedObjects {
    objects: Vec<Arc<StoredObject>>,
    /// Pieces of an older state. They count the memory of the objects that were made for it.
    restored: Vec<ObjectRun>,
}

impl SelectedObjects {
    /// Adds the objects of a piece that match, until there are `limit` objects. Returns `true` if
    /// others follow in the piece.
    pub(super) fn add(
        &mut self,
        run: &ObjectRun,
        limit: usize,
        is_restored: bool,
        matches: impl Fn(&StoredObject) -> bool,
    ) -> bool {
        let before = self.objects.len();
        let mut objects = run.objects().iter();
        while self.objects.len() < limit
            && let Some(object) = objects.next()
        {
            if matches(object) {
                self.objects.push(Arc::clone(object));
            }
        }
        if is_restored && self.objects.len() > before {
            self.restored.push(run.clone());
        }
        objects.len() > 0
    }

    /// Returns the bytes of the references.
    pub(super) fn own_bytes(&self) -> usize {
        self.objects.capacity() * size_of::<Arc<StoredObject>>()
            + self.restored.capacity() * size_of::<ObjectRun>()
    }
}

#[cfg(test)]
impl From<Vec<Arc<StoredObject>>> for SelectedObjects {
    fn from(objects: Vec<Arc<StoredObject>>) -> Self {
        Self {
            objects,
            restored: Vec::new(),
        }
    }
}

impl Deref for SelectedObjects {
    type Target = [Arc<StoredObject>];

    fn deref(&self) -> &Self::Target {
        &self.objects
    }
}
