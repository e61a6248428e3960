//! Rows of custom types.
//!
//! Source: `apiextensions-apiserver/pkg/registry/customresource/tableconvertor/tableconvertor.go`.
use std::iter;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::age::ObjectTime;
use super::cells::Cells;
use super::column::{KnownColumn, NAME, PrinterColumn};
use super::json_path::JsonPath;
use crate::encoding::Malformed;

/// The largest integer of which all smaller ones are exact as floating point.
const MAX_EXACT: u64 = 1 << 53;

/// Prints the objects of a custom type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CustomPrinter(Vec<CustomColumn>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct CustomColumn {
    definition: PrinterColumn,
    path: JsonPath,
}

impl CustomPrinter {
    pub(super) fn new(columns: &[PrinterColumn]) -> Option<Self> {
        let age = [PrinterColumn::age()];
        let columns = if columns.is_empty() { &age } else { columns };
        let columns = columns.iter().map(|definition| {
            Some(CustomColumn {
                definition: definition.clone(),
                path: JsonPath::parse(&definition.json_path)?,
            })
        });
        columns.collect::<Option<Vec<_>>>().map(Self)
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = KnownColumn<'_>> {
        iter::once(NAME).chain(self.0.iter().map(|column| column.definition.known()))
    }

    pub(super) fn print(&self, object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
        #[derive(Deserialize)]
        struct Named {
            metadata: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            #[serde(default)]
            name: String,
        }
        let malformed = |_| Malformed("a custom object that can't be read");
        let named: Named = serde_json::from_slice(object).map_err(malformed)?;
        cells.text(&named.metadata.name);
        let object: &RawValue = serde_json::from_slice(object).map_err(malformed)?;
        for column in &self.0 {
            match column.path.first(object) {
                Ok(Some(value)) => column.print(value.get(), cells)?,
                _ => cells.null(),
            }
        }
        Ok(())
    }
}

impl CustomColumn {
    /// Prints a value, of which this is JSON.
    fn print(&self, value: &str, cells: &mut Cells) -> Result<(), Malformed> {
        let begin = value.as_bytes().first().copied().unwrap_or_default();
        let is_number = begin == b'-' || begin.is_ascii_digit();
        match (self.definition.kind.as_str(), begin) {
            ("string", _) => cells.text(&as_text(value)?),
            ("integer", _) if is_number => cells.integer(as_integer(value)?),
            ("number", _) if is_number => cells.json(as_float(value)?),
            ("boolean", b't' | b'f') => cells.json(value),
            ("date", b'"') => cells.since(as_moment(value)?),
            ("integer" | "number" | "boolean" | "date", _) => cells.null(),
            _ => return Err(Malformed("a column of an unknown type")),
        }
        Ok(())
    }
}

/// Returns a value as Go prints it.
fn as_text(value: &str) -> Result<String, Malformed> {
    match value.as_bytes().first() {
        Some(b'"') => unquote(value),
        Some(b'n') => Ok("<no value>".to_owned()),
        Some(b'-' | b'0'..=b'9') => match value.parse::<i64>() {
            Ok(integer) => Ok(integer.to_string()),
            // Go has other forms of floating point in text than in JSON.
            Err(_) => Err(Malformed("a floating point number in a column of text")),
        },
        // The object was printed from maps by the same encoder.
        _ => Ok(value.to_owned()),
    }
}

fn as_integer(value: &str) -> Result<i64, Malformed> {
    const TOO_LARGE: Malformed = Malformed("a number that is not an integer");
    if let Ok(integer) = value.parse() {
        return Ok(integer);
    }
    let float: f64 = value.parse().map_err(|_| TOO_LARGE)?;
    if float.abs() < MAX_EXACT as f64 {
        Ok(float as i64)
    } else {
        Err(TOO_LARGE)
    }
}

/// Returns a number as Go prints the floating point number.
fn as_float(value: &str) -> Result<&str, Malformed> {
    match value.parse::<i64>() {
        Ok(integer) if integer.unsigned_abs() > MAX_EXACT => {
            Err(Malformed("an integer that is not exact as floating point"))
        }
        _ => Ok(value),
    }
}

/// Source: `apimachinery/pkg/apis/meta/v1/time.go` (UnmarshalQueryParameter).
fn as_moment(value: &str) -> Result<ObjectTime, Malformed> {
    match unquote(value)?.as_str() {
        "" | "null" => Ok(ObjectTime(None)),
        text => ObjectTime::parse(text).ok_or(Malformed("an odd time in a column of dates")),
    }
}

fn unquote(value: &str) -> Result<String, Malformed> {
    serde_json::from_str(value).map_err(|_| Malformed("a text that can't be read"))
}
