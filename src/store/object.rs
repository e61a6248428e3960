//! One object: upstream's bytes, and the attributes the proxy needs.
use watershed_protocol::{ItemBytes, ObjectAttributes, ResourceVersion};

/// An object as upstream sent it. Invariant `bytes`: `bytes` is never re-encoded.
#[derive(Debug)]
pub struct StoredObject {
    /// Upstream's bytes, as far as they are held. They may share memory with the objects beside.
    pub bytes: ItemBytes,
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// Name, namespace, labels and selectable fields.
    pub attributes: ObjectAttributes,
}

impl StoredObject {
    /// Returns `namespace/name`, or `name` if cluster-scoped. Upstream lists in the order of keys.
    pub fn key(&self) -> &str {
        self.attributes.key()
    }

    /// Returns the bytes held for it, without the allocator's overhead.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.attributes.heap_size() + size_of::<Self>()
    }
}
