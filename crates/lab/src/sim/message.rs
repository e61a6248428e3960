//! ConfigMaps in Kubernetes' protobuf, written field by field from the JSON that is stored.
//!
//! Sources of the field numbers: `api/core/v1/generated.proto` and
//! `apimachinery/pkg/{runtime,apis/meta/v1}/generated.proto`.
use serde_json::Value;

use super::status::Failure;

/// Media type of lists and objects, and of watches.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// A member that ConfigMaps of no release have, and its field number.
const UNKNOWN_MEMBER: &str = "unknownMember";
const UNKNOWN_FIELD: u32 = 200;

/// An encoded message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field << 3));
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.varint(u64::from(field << 3 | 2));
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a string, also if it is empty.
    fn text(self, field: u32, of: &Value, name: &str) -> Self {
        self.bytes(field, of[name].as_str().unwrap_or_default().as_bytes())
    }

    /// Appends a `Time`; an empty one if it is absent.
    fn time(self, field: u32, of: &Value, name: &str) -> Self {
        let time = of[name].as_str().and_then(|text| text.parse().ok());
        let message = time.map_or_else(Self::default, |time: jiff::Timestamp| {
            let seconds = time.as_second().cast_unsigned();
            Self::default().number(1, seconds).number(2, 0)
        });
        self.bytes(field, &message.0)
    }

    /// Appends a pointer to a `Time`, unless it is absent.
    fn optional_time(self, field: u32, of: &Value, name: &str) -> Self {
        if of[name].is_null() {
            self
        } else {
            self.time(field, of, name)
        }
    }

    /// Appends the entries of a map of strings.
    fn map(self, field: u32, of: &Value, name: &str) -> Self {
        let entries = of[name].as_object().into_iter().flatten();
        entries.fold(self, |message, (key, value)| {
            let value = value.as_str().unwrap_or_default().as_bytes();
            let entry = Self::default().bytes(1, key.as_bytes()).bytes(2, value);
            message.bytes(field, &entry.0)
        })
    }
}

/// Returns the message of a ConfigMap.
pub(crate) fn config_map(object: &[u8]) -> Vec<u8> {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let message = Message::default()
        .bytes(1, &object_meta(&object["metadata"]))
        .map(2, &object, "data");
    let message = match object["immutable"].as_bool() {
        Some(immutable) => message.number(4, u64::from(immutable)),
        None => message,
    };
    match object[UNKNOWN_MEMBER].as_str() {
        Some(text) => message.bytes(UNKNOWN_FIELD, text.as_bytes()).0,
        None => message.0,
    }
}

fn object_meta(metadata: &Value) -> Vec<u8> {
    let message = Message::default()
        .text(1, metadata, "name")
        .text(2, metadata, "generateName")
        .text(3, metadata, "namespace")
        .text(4, metadata, "selfLink")
        .text(5, metadata, "uid")
        .text(6, metadata, "resourceVersion")
        .number(7, metadata["generation"].as_u64().unwrap_or_default());
    let message = message
        .time(8, metadata, "creationTimestamp")
        .map(11, metadata, "labels")
        .map(12, metadata, "annotations");
    let entries = metadata["managedFields"].as_array().into_iter().flatten();
    let message = entries.fold(message, |message, entry| {
        message.bytes(17, &managed_fields(entry))
    });
    message.0
}

fn managed_fields(entry: &Value) -> Vec<u8> {
    let fields = entry["fieldsV1"].to_string();
    Message::default()
        .text(1, entry, "manager")
        .text(2, entry, "operation")
        .text(3, entry, "apiVersion")
        .optional_time(4, entry, "time")
        .text(6, entry, "fieldsType")
        .bytes(7, &Message::default().bytes(1, fields.as_bytes()).0)
        .text(8, entry, "subresource")
        .0
}

/// Returns an object in its envelope, `runtime.Unknown`.
pub(crate) fn envelope(kind: &str, object: &[u8]) -> Vec<u8> {
    let names = Message::default().bytes(1, b"v1").bytes(2, kind.as_bytes());
    let unknown = Message::default()
        .bytes(1, &names.0)
        .bytes(2, object)
        .bytes(3, b"")
        .bytes(4, b"");
    [b"k8s\0", &unknown.0[..]].concat()
}

/// Returns a list of ConfigMaps.
pub(crate) fn list<'a>(
    version: u64,
    token: Option<&str>,
    remaining: Option<usize>,
    objects: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut metadata = Message::default()
        .bytes(1, b"")
        .bytes(2, version.to_string().as_bytes())
        .bytes(3, token.unwrap_or_default().as_bytes());
    if let Some(remaining) = remaining {
        metadata = metadata.number(4, remaining as u64);
    }
    let list = Message::default().bytes(1, &metadata.0);
    let list = objects.fold(list, |list, object| list.bytes(2, &config_map(object)));
    envelope("ConfigMapList", &list.0)
}

/// Returns a watch event with an object's JSON.
pub(crate) fn event(change: &str, object: &[u8]) -> Vec<u8> {
    frame(change, &envelope("ConfigMap", &config_map(object)))
}

/// Returns an ERROR event.
pub(crate) fn error(failure: &Failure) -> Vec<u8> {
    let status: Value = serde_json::from_str(&failure.status()).unwrap_or_default();
    let message = Message::default()
        .bytes(1, b"")
        .text(2, &status, "status")
        .text(3, &status, "message")
        .text(4, &status, "reason")
        .number(6, status["code"].as_u64().unwrap_or_default());
    frame("ERROR", &envelope("Status", &message.0))
}

fn frame(change: &str, envelope: &[u8]) -> Vec<u8> {
    let extension = Message::default().bytes(1, envelope);
    let event = Message::default()
        .bytes(1, change.as_bytes())
        .bytes(2, &extension.0);
    [&(event.0.len() as u32).to_be_bytes()[..], &event.0].concat()
}
