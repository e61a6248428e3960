//! Budgets of disruptions.
use std::fmt;

use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::{NAME, integer, text};
use crate::table::row_metadata::RowMetadata;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[BuiltinPrinter {
    resource: ("policy", "v1", "poddisruptionbudgets"),
    columns: &[
        NAME,
        text("Min Available"),
        text("Max Unavailable"),
        integer("Allowed Disruptions"),
        text("Age"),
    ],
    print: budget,
    metadata: RowMetadata::AsIs,
}];

#[derive(Deserialize)]
struct DisruptionBudget {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: BudgetSpec,
    #[serde(default)]
    status: BudgetStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetSpec {
    min_available: Option<NumberOrShare>,
    max_unavailable: Option<NumberOrShare>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatus {
    disruptions_allowed: i64,
}

/// A number of pods, or a share of them as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrShare {
    Number(i64),
    Share(String),
}

impl fmt::Display for NumberOrShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}

fn budget(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let DisruptionBudget {
        metadata,
        spec,
        status,
    } = read(object)?;
    let or_none = |limit: Option<NumberOrShare>| {
        limit.map_or_else(|| "N/A".to_owned(), |limit| limit.to_string())
    };
    cells.text(&metadata.name);
    cells.text(&or_none(spec.min_available));
    cells.text(&or_none(spec.max_unavailable));
    cells.integer(status.disruptions_allowed);
    cells.since(metadata.creation_timestamp);
    Ok(())
}
