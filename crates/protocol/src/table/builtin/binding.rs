//! Bindings of roles.
use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::{KnownColumn, NAME, text, wide};
use crate::table::row_metadata::RowMetadata;

const GROUP: &str = "rbac.authorization.k8s.io";
const COLUMNS: &[KnownColumn<'static>] = &[
    NAME,
    text("Role"),
    text("Age"),
    wide("Users"),
    wide("Groups"),
    wide("ServiceAccounts"),
];

pub(super) const PRINTERS: &[BuiltinPrinter] = &[
    BuiltinPrinter {
        resource: (GROUP, "v1", "rolebindings"),
        columns: COLUMNS,
        print: binding,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: (GROUP, "v1", "clusterrolebindings"),
        columns: COLUMNS,
        print: binding,
        metadata: RowMetadata::AsIs,
    },
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    metadata: PrintedMeta,
    role_ref: Role,
    subjects: Option<Vec<Subject>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Role {
    kind: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    namespace: String,
    name: String,
}

fn binding(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let Binding {
        metadata,
        role_ref,
        subjects,
    } = read(object)?;
    let subjects = subjects.unwrap_or_default();
    cells.text(&metadata.name);
    cells.text(&format!("{}/{}", role_ref.kind, role_ref.name));
    cells.since(metadata.creation_timestamp);
    for kind in ["User", "Group", "ServiceAccount"] {
        let names = subjects.iter().filter(|subject| subject.kind == kind);
        let names: Vec<_> = names.map(Subject::format).collect();
        cells.text(&names.join(", "));
    }
    Ok(())
}

impl Subject {
    fn format(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("{}/{}", self.namespace, self.name),
            _ => self.name.clone(),
        }
    }
}
