//! Objects without `metadata.managedFields`, cut out of their bytes.
//!
//! Upstream leaves the member out of an object that has none, so the rest of the object is printed
//! as it is with it. Sources: `apimachinery/pkg/apis/meta/v1/{types.go,generated.proto}`.
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::json;
use super::malformed::Malformed;
use super::protobuf::{self, FieldReader};

/// Number of the field of `ObjectMeta`.
const FIELD: u32 = 17;
/// The member's name, as upstream prints it.
const MEMBER: &[u8] = br#""managedFields":"#;
const OTHER_STYLE: Malformed = Malformed("managed fields in another style");

/// The treatment of `metadata.managedFields` of a type's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ManagedFields {
    /// They are held as upstream sends them.
    #[default]
    Keep,
    /// They are left out.
    Drop,
}

impl ManagedFields {
    /// Returns `true` if they are held.
    pub fn are_kept(&self) -> bool {
        *self == Self::Keep
    }
}

/// Returns the JSON text of an object without the member. `skip` is the length of the opening
/// before a struct's metadata.
pub(super) fn without_member(object: &Bytes, skip: usize) -> Result<Bytes, Malformed> {
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow, rename = "managedFields")]
        managed_fields: Option<&'a RawValue>,
    }
    let item = object.get(skip..).ok_or(OTHER_STYLE)?;
    let Range { start, end } = json::item_metadata_span(item)?;
    let metadata = &item[start..end];
    let read: Metadata<'_> =
        serde_json::from_slice(metadata).map_err(|_| Malformed("object without metadata"))?;
    let Some(value) = read.managed_fields else {
        return Ok(object.clone());
    };
    let value = json::span(metadata, value);
    let (before, after) = json::around_member(metadata, MEMBER, value).ok_or(OTHER_STYLE)?;
    let (head, tail) = (&object[..skip + start], &object[skip + end..]);
    Ok([head, before, after, tail].concat().into())
}

/// Returns the message of an object without the field.
pub(super) fn without_field(object: &Bytes) -> Result<Bytes, Malformed> {
    let [before, metadata, after] = protobuf::split_metadata(object)?;
    // The field is repeated, and upstream writes it behind all others.
    let (mut kept, mut kept_len) = (Vec::new(), 0);
    let mut fields = FieldReader::new(metadata);
    loop {
        let start = fields.position();
        let Some((number, _)) = fields.next()? else {
            break;
        };
        if number != FIELD {
            let field = &metadata[start..fields.position()];
            kept_len += field.len();
            kept.push(field);
        }
    }
    if kept_len == metadata.len() {
        return Ok(object.clone());
    }
    let length = before.len() + protobuf::bytes_field_len(kept_len) + after.len();
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(before);
    protobuf::put_header(&mut out, 1, kept_len);
    for field in kept {
        out.extend_from_slice(field);
    }
    out.extend_from_slice(after);
    Ok(out.into())
}
