//! Upstream's bytes: cutting them into objects, reading what selectors ask, framing them anew.
//!
//! An *object* here is, in JSON, the full object text as it stands in a watch event, with kind and
//! apiVersion. In protobuf it is the `raw` of the `runtime.Unknown`, which is also exactly an item
//! of a list. What is held of it is the part that stays the same in every envelope: [`ItemBytes`].
mod bookmark;
mod frames;
mod identity;
mod item_bytes;
mod json;
mod list;
mod object_meta;
mod partial;
mod protobuf;
#[cfg(test)]
mod tests;
mod wire_format;

use std::borrow::Cow;

pub use bookmark::{Bookmark, BookmarkFormat, read_bookmark};
pub use frames::{EventKind, Frame, FrameDecoder};
pub use identity::{ObjectIdentity, read_identity};
pub use item_bytes::{ItemBytes, ItemRun};
pub use list::{ListPage, ListParts};
pub use partial::PartialFormat;
pub use wire_format::WireFormat;

use super::{Encoding, FieldTable, ObjectAttributes, ResourceVersion};

/// Upstream sent something that is not what it should be. Says what, never with the bytes: they may
/// be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed answer from upstream: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// What is kept of an object besides its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// What selectors and lists ask for.
    pub attributes: ObjectAttributes,
}

/// Reads an object's version and attributes in one pass over its bytes.
///
/// An object without a name passes (a bookmark has none); one with a name must have a namespace
/// exactly if its type is namespaced. JSON is checked to be one well-formed value; values at
/// unexpected places are ignored.
pub fn scan(encoding: Encoding, object: &[u8], fields: &FieldTable) -> Result<Scanned, Malformed> {
    let mut found = Found {
        places: vec![None; fields.places()],
        ..Found::default()
    };
    match encoding {
        Encoding::Json => json::scan(object, fields.steps(), &mut found)?,
        Encoding::Protobuf => protobuf::scan(object, fields.steps(), &mut found)?,
    }
    found.finish(fields)
}

/// What a scan collects, still borrowed from the object where it can be.
#[derive(Default)]
struct Found<'a> {
    name: Cow<'a, str>,
    namespace: Cow<'a, str>,
    version: Cow<'a, str>,
    labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Field values by place number of the [`FieldTable`].
    places: Vec<Option<Cow<'a, str>>>,
}

impl Found<'_> {
    fn finish(mut self, fields: &FieldTable) -> Result<Scanned, Malformed> {
        let version = ResourceVersion::parse(&self.version)
            .ok_or(Malformed("object without a resourceVersion"))?;
        if !self.name.is_empty() && fields.namespaced() == self.namespace.is_empty() {
            return Err(Malformed("object's namespace does not fit its type"));
        }
        // Upstream prints maps sorted; the sort is for others. Of equal keys the last wins, as in
        // Go.
        self.labels.reverse();
        self.labels.sort_by(|a, b| a.0.cmp(&b.0));
        self.labels.dedup_by(|later, first| later.0 == first.0);
        let labels = self.labels.iter().map(|(key, value)| (&**key, &**value));
        let attributes = ObjectAttributes::pack(
            &self.namespace,
            &self.name,
            fields.values(&self.places),
            labels,
        )
        .ok_or(Malformed("object with excessive attributes"))?;
        Ok(Scanned {
            version,
            attributes,
        })
    }
}

/// What an ERROR event or a refusal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorStatus {
    /// HTTP status code; 0 if upstream gave none.
    pub code: i64,
    /// Machine-readable reason, for example `Expired`.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

/// Reads a Status leniently: what can't be read stays empty.
///
/// Takes the object of an ERROR event; in protobuf also a whole answer with its `k8s\0` envelope.
pub fn read_error(encoding: Encoding, object: &[u8]) -> ErrorStatus {
    match encoding {
        Encoding::Json => json::read_error(object),
        Encoding::Protobuf => protobuf::read_error(object),
    }
    .unwrap_or_default()
}

/// Where `inner`, a slice of `outer`, starts in it.
fn offset_in(outer: &[u8], inner: &[u8]) -> usize {
    inner.as_ptr().addr() - outer.as_ptr().addr()
}
