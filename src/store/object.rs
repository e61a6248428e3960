//! One object: upstream's bytes and what the proxy must know of them.
use std::sync::Arc;

use bytes::Bytes;

use crate::kube::{Attributes, ResourceVersion};

/// An object as upstream sent it. Invariant `bytes`: `bytes` is never re-encoded.
#[derive(Debug)]
pub struct Object {
    /// The stored form: full JSON text, or the protobuf message without its envelope.
    pub bytes: Bytes,
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// Name, namespace, labels and selectable fields.
    pub attributes: Attributes,
}

impl Object {
    /// `namespace/name`, or `name` when cluster-scoped: the order upstream lists in.
    pub fn key(&self) -> &str {
        self.attributes.key()
    }

    /// Bytes held for it, without the allocator's overhead.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.attributes.heap_size() + size_of::<Self>()
    }
}

/// Orders objects by their key alone, so that a snapshot is a set that can be searched by key.
#[derive(Clone, Debug)]
pub(super) struct ByKey(pub(super) Arc<Object>);

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key().cmp(other.0.key())
    }
}

impl std::borrow::Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}
