//! Reads an answer of upstream that is a Table.
use serde::Deserialize;
use serde_json::value::RawValue;

use super::column::KnownColumn;
use crate::encoding::Malformed;

/// A list as a Table.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TableAnswer<'a> {
    pub(super) metadata: TableMetadata,
    #[serde(borrow)]
    column_definitions: &'a RawValue,
    #[serde(borrow)]
    pub(super) rows: Vec<&'a RawValue>,
}

/// The metadata of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TableMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) continue_token: Option<String>,
    pub(super) remaining_item_count: Option<i64>,
}

/// A column definition.
#[derive(Debug, Deserialize)]
pub(super) struct AnswerColumn {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    format: String,
    priority: i32,
}

impl<'a> TableAnswer<'a> {
    pub(super) fn parse(answer: &'a [u8]) -> Result<Self, Malformed> {
        serde_json::from_slice(answer).map_err(|_| Malformed("an answer that is no Table"))
    }

    pub(super) fn column_text(&self) -> &'a str {
        self.column_definitions.get()
    }

    pub(super) fn columns(&self) -> Result<Vec<AnswerColumn>, Malformed> {
        serde_json::from_str(self.column_text())
            .map_err(|_| Malformed("columns that can't be read"))
    }

    /// Returns the object in the text of a row.
    pub(super) fn object_of(row: &'a str) -> Result<&'a str, Malformed> {
        #[derive(Deserialize)]
        struct Row<'a> {
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let row: Row<'a> =
            serde_json::from_str(row).map_err(|_| Malformed("a row that can't be read"))?;
        Ok(row.object.get())
    }
}

impl AnswerColumn {
    pub(super) fn known(&self) -> KnownColumn<'_> {
        KnownColumn {
            name: &self.name,
            kind: &self.kind,
            format: &self.format,
            priority: self.priority,
        }
    }
}
