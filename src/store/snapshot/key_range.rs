//! A range of keys in a snapshot.
use crate::store::leaf::Leaf;

/// Keys from one on, which may be part of the range or not, up to one that is not.
#[derive(Clone, Debug)]
pub(in crate::store) struct KeyRange {
    from: String,
    with_from: bool,
    to: Option<String>,
}

impl KeyRange {
    /// Returns the range of all keys from this one on.
    pub(in crate::store) fn from(key: String) -> Self {
        Self {
            from: key,
            with_from: true,
            to: None,
        }
    }

    /// Returns the range of a namespace's keys, or of all, behind `after`.
    pub(in crate::store) fn after(namespace: Option<&str>, after: Option<&str>) -> Self {
        let prefix = namespace
            .map(|namespace| format!("{namespace}/"))
            .unwrap_or_default();
        // The keys of a namespace start with `namespace/`, and `0` is the byte after `/`.
        let to = namespace.map(|namespace| format!("{namespace}0"));
        Self {
            from: prefix + after.unwrap_or_default(),
            with_from: after.is_none(),
            to,
        }
    }

    /// Takes the keys up to this one out of the range.
    pub(in crate::store) fn go_behind(&mut self, key: &str) {
        key.clone_into(&mut self.from);
        self.with_from = false;
    }

    /// Returns the key from which on the range may have keys.
    pub(in crate::store) fn start(&self) -> &str {
        &self.from
    }

    /// Returns `true` if the range has the key that it starts from.
    pub(in crate::store) fn has_start(&self) -> bool {
        self.with_from
    }

    /// Returns `true` if the range ends behind this key.
    pub(in crate::store) fn ends_behind(&self, key: &str) -> bool {
        self.to.as_ref().is_none_or(|to| key < to.as_str())
    }

    /// Returns `true` if every key is in the range.
    fn is_everything(&self) -> bool {
        self.from.is_empty() && self.with_from && self.to.is_none()
    }

    /// Returns the index of a leaf's first object in the range, and of the first behind it.
    pub(in crate::store) fn within(&self, leaf: &Leaf) -> (usize, usize) {
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
            leaf.position(&self.from)
                .map_or_else(|index| index, |index| index + usize::from(!self.with_from))
        };
        let to = match &self.to {
            Some(to) if last >= to.as_str() => leaf.position(to).unwrap_or_else(|index| index),
            _ => leaf.objects().len(),
        };
        // A continue token of another list may lie behind the end.
        (from.min(to), to)
    }
}
