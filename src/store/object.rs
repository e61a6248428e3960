//! One object: upstream's bytes and what the proxy must know of them.
use watershed_protocol::{ItemBytes, ObjectAttributes, ResourceVersion};

/// An object as upstream sent it. Invariant `bytes`: `bytes` is never re-encoded.
#[derive(Debug)]
pub struct StoredObject {
    /// What is held of upstream's bytes. They may be a part of what the objects beside it are held
    /// in.
    pub bytes: ItemBytes,
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// Name, namespace, labels and selectable fields.
    pub attributes: ObjectAttributes,
}

impl StoredObject {
    /// `namespace/name`, or `name` when cluster-scoped: the order upstream lists in.
    pub fn key(&self) -> &str {
        self.attributes.key()
    }

    /// Bytes held for it, without the allocator's overhead.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.attributes.heap_size() + size_of::<Self>()
    }
}
