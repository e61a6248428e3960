//! Column definitions.
use serde::Deserialize;

/// A column of a custom type, as its definition has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrinterColumn {
    /// The heading.
    pub name: String,
    /// The type of the cells.
    #[serde(rename = "type")]
    pub kind: String,
    /// The format of the cells.
    #[serde(default)]
    pub format: String,
    /// The description.
    #[serde(default)]
    pub description: String,
    /// Zero for columns that are always shown.
    #[serde(default)]
    pub priority: i32,
    /// The path of the value.
    pub json_path: String,
}

/// A column as a Table shows it, but for its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownColumn<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) format: &'a str,
    pub(super) priority: i32,
}

/// The column of the object's name.
pub(super) const NAME: KnownColumn<'static> = KnownColumn {
    format: "name",
    ..text("Name")
};

/// Returns a column of text.
pub(super) const fn text(name: &'static str) -> KnownColumn<'static> {
    KnownColumn {
        name,
        kind: "string",
        format: "",
        priority: 0,
    }
}

/// Returns a column of text that is shown on demand.
pub(super) const fn wide(name: &'static str) -> KnownColumn<'static> {
    KnownColumn {
        priority: 1,
        ..text(name)
    }
}

/// Returns a column of integers.
pub(super) const fn integer(name: &'static str) -> KnownColumn<'static> {
    KnownColumn {
        kind: "integer",
        ..text(name)
    }
}

/// Returns a column of another type.
pub(super) const fn typed(name: &'static str, kind: &'static str) -> KnownColumn<'static> {
    KnownColumn { kind, ..text(name) }
}

impl PrinterColumn {
    /// Returns the only column of types whose definition names none.
    /// Source: `apiextensions-apiserver/pkg/apiserver/helpers.go` (serveDefaultColumnsIfEmpty).
    pub(super) fn age() -> Self {
        Self {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description: String::new(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".to_owned(),
        }
    }

    pub(super) fn known(&self) -> KnownColumn<'_> {
        KnownColumn {
            name: &self.name,
            kind: &self.kind,
            format: &self.format,
            priority: self.priority,
        }
    }
}
