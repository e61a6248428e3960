//! Makes objects of a store from what the reflector scanned.
use std::sync::Arc;

use bytes::Bytes;
use watershed_protocol::{FieldTable, Scanned, WireFormat};

use crate::store::{Layout, SnapshotBuilder, StoredObject};
use crate::upstream::Collect;

/// Returns an object as the store takes it: a slice of `object`.
pub(super) fn stored_object(format: &WireFormat, object: &Bytes, scanned: Scanned) -> StoredObject {
    StoredObject {
        bytes: format.item_bytes(object).into(),
        version: scanned.version,
        attributes: scanned.attributes,
    }
}

impl Collect for SnapshotBuilder {
    fn begin(format: &Arc<WireFormat>, fields: &FieldTable) -> Self {
        Self::new(Layout {
            format: Arc::clone(format),
            indexed: fields.indexed(),
        })
    }

    fn add(&mut self, object: &Bytes, scanned: Scanned) {
        self.put(stored_object(self.format(), object, scanned));
    }
}
