//! Upstream's bytes: objects are cut out of them, scanned for selectors, and framed anew.
//!
//! In JSON, an *object* is the object's text as it is in a watch event, with kind and apiVersion.
//! In protobuf, it is the `raw` field of the `runtime.Unknown`, which is also an item of a list.
//! The part that is the same in every envelope is kept as [`ItemBytes`].
mod bookmark;
mod error_status;
mod format_record;
mod frames;
mod held;
mod identity;
mod item_bytes;
mod items;
mod json;
mod list;
mod malformed;
mod managed_fields;
mod object_meta;
mod partial;
mod protobuf;
mod read_defaults;
mod scanned;
#[cfg(test)]
mod tests;
mod version_list;
mod wire_format;

pub use bookmark::{Bookmark, BookmarkFormat, read_bookmark};
pub use error_status::ErrorStatus;
pub use format_record::FormatRecord;
pub use frames::{EventKind, Frame, FrameDecoder};
pub use identity::{ObjectIdentity, read_identity};
pub use item_bytes::{ItemBytes, ItemRun};
pub(crate) use list::struct_metadata as list_metadata;
pub use list::{ListMetadata, ListPage, ListParts};
pub use malformed::Malformed;
pub use managed_fields::ManagedFields;
pub use partial::PartialFormat;
pub(crate) use protobuf::{envelope, messages, type_meta};
pub use read_defaults::ReadDefaults;
pub use scanned::Scanned;
pub use version_list::{VersionList, VersionListReader};
pub use wire_format::WireFormat;

use scanned::ScanValues;

use crate::{Encoding, FieldTable};

/// Reads an object's version and attributes in one pass over its bytes.
///
/// An object without a name passes, because a bookmark has none. An object with a name must have a
/// namespace exactly if its type is namespaced. JSON is checked to be one well-formed value. Values
/// at unexpected places are ignored.
///
/// ```
/// use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, scan};
///
/// let pods = GroupVersionResource::new("", "v1", "pods");
/// let fields = FieldTable::builtin(&pods, true).expect("the type is known");
/// let object = br#"{"kind":"Pod","apiVersion":"v1",
///     "metadata":{"name":"a","namespace":"b","resourceVersion":"7","labels":{"app":"web"}},
///     "spec":{"nodeName":"node-1"}}"#;
///
/// let scanned = scan(Encoding::Json, object, &fields)?;
/// assert_eq!(scanned.version.0, 7);
/// assert_eq!(scanned.attributes.key(), "b/a");
/// assert_eq!(scanned.attributes.label("app"), Some("web"));
/// let node = fields.position("spec.nodeName").expect("pods have this label");
/// assert_eq!(scanned.attributes.field(node), "node-1");
/// # Ok::<(), watershed_protocol::Malformed>(())
/// ```
pub fn scan(encoding: Encoding, object: &[u8], fields: &FieldTable) -> Result<Scanned, Malformed> {
    let mut found = ScanValues::new(fields);
    match encoding {
        Encoding::Json => json::scan(object, fields.steps(), &mut found)?,
        Encoding::Protobuf => protobuf::scan(object, fields.steps(), &mut found)?,
    }
    found.finish(fields)
}

/// Reads a Status leniently: members that cannot be read stay empty.
///
/// Takes the object of an ERROR event. In protobuf it also takes a whole answer with its `k8s\0`
/// envelope.
pub fn read_error(encoding: Encoding, object: &[u8]) -> ErrorStatus {
    match encoding {
        Encoding::Json => json::read_error(object),
        Encoding::Protobuf => protobuf::read_error(object),
    }
    .unwrap_or_default()
}
