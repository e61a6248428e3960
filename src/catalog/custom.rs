//! The types that CustomResourceDefinitions describe.
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::object_feed::FollowedObjects;
use super::parsed_objects::ParsedObjects;
use super::types::ResourceType;
use crate::scope::ObjectShape;
use crate::store::Snapshot;
use watershed_protocol::{FieldTable, GroupVersionResource, PrinterColumn, TablePrinter};

/// Returns the definitions, as they are followed.
pub(super) fn followed_definitions() -> FollowedObjects {
    FollowedObjects {
        gvr: GroupVersionResource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
        keep: Duration::from_mins(5),
        loss: "custom types are forwarded",
        is_serious: true,
    }
}

/// A custom type, whatever its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CustomTypeName {
    pub(super) group: String,
    pub(super) plural: String,
}

/// One definition, as far as it matters here.
#[derive(Debug)]
pub(super) struct CustomType {
    /// Changes with every change of the specification, and with a definition made anew.
    incarnation: (String, i64),
    name: CustomTypeName,
    established: bool,
    kind: Arc<str>,
    namespaced: bool,
    versions: Vec<ServedVersion>,
}

/// A version of a custom type that upstream serves.
#[derive(Debug)]
struct ServedVersion {
    name: String,
    fields: Arc<FieldTable>,
    printer: Option<TablePrinter>,
}

impl CustomType {
    pub(super) fn resources(&self) -> impl Iterator<Item = ResourceType> {
        let versions = self.versions.iter().filter(|_| self.established);
        versions.map(|version| ResourceType {
            gvr: GroupVersionResource::new(&self.name.group, &version.name, &self.name.plural),
            shape: ObjectShape::new(Arc::clone(&self.kind), Arc::clone(&version.fields)),
            namespaced: self.namespaced,
            printer: version.printer.clone(),
        })
    }
}

/// The definitions that are followed.
#[derive(Debug, Default)]
pub(super) struct CustomTypes {
    known: ParsedObjects<CustomType>,
}

impl CustomTypes {
    pub(super) fn all(&self) -> impl Iterator<Item = &CustomType> {
        self.known.all()
    }

    /// Has all definitions parsed again with the next update.
    pub(super) fn forget_versions(&mut self) {
        self.known.forget_versions();
    }

    /// Takes in the newest definitions. Returns the types whose specification changed.
    pub(super) fn update(&mut self, snapshot: &Snapshot) -> Vec<CustomTypeName> {
        let mut changed = Vec::new();
        let read = |definition: Definition, before: Option<&CustomType>| {
            let now = definition.read();
            if before.is_some_and(|before| before.incarnation != now.incarnation) {
                changed.push(now.name.clone());
            }
            now
        };
        self.known
            .update(snapshot, "CustomResourceDefinition", read);
        changed
    }
}

#[derive(Deserialize)]
struct Definition {
    metadata: DefinitionMetadata,
    spec: DefinitionSpec,
    #[serde(default)]
    status: DefinitionStatus,
}

#[derive(Deserialize)]
struct DefinitionMetadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    names: DefinitionNames,
    scope: String,
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionNames {
    plural: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DefinitionVersion {
    name: String,
    served: bool,
    #[serde(default)]
    selectable_fields: Vec<SelectableField>,
    #[serde(default)]
    additional_printer_columns: Vec<PrinterColumn>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectableField {
    json_path: String,
}

#[derive(Default, Deserialize)]
struct DefinitionStatus {
    conditions: Option<Vec<DefinitionCondition>>,
}

#[derive(Deserialize)]
struct DefinitionCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Definition {
    fn read(self) -> CustomType {
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
            ServedVersion {
                name: version.name,
                fields: Arc::new(FieldTable::custom(namespaced, &paths)),
                printer: TablePrinter::custom(&version.additional_printer_columns),
            }
        });
        CustomType {
            incarnation: (self.metadata.uid, self.metadata.generation),
            established: is("Established") && !is("Terminating"),
            kind: self.spec.names.kind.into(),
            namespaced,
            versions: versions.collect(),
            name: CustomTypeName {
                group: self.spec.group,
                plural: self.spec.names.plural,
            },
        }
    }
}
