//! `ObjectMeta`: read from JSON, written in protobuf.
//!
//! Custom resources exist in JSON alone. Clients that want their metadata in protobuf get this
//! message.
//!
//! Sources: `apimachinery/pkg/apis/meta/v1/generated.proto` (numbers), `generated.pb.go` and
//! `time_proto.go` (fields that are written although they are empty).
use std::borrow::Cow;
use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::malformed::Malformed;
use super::protobuf::messages::StringEntry;

const NOT_WRITABLE: Malformed = Malformed("metadata that can't be written in protobuf");

/// Returns the message for the JSON text of a `metadata` member.
///
/// Refuses unknown members, because they would be lost.
pub(super) fn to_protobuf(metadata: &[u8]) -> Result<Vec<u8>, Malformed> {
    let meta: ObjectMeta = serde_json::from_slice(metadata).map_err(|_| NOT_WRITABLE)?;
    Ok(meta.encode_to_vec())
}

/// `meta.v1.ObjectMeta`
#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ObjectMeta {
    #[prost(string, required, tag = "1")]
    #[serde(default)]
    name: String,
    #[prost(string, required, tag = "2")]
    #[serde(default)]
    generate_name: String,
    #[prost(string, required, tag = "3")]
    #[serde(default)]
    namespace: String,
    #[prost(string, required, tag = "4")]
    #[serde(default)]
    self_link: String,
    #[prost(string, required, tag = "5")]
    #[serde(default)]
    uid: String,
    #[prost(string, required, tag = "6")]
    #[serde(default)]
    resource_version: String,
    #[prost(int64, required, tag = "7")]
    #[serde(default)]
    generation: i64,
    #[prost(message, required, tag = "8")]
    #[serde(default, deserialize_with = "time_or_nothing")]
    creation_timestamp: Time,
    #[prost(message, optional, tag = "9")]
    #[serde(default, deserialize_with = "time")]
    deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    deletion_grace_period_seconds: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    #[serde(default, deserialize_with = "entries")]
    labels: Vec<StringEntry>,
    #[prost(message, repeated, tag = "12")]
    #[serde(default, deserialize_with = "entries")]
    annotations: Vec<StringEntry>,
    #[prost(message, repeated, tag = "13")]
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    #[serde(default)]
    finalizers: Vec<String>,
    #[prost(message, repeated, tag = "17")]
    #[serde(default)]
    managed_fields: Vec<ManagedFieldsEntry>,
}

impl ObjectMeta {
    /// Returns metadata in which everything else is empty, as in a bookmark.
    pub(super) fn new(resource_version: String, annotations: Vec<StringEntry>) -> Self {
        Self {
            resource_version,
            annotations,
            ..Self::default()
        }
    }
}

/// `meta.v1.OwnerReference`
#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OwnerReference {
    #[prost(string, required, tag = "1")]
    #[serde(default)]
    kind: String,
    #[prost(string, required, tag = "3")]
    #[serde(default)]
    name: String,
    #[prost(string, required, tag = "4")]
    #[serde(default)]
    uid: String,
    #[prost(string, required, tag = "5")]
    #[serde(default)]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

/// `meta.v1.ManagedFieldsEntry`
#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManagedFieldsEntry {
    #[prost(string, required, tag = "1")]
    #[serde(default)]
    manager: String,
    #[prost(string, required, tag = "2")]
    #[serde(default)]
    operation: String,
    #[prost(string, required, tag = "3")]
    #[serde(default)]
    api_version: String,
    #[prost(message, optional, tag = "4")]
    #[serde(default, deserialize_with = "time")]
    time: Option<Time>,
    #[prost(string, required, tag = "6")]
    #[serde(default)]
    fields_type: String,
    #[prost(message, optional, tag = "7")]
    #[serde(default, deserialize_with = "raw_fields", rename = "fieldsV1")]
    fields_v1: Option<FieldsV1>,
    #[prost(string, required, tag = "8")]
    #[serde(default)]
    subresource: String,
}

/// `meta.v1.FieldsV1`: the JSON text as it is.
#[derive(Clone, PartialEq, Message)]
struct FieldsV1 {
    #[prost(string, required, tag = "1")]
    raw: String,
}

/// `meta.v1.Time`: without fields if there is no time.
#[derive(Clone, Copy, PartialEq, Message)]
struct Time {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let Some(text) = Option::<Cow<'de, str>>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let time: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
    Ok(Some(Time {
        seconds: Some(time.as_second()),
        // Upstream's times have whole seconds.
        nanos: Some(0),
    }))
}

fn time_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    time(deserializer).map(Option::unwrap_or_default)
}

/// Reads a map. Go writes its entries sorted by key.
fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StringEntry>, D::Error> {
    let map = BTreeMap::<String, String>::deserialize(deserializer)?;
    let entries = map.into_iter();
    Ok(entries
        .map(|(key, value)| StringEntry { key, value })
        .collect())
}

fn raw_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FieldsV1>, D::Error> {
    let text = Option::<&RawValue>::deserialize(deserializer)?;
    Ok(text.map(|text| FieldsV1 {
        raw: text.get().to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unknown_or_unreadable_members_are_refused() {
        for text in [
            r#"{"more":1}"#,
            r#"{"name":1}"#,
            "[]",
            "",
            r#"{"creationTimestamp":"soon"}"#,
        ] {
            assert_eq!(to_protobuf(text.as_bytes()), Err(NOT_WRITABLE), "{text}");
        }
        assert!(to_protobuf(br#"{"name":"n","creationTimestamp":null}"#).is_ok());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = to_protobuf(text.as_bytes());
        }
    }
}
