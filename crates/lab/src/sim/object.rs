//! One stored object: the bytes that an API server would write, and the fields that requests use.
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::gojson::{self, Members};
use super::kinds::{ResourceKind, TypeOrigin};

/// ObjectMeta's fields as Go's struct has them. Source: apimachinery `pkg/apis/meta/v1/types.go`.
const METADATA_ORDER: [&str; 15] = [
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

/// An object before its write: the parsed metadata, and the rest as the writer's text.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// Metadata by field, values as JSON text.
    metadata: BTreeMap<String, String>,
    /// Everything beside kind, apiVersion and metadata, in the writer's order.
    body: Vec<(String, String)>,
}

/// A stored object.
#[derive(Debug)]
pub(crate) struct SimulatedObject {
    pub(crate) kind: &'static ResourceKind,
    /// `namespace/name`, or the name alone: upstream's storage key below the type's prefix, and so
    /// the order of lists.
    pub(crate) key: Arc<str>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    /// The object as a GET and a watch event carry it, without a newline.
    pub(crate) bytes: Bytes,
    pub(crate) labels: BTreeMap<String, String>,
    /// Selectable fields beside name and namespace.
    fields: Vec<(&'static str, String)>,
    /// Position of the resourceVersion's digits in `bytes`.
    version_at: Range<usize>,
    /// The metadata in struct order, for PartialObjectMetadata.
    metadata: Bytes,
}

impl Draft {
    /// Reads an object's JSON text.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        let members: Members = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let mut draft = Self {
            metadata: BTreeMap::new(),
            body: Vec::new(),
        };
        for (name, value) in members.0 {
            match name.as_str() {
                "kind" | "apiVersion" => {}
                "metadata" => {
                    let fields: Members =
                        serde_json::from_str(value.get()).map_err(|e| e.to_string())?;
                    draft.metadata = fields
                        .0
                        .into_iter()
                        .map(|(k, v)| (k, gojson::compact(v.get())))
                        .collect();
                    // Both are maps: Go sorts their keys.
                    for map in ["labels", "annotations"] {
                        if let Some(text) = draft.metadata.get_mut(map) {
                            let value: Value =
                                serde_json::from_str(text).map_err(|e| e.to_string())?;
                            *text = gojson::sorted(&value);
                        }
                    }
                    draft.metadata.retain(|_, v| v != "null");
                }
                _ => draft.body.push((name, gojson::compact(value.get()))),
            }
        }
        Ok(draft)
    }

    /// A metadata field that is a string, empty when absent.
    pub(crate) fn text(&self, field: &str) -> String {
        self.metadata
            .get(field)
            .and_then(|v| serde_json::from_str(v).ok())
            .unwrap_or_default()
    }

    /// A metadata field that is a number.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.metadata.get(field)?.parse().ok()
    }

    /// Sets a metadata field to a string; an empty one removes it.
    pub(crate) fn set_text(&mut self, field: &str, value: &str) {
        if value.is_empty() {
            self.metadata.remove(field);
        } else {
            self.metadata
                .insert(field.to_owned(), gojson::string(value));
        }
    }

    /// Sets a metadata field to a JSON text.
    pub(crate) fn set_raw(&mut self, field: &str, json: String) {
        self.metadata.insert(field.to_owned(), json);
    }

    /// Returns `true` if everything beside metadata is the same. `generation` grows otherwise.
    pub(crate) fn same_body(&self, other: &Self) -> bool {
        // Upstream ignores status here.
        let rest = |draft: &Self| -> BTreeMap<String, Value> {
            let members = draft.body.iter().filter(|(name, _)| name != "status");
            let parsed = members.map(|(name, json)| {
                let value = serde_json::from_str(json).unwrap_or_default();
                (name.clone(), value)
            });
            parsed.collect()
        };
        rest(self) == rest(other)
    }

    /// Takes over what an update cannot set. `generation` grows with a change of the body.
    pub(crate) fn follow(&mut self, before: &SimulatedObject) -> Result<(), String> {
        let old = Self::parse(&before.bytes)?;
        self.set_text("uid", &before.uid);
        self.set_text("creationTimestamp", &old.text("creationTimestamp"));
        if let Some(generation) = old.number("generation") {
            let grown = u64::from(!self.same_body(&old));
            self.set_raw("generation", (generation + grown).to_string());
        }
        Ok(())
    }

    /// Returns `true` if an update with this draft would leave the object as it is.
    pub(crate) fn leaves_unchanged(&self, object: &SimulatedObject) -> bool {
        let expected = self.text("resourceVersion");
        if !expected.is_empty() && expected != object.version.to_string() {
            return false;
        }
        let mut draft = self.clone();
        if draft.follow(object).is_err() {
            return false;
        }
        let after = draft.finish(object.kind, object.version);
        let [before, after] = [&object.bytes, &after.bytes]
            .map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap_or_default());
        before == after
    }

    /// Writes the final bytes with the version of the write.
    pub(crate) fn finish(mut self, kind: &'static ResourceKind, version: u64) -> SimulatedObject {
        self.metadata
            .insert("resourceVersion".to_owned(), format!("\"{version}\""));
        let struct_order = self.metadata_in_struct_order();
        let bytes = match kind.form {
            TypeOrigin::Builtin => {
                let mut out = format!(
                    r#"{{"kind":"{}","apiVersion":"{}","metadata":{struct_order}"#,
                    kind.kind,
                    kind.api_version()
                );
                for (name, value) in &self.body {
                    out += &[",", &gojson::string(name), ":", value].concat();
                }
                out.push('}');
                out
            }
            TypeOrigin::Custom => self.sorted(kind),
        };
        let namespace = if kind.namespaced {
            self.text("namespace")
        } else {
            String::new()
        };
        let name = self.text("name");
        let whole: Value = serde_json::from_str(&bytes).unwrap_or_default();
        let needle = format!(r#""resourceVersion":"{version}""#);
        // The metadata's own field is the first: nothing before it can hold this text unescaped,
        // but a CRD's sorted metadata may have annotations before it, whose quotes are escaped.
        let at = bytes
            .find(&needle)
            .map_or(0, |at| at + r#""resourceVersion":""#.len());
        SimulatedObject {
            kind,
            key: if kind.namespaced {
                format!("{namespace}/{name}").into()
            } else {
                name.as_str().into()
            },
            uid: self.text("uid"),
            labels: whole
                .pointer("/metadata/labels")
                .and_then(|v| serde_json::from_value(v.clone()).ok())
                .unwrap_or_default(),
            fields: kind
                .fields
                .iter()
                .map(|(f, at, absent)| (*f, field_value(&whole, at, absent)))
                .collect(),
            version_at: at..at + version.to_string().len(),
            metadata: struct_order.into(),
            bytes: bytes.into(),
            namespace,
            name,
            version,
        }
    }

    fn metadata_in_struct_order(&self) -> String {
        let known = METADATA_ORDER
            .iter()
            .filter_map(|f| Some((*f, self.metadata.get(*f)?)));
        let fields: Vec<_> = known.map(|(f, v)| format!("\"{f}\":{v}")).collect();
        format!("{{{}}}", fields.join(","))
    }

    fn sorted(&self, kind: &ResourceKind) -> String {
        let parse = |text: &String| serde_json::from_str::<Value>(text).unwrap_or_default();
        let mut whole = serde_json::Map::new();
        whole.insert("apiVersion".to_owned(), kind.api_version().into());
        whole.insert("kind".to_owned(), kind.kind.into());
        let known = METADATA_ORDER
            .iter()
            .filter_map(|f| Some(((*f).to_owned(), parse(self.metadata.get(*f)?))));
        whole.insert("metadata".to_owned(), Value::Object(known.collect()));
        whole.extend(self.body.iter().map(|(k, v)| (k.clone(), parse(v))));
        gojson::sorted(&Value::Object(whole))
    }
}

fn field_value(whole: &Value, pointer: &str, absent: &str) -> String {
    match whole.pointer(pointer) {
        None | Some(Value::Null) => absent.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

impl SimulatedObject {
    /// Returns the value that a field selector compares. An unknown field is empty.
    pub(crate) fn field(&self, label: &str) -> &str {
        match label {
            "metadata.name" => &self.name,
            "metadata.namespace" => &self.namespace,
            "spec.host" => self.field("spec.nodeName"),
            _ => self
                .fields
                .iter()
                .find(|(f, _)| *f == label)
                .map_or("", |(_, value)| value),
        }
    }

    /// Returns the bytes with another resourceVersion, as a DELETED event carries them.
    pub(crate) fn bytes_at(&self, version: u64) -> Bytes {
        if version == self.version {
            return self.bytes.clone();
        }
        splice(&self.bytes, self.version_at.clone(), version)
    }

    /// Returns the object with this text, which a server need not print so.
    pub(crate) fn printed_as(self, text: String) -> Self {
        let members = serde_json::from_str(&text).map_or_else(|_| Vec::new(), |it: Members| it.0);
        let metadata = members.iter().find(|(name, _)| name == "metadata");
        let metadata = metadata.map_or_else(Bytes::new, |(_, value)| {
            Bytes::copy_from_slice(value.get().as_bytes())
        });
        let needle = format!(r#""resourceVersion":"{}""#, self.version);
        let digits = self.version_at.len();
        let at = text
            .find(&needle)
            .map_or(0, |at| at + needle.len() - 1 - digits);
        Self {
            version_at: at..at + digits,
            metadata,
            bytes: text.into(),
            ..self
        }
    }

    /// Returns the object as a list item. Builtin types have no kind and apiVersion there.
    pub(crate) fn item(&self) -> Bytes {
        match self.kind.form {
            TypeOrigin::Custom => self.bytes.clone(),
            TypeOrigin::Builtin => {
                let prefix = r#"{"kind":"","apiVersion":"","#.len()
                    + self.kind.kind.len()
                    + self.kind.api_version().len();
                Bytes::from([b"{", &self.bytes[prefix..]].concat())
            }
        }
    }

    /// Returns the object as PartialObjectMetadata, with another version.
    /// See [`SimulatedObject::bytes_at`].
    pub(crate) fn partial_at(&self, version: u64) -> Bytes {
        let needle = format!(r#""resourceVersion":"{}""#, self.version);
        let text = String::from_utf8_lossy(&self.metadata);
        let metadata = if version == self.version {
            text.into_owned()
        } else {
            text.replacen(&needle, &format!(r#""resourceVersion":"{version}""#), 1)
        };
        let kind = r#""kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1""#;
        format!(r#"{{{kind},"metadata":{metadata}}}"#).into()
    }
}

fn splice(bytes: &Bytes, at: Range<usize>, version: u64) -> Bytes {
    [
        &bytes[..at.start],
        version.to_string().as_bytes(),
        &bytes[at.end..],
    ]
    .concat()
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(json: &str) -> Draft {
        Draft::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn builtin_objects_are_written_in_struct_order() {
        let (_, kind) = ResourceKind::find("", "v1", "configmaps").unwrap();
        let object = draft(concat!(
            r#"{"metadata": {"labels": {"b": "1", "a": "<"}, "uid": "u", "#,
            r#""namespace": "n", "name": "c"}, "data": {"k": "v"}}"#
        ))
        .finish(kind, 7);
        assert_eq!(
            object.bytes,
            concat!(
                r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c","namespace":"n","#,
                r#""uid":"u","resourceVersion":"7","labels":{"a":"\u003c","b":"1"}},"#,
                r#""data":{"k":"v"}}"#
            )
        );
        assert!(object.item().starts_with(br#"{"metadata":{"name":"c""#));
        assert_eq!(
            object.bytes_at(123),
            String::from_utf8_lossy(&object.bytes).replace("\"7\"", "\"123\"")
        );
        assert_eq!(object.labels["a"], "<");
    }

    #[test]
    fn custom_objects_are_sorted_at_every_level() {
        let (_, kind) = ResourceKind::find("example.com", "v1", "widgets").unwrap();
        let object = draft(
            r#"{"spec":{"z":1,"color":"red"},"metadata":{"name":"w","namespace":"n","uid":"u"}}"#,
        )
        .finish(kind, 9);
        assert_eq!(
            object.bytes,
            concat!(
                r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","#,
                r#""namespace":"n","resourceVersion":"9","uid":"u"},"#,
                r#""spec":{"color":"red","z":1}}"#
            )
        );
        assert_eq!(object.item(), object.bytes);
        assert_eq!(object.field("spec.color"), "red");
        assert_eq!(
            object.partial_at(10),
            concat!(
                r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#,
                r#""metadata":{"name":"w","namespace":"n","uid":"u","resourceVersion":"10"}}"#
            )
        );
    }
}
