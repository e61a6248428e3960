//! Objects reduced to their metadata (`PartialObjectMetadata`), cut out of their bytes.
//!
//! Sources: `apiserver/pkg/endpoints/handlers/response.go` (asPartialObjectMetadata),
//! `apimachinery/pkg/apis/meta/v1/{types.go,generated.proto}`.
use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::value::RawValue;

use super::frames::EventKind;
use super::item_bytes::ItemBytes;
use super::malformed::Malformed;
use super::wire_format::{PrintStyle, WireFormat};
use super::{json, object_meta, protobuf};
use crate::Encoding;
use crate::media::{PARTIAL_LIST, PARTIAL_OBJECT};

const API_VERSION: &str = "meta.k8s.io/v1";
/// The text around the metadata in JSON.
const HEAD: &[u8] = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;
const TAIL: &[u8] = b"}";

/// Members of ObjectMeta, in the order upstream prints the struct in.
const OBJECT_META: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];
const OWNER_REFERENCE: &[&str] = &[
    "apiVersion",
    "kind",
    "name",
    "uid",
    "controller",
    "blockOwnerDeletion",
];
const MANAGED_FIELDS: &[&str] = &[
    "manager",
    "operation",
    "apiVersion",
    "time",
    "fieldsType",
    "fieldsV1",
    "subresource",
];

const NOT_A_STRUCT: Malformed = Malformed("metadata that can't be printed as a struct");

/// The format of a type's objects if only their metadata is asked for. Cheap to clone.
///
/// It wraps the *metadata* of an object: the value in JSON, the message in protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialFormat {
    format: WireFormat,
    source: PrintStyle,
}

impl WireFormat {
    /// Returns `true` if upstream itself reduced these objects to their metadata.
    pub fn is_partial(&self) -> bool {
        self.kind() == PartialFormat::KIND
            && *self.list_kind == *PARTIAL_LIST
            && self.api_version() == API_VERSION
    }
}

impl PartialFormat {
    /// The kind of reduced objects.
    pub const KIND: &str = PARTIAL_OBJECT;

    /// Returns the format in an encoding, for objects that come in `whole`. `None` if these cannot be reduced
    /// to it: protobuf is not printed as JSON.
    pub fn of(whole: &WireFormat, encoding: Encoding) -> Option<Self> {
        let style = match (whole.encoding(), encoding) {
            (Encoding::Json, Encoding::Json) => PrintStyle::Struct {
                bare_items: false,
                null_items: true,
            },
            (_, Encoding::Protobuf) => PrintStyle::Message,
            (Encoding::Protobuf, Encoding::Json) => return None,
        };
        let format = WireFormat::of_names(Self::KIND, API_VERSION, PARTIAL_LIST, style);
        Some(Self {
            format,
            source: whole.style,
        })
    }

    /// Returns the format of the reduced objects themselves.
    pub fn format(&self) -> &WireFormat {
        &self.format
    }

    /// Returns the metadata of a full object. It shares its bytes where upstream prints both alike.
    pub fn metadata(&self, object: &ItemBytes) -> Result<Bytes, Malformed> {
        let (source, wanted) = (self.source, self.format.encoding());
        let object = object.bytes();
        if source == PrintStyle::Message {
            let [_, metadata, _] = protobuf::split_metadata(object)?;
            return Ok(object.slice_ref(metadata));
        }
        let metadata = object.slice(json::item_metadata_span(object)?);
        match (source, wanted) {
            (_, Encoding::Protobuf) => object_meta::to_protobuf(&metadata).map(Bytes::from),
            (PrintStyle::Sorted, Encoding::Json) => in_struct_order(&metadata),
            (_, Encoding::Json) => Ok(metadata),
        }
    }

    /// Returns the metadata in the JSON text of a reduced object.
    pub(crate) fn metadata_of(object: &[u8]) -> Option<&str> {
        let metadata = object.strip_prefix(HEAD)?.strip_suffix(TAIL)?;
        std::str::from_utf8(metadata).ok()
    }

    /// Returns the reduced object.
    pub fn object(&self, metadata: &Bytes) -> Bytes {
        let mut out = BytesMut::with_capacity(self.object_len(metadata.len()));
        self.write(metadata, &mut out);
        out.freeze()
    }

    /// Returns the body of a GET of the object with this metadata.
    pub fn get_body(&self, metadata: &Bytes) -> Bytes {
        self.format
            .get_body(&self.format.item_bytes(&self.object(metadata)))
    }

    /// Returns the number of bytes that the object with this metadata takes as an item of a list, with the
    /// separator behind it.
    pub fn item_len(&self, metadata: &[u8]) -> usize {
        let length = self.object_len(metadata.len());
        match self.format.encoding() {
            Encoding::Json => length + self.format.separator(),
            Encoding::Protobuf => protobuf::bytes_field_len(length),
        }
    }

    /// Appends the object with this metadata as an item of a list, with the separator behind it.
    pub fn put_item(&self, metadata: &[u8], out: &mut BytesMut) {
        if self.format.encoding() == Encoding::Protobuf {
            protobuf::put_header(out, protobuf::ITEMS, self.object_len(metadata.len()));
        }
        self.write(metadata, out);
        if self.format.encoding() == Encoding::Json {
            out.put_u8(b',');
        }
    }

    /// Returns a whole watch frame of a full object, reduced.
    pub fn event(&self, kind: EventKind, object: &ItemBytes) -> Result<Bytes, Malformed> {
        Ok(self
            .format
            .event_of(kind, &self.object(&self.metadata(object)?)))
    }

    /// Returns the bytes before and after the metadata of every object, if they are always the
    /// same.
    pub(super) fn around(&self) -> (&'static [u8], &'static [u8]) {
        match self.format.encoding() {
            Encoding::Json => (HEAD, TAIL),
            Encoding::Protobuf => (b"", b""),
        }
    }

    fn object_len(&self, metadata: usize) -> usize {
        match self.format.encoding() {
            Encoding::Json => HEAD.len() + metadata + TAIL.len(),
            Encoding::Protobuf => protobuf::bytes_field_len(metadata),
        }
    }

    fn write(&self, metadata: &[u8], out: &mut BytesMut) {
        out.reserve(self.object_len(metadata.len()));
        match self.format.encoding() {
            Encoding::Json => {
                out.put_slice(HEAD);
                out.put_slice(metadata);
                out.put_slice(TAIL);
            }
            Encoding::Protobuf => {
                protobuf::put_bytes(out, 1, metadata);
            }
        }
    }
}

/// Puts a custom resource's metadata, which are sorted on every level, in the order of the struct.
fn in_struct_order(metadata: &[u8]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::with_capacity(metadata.len());
    put_members(
        metadata,
        OBJECT_META,
        &mut out,
        &|name, value, out| match name {
            "ownerReferences" => put_elements(value, OWNER_REFERENCE, out),
            "managedFields" => put_elements(value, MANAGED_FIELDS, out),
            _ => {
                out.put_slice(value);
                Ok(())
            }
        },
    )?;
    Ok(out.freeze())
}

type PutValue<'f> = &'f dyn Fn(&str, &[u8], &mut BytesMut) -> Result<(), Malformed>;

/// Prints an object's members in another order. Refuses members that are not known, and empty
/// values, which the struct's printing might leave out.
fn put_members(
    object: &[u8],
    order: &[&str],
    out: &mut BytesMut,
    put_value: PutValue<'_>,
) -> Result<(), Malformed> {
    let mut members: BTreeMap<&str, &RawValue> =
        serde_json::from_slice(object).map_err(|_| NOT_A_STRUCT)?;
    let mut separator = b'{';
    for &name in order {
        let Some(value) = members.remove(name) else {
            continue;
        };
        let value = value.get();
        // A pointer's zero is printed, and a null for the time by releases before 1.34, in both
        // forms.
        let kept = matches!(
            (name, value),
            ("deletionGracePeriodSeconds", "0") | ("creationTimestamp", "null")
        );
        if matches!(value, "{}" | "[]" | r#""""# | "null" | "0") && !kept {
            return Err(NOT_A_STRUCT);
        }
        out.put_u8(separator);
        separator = b',';
        out.put_u8(b'"');
        out.put_slice(name.as_bytes());
        out.put_slice(b"\":");
        put_value(name, value.as_bytes(), out)?;
    }
    if !members.is_empty() || separator == b'{' {
        return Err(NOT_A_STRUCT);
    }
    out.put_u8(b'}');
    Ok(())
}

fn put_elements(list: &[u8], order: &[&str], out: &mut BytesMut) -> Result<(), Malformed> {
    let elements: Vec<&RawValue> = serde_json::from_slice(list).map_err(|_| NOT_A_STRUCT)?;
    for (index, element) in elements.into_iter().enumerate() {
        out.put_u8(if index > 0 { b',' } else { b'[' });
        put_members(element.get().as_bytes(), order, out, &|_, value, out| {
            out.put_slice(value);
            Ok(())
        })?;
    }
    out.put_u8(b']');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_resources_metadata_is_put_in_struct_order() {
        let sorted = concat!(
            r#"{"annotations":{"a":"\u003c"},"creationTimestamp":"T","#,
            r#""deletionGracePeriodSeconds":0,"deletionTimestamp":"D","generation":1,"#,
            r#""labels":{"l":"1"},"managedFields":[{"apiVersion":"v","fieldsType":"FieldsV1","#,
            r#""fieldsV1":{"f:x":{}},"manager":"m","operation":"Update","subresource":"status","#,
            r#""time":"T"}],"name":"n","ownerReferences":[{"apiVersion":"v","controller":true,"#,
            r#""kind":"K","name":"o","uid":"u"}],"resourceVersion":"7","uid":"u"}"#,
        )
        .as_bytes();
        let expected = concat!(
            r#"{"name":"n","uid":"u","resourceVersion":"7","generation":1,"#,
            r#""creationTimestamp":"T","deletionTimestamp":"D","deletionGracePeriodSeconds":0,"#,
            r#""labels":{"l":"1"},"annotations":{"a":"\u003c"},"#,
            r#""ownerReferences":[{"apiVersion":"v","kind":"K","name":"o","uid":"u","#,
            r#""controller":true}],"managedFields":[{"manager":"m","operation":"Update","#,
            r#""apiVersion":"v","time":"T","fieldsType":"FieldsV1","fieldsV1":{"f:x":{}},"#,
            r#""subresource":"status"}]}"#,
        )
        .as_bytes();
        assert_eq!(in_struct_order(sorted).as_deref(), Ok(expected));
        for odd in [
            "{}",
            r#"{"name":"n","more":1}"#,
            r#"{"labels":{},"name":"n"}"#,
            "7",
            r#"{"name":"n""#,
        ] {
            assert_eq!(in_struct_order(odd.as_bytes()), Err(NOT_A_STRUCT), "{odd}");
        }
    }
}
