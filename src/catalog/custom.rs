//! What CustomResourceDefinitions say of their types.
use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::ResourceType;
use crate::store::Snapshot;
use watershed_protocol::{FieldTable, GroupVersionResource, ResourceVersion};

/// A custom type, whatever its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) group: String,
    pub(super) plural: String,
}

/// One definition, as far as it matters here.
#[derive(Debug)]
pub(super) struct Custom {
    /// The version of the definition's object: it is parsed again only when that changes.
    version: ResourceVersion,
    /// Changes with every change of the specification, and with a definition made anew.
    incarnation: (String, i64),
    name: Name,
    established: bool,
    kind: Arc<str>,
    namespaced: bool,
    /// Served versions with their selectable fields.
    versions: Vec<(String, Arc<FieldTable>)>,
}

impl Custom {
    pub(super) fn resources(&self) -> impl Iterator<Item = ResourceType> {
        let versions = self.versions.iter().filter(|_| self.established);
        versions.map(|(version, fields)| ResourceType {
            gvr: GroupVersionResource::new(&self.name.group, version, &self.name.plural),
            kind: Arc::clone(&self.kind),
            namespaced: self.namespaced,
            fields: Arc::clone(fields),
        })
    }
}

/// The definitions known, by the key of their object.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    known: HashMap<String, Custom>,
}

impl Parsed {
    pub(super) fn all(&self) -> impl Iterator<Item = &Custom> {
        self.known.values()
    }

    /// Takes the newest definitions in; gives back the types whose specification changed.
    pub(super) fn update(&mut self, snapshot: &Snapshot) -> Vec<Name> {
        let mut changed = Vec::new();
        for object in snapshot.items(None) {
            let before = self.known.get(object.key());
            if before.is_some_and(|before| before.version == object.version) {
                continue;
            }
            let definition: Definition = match serde_json::from_slice(&object.bytes.text()) {
                Ok(definition) => definition,
                Err(error) => {
                    tracing::warn!(definition = object.key(), %error, "a definition is not understood");
                    continue;
                }
            };
            let now = definition.read(object.version);
            if before.is_some_and(|before| before.incarnation != now.incarnation) {
                changed.push(now.name.clone());
            }
            self.known.insert(object.key().to_owned(), now);
        }
        self.known.retain(|key, _| snapshot.get(key).is_some());
        changed
    }
}

#[derive(Deserialize)]
struct Definition {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct Spec {
    group: String,
    names: Names,
    scope: String,
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Names {
    plural: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    served: bool,
    #[serde(default)]
    selectable_fields: Vec<SelectableField>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectableField {
    json_path: String,
}

#[derive(Default, Deserialize)]
struct Status {
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Definition {
    fn read(self, version: ResourceVersion) -> Custom {
        let namespaced = self.spec.scope == "Namespaced";
        let is = |kind: &str| {
            self.status
                .conditions
                .iter()
                .flatten()
                .any(|c| c.kind == kind && c.status == "True")
        };
        let served = self
            .spec
            .versions
            .into_iter()
            .filter(|version| version.served);
        let versions = served.map(|version| {
            let paths: Vec<_> = version
                .selectable_fields
                .into_iter()
                .map(|field| field.json_path)
                .collect();
            (
                version.name,
                Arc::new(FieldTable::custom(namespaced, &paths)),
            )
        });
        Custom {
            version,
            incarnation: (self.metadata.uid, self.metadata.generation),
            established: is("Established") && !is("Terminating"),
            kind: self.spec.names.kind.into(),
            namespaced,
            versions: versions.collect(),
            name: Name {
                group: self.spec.group,
                plural: self.spec.names.plural,
            },
        }
    }
}
