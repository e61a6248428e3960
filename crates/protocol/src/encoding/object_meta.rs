//! `ObjectMeta` from JSON to protobuf, for custom resources, whose objects exist in JSON alone.
//!
//! Sources: `apimachinery/pkg/apis/meta/v1/generated.proto` (numbers), `generated.pb.go` and
//! `time_proto.go` (what is written although it is empty, and the order).
use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Malformed;
use super::protobuf::{put_bytes, put_header, put_varint};

const ODD: Malformed = Malformed("metadata that can't be written in protobuf");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ObjectMeta<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    generate_name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    self_link: Cow<'a, str>,
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
    #[serde(default)]
    generation: i64,
    #[serde(borrow)]
    creation_timestamp: Option<Cow<'a, str>>,
    #[serde(borrow)]
    deletion_timestamp: Option<Cow<'a, str>>,
    deletion_grace_period_seconds: Option<i64>,
    #[serde(borrow, default)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(borrow, default)]
    annotations: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(borrow, default)]
    owner_references: Vec<OwnerReference<'a>>,
    #[serde(borrow, default)]
    finalizers: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    managed_fields: Vec<ManagedFields<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OwnerReference<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    controller: Option<bool>,
    block_owner_deletion: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManagedFields<'a> {
    #[serde(borrow, default)]
    manager: Cow<'a, str>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    fields_type: Cow<'a, str>,
    #[serde(borrow, rename = "fieldsV1")]
    fields_v1: Option<&'a RawValue>,
    #[serde(borrow, default)]
    subresource: Cow<'a, str>,
}

/// The message for the JSON text of a `metadata` member. Members that are not known are refused:
/// they would be lost.
pub(super) fn to_protobuf(metadata: &[u8]) -> Result<Vec<u8>, Malformed> {
    let meta: ObjectMeta<'_> = serde_json::from_slice(metadata).map_err(|_| ODD)?;
    let mut out = Vec::with_capacity(metadata.len());
    let strings = [
        &meta.name,
        &meta.generate_name,
        &meta.namespace,
        &meta.self_link,
        &meta.uid,
        &meta.resource_version,
    ];
    for (number, text) in (1..).zip(strings) {
        put_bytes(&mut out, number, text.as_bytes());
    }
    put_number(&mut out, 7, meta.generation);
    put_bytes(&mut out, 8, &time(meta.creation_timestamp.as_deref())?);
    if let Some(text) = &meta.deletion_timestamp {
        put_bytes(&mut out, 9, &time(Some(text))?);
    }
    if let Some(seconds) = meta.deletion_grace_period_seconds {
        put_number(&mut out, 10, seconds);
    }
    put_map(&mut out, 11, &meta.labels);
    put_map(&mut out, 12, &meta.annotations);
    for owner in &meta.owner_references {
        put_bytes(&mut out, 13, &owner.message());
    }
    for finalizer in &meta.finalizers {
        put_bytes(&mut out, 14, finalizer.as_bytes());
    }
    for managed in &meta.managed_fields {
        put_bytes(&mut out, 17, &managed.message()?);
    }
    Ok(out)
}

impl OwnerReference<'_> {
    fn message(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, text) in [
            (1, &self.kind),
            (3, &self.name),
            (4, &self.uid),
            (5, &self.api_version),
        ] {
            put_bytes(&mut out, number, text.as_bytes());
        }
        for (number, flag) in [(6, self.controller), (7, self.block_owner_deletion)] {
            if let Some(flag) = flag {
                put_number(&mut out, number, i64::from(flag));
            }
        }
        out
    }
}

impl ManagedFields<'_> {
    fn message(&self) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::new();
        for (number, text) in [
            (1, &self.manager),
            (2, &self.operation),
            (3, &self.api_version),
        ] {
            put_bytes(&mut out, number, text.as_bytes());
        }
        if let Some(text) = &self.time {
            put_bytes(&mut out, 4, &time(Some(text))?);
        }
        put_bytes(&mut out, 6, self.fields_type.as_bytes());
        if let Some(fields) = self.fields_v1 {
            let mut raw = Vec::with_capacity(fields.get().len() + 4);
            put_bytes(&mut raw, 1, fields.get().as_bytes());
            put_bytes(&mut out, 7, &raw);
        }
        put_bytes(&mut out, 8, self.subresource.as_bytes());
        Ok(out)
    }
}

/// A message `Time`: nothing for no time, else seconds and nanoseconds.
fn time(text: Option<&str>) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    if let Some(text) = text {
        let at: jiff::Timestamp = text.parse().map_err(|_| ODD)?;
        put_number(&mut out, 1, at.as_second());
        // Upstream's times have whole seconds.
        put_number(&mut out, 2, 0);
    }
    Ok(out)
}

fn put_number(out: &mut Vec<u8>, number: u32, value: i64) {
    put_varint(out, u64::from(number << 3));
    put_varint(out, value.cast_unsigned());
}

fn put_map(out: &mut Vec<u8>, number: u32, map: &BTreeMap<Cow<'_, str>, Cow<'_, str>>) {
    for (key, value) in map {
        let mut entry = Vec::with_capacity(key.len() + value.len() + 6);
        put_bytes(&mut entry, 1, key.as_bytes());
        put_bytes(&mut entry, 2, value.as_bytes());
        put_header(out, number, entry.len());
        out.extend_from_slice(&entry);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_would_be_lost_is_refused() {
        for text in [
            r#"{"more":1}"#,
            r#"{"name":1}"#,
            "[]",
            "",
            r#"{"creationTimestamp":"soon"}"#,
        ] {
            assert_eq!(to_protobuf(text.as_bytes()), Err(ODD), "{text}");
        }
        assert!(to_protobuf(br#"{"name":"n","creationTimestamp":null}"#).is_ok());
    }

    proptest! {
        #[test]
        fn never_panics(text in any::<String>()) {
            let _ = to_protobuf(text.as_bytes());
        }
    }
}
