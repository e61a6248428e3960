//! The parts of a printer.
use serde::Deserialize;

use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::KnownColumn;
use crate::table::row_metadata::RowMetadata;

/// The printer of one type.
#[derive(Debug)]
pub(in crate::table) struct BuiltinPrinter {
    /// Group, version and resource.
    pub(in crate::table) resource: (&'static str, &'static str, &'static str),
    pub(in crate::table) columns: &'static [KnownColumn<'static>],
    /// Makes the cells of an object, of which this is JSON.
    pub(in crate::table) print: fn(&[u8], &mut Cells) -> Result<(), Malformed>,
    pub(in crate::table) metadata: RowMetadata,
}

impl PartialEq for BuiltinPrinter {
    fn eq(&self, other: &Self) -> bool {
        self.resource == other.resource
    }
}

impl Eq for BuiltinPrinter {}

/// Reads the fields of an object that are printed.
pub(super) fn read<'a, T: Deserialize<'a>>(object: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(object).map_err(|_| Malformed("an object that can't be printed"))
}
