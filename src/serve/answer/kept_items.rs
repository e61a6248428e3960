//! Rows or metadata that were made to measure a list, and are kept until it is sent.
use crate::serve::limits::list_memory::ListMemory;

/// The rows or metadata of the first objects of a list, made to measure it. Those of the others are
/// made again when the list is sent.
pub(super) struct KeptItems<T> {
    items: Vec<T>,
    bytes: usize,
    is_full: bool,
}

impl<T> Default for KeptItems<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            bytes: 0,
            is_full: false,
        }
    }
}

impl<T> KeptItems<T> {
    /// Keeps the next object's item, if there is memory for it and there was for all before. `item`
    /// returns the item with the bytes that it takes.
    pub(super) fn push(&mut self, memory: &mut ListMemory, item: impl FnOnce() -> (T, usize)) {
        if self.is_full {
            return;
        }
        let (item, bytes) = item();
        self.bytes += bytes;
        if memory.may_keep(self.bytes) {
            self.items.push(item);
        } else {
            self.is_full = true;
        }
    }

    /// Returns the item of an object, if it was kept.
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.items.get(index)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }
}
