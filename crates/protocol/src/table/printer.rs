//! The printers of types.
use jiff::Timestamp;

use super::builtin::{self, BuiltinPrinter};
use super::cells::Cells;
use super::column::{KnownColumn, PrinterColumn};
use super::custom::CustomPrinter;
use super::row_metadata::RowMetadata;
use crate::GroupVersionResource;
use crate::encoding::Malformed;

/// Makes the cells of a type's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePrinter(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Builtin(&'static BuiltinPrinter),
    Custom(CustomPrinter),
}

impl TablePrinter {
    /// Returns the printer of a type that upstream serves by itself, if it is known.
    pub fn builtin(gvr: &GroupVersionResource) -> Option<Self> {
        builtin::find(gvr).map(|printer| Self(Kind::Builtin(printer)))
    }

    /// Returns the printer of a custom type with its version's `additionalPrinterColumns`, unless
    /// one of them has a path that is not understood here.
    pub fn custom(columns: &[PrinterColumn]) -> Option<Self> {
        CustomPrinter::new(columns).map(|printer| Self(Kind::Custom(printer)))
    }

    /// Returns `true` if upstream's columns are those that the cells are made for.
    pub(super) fn has_columns(&self, columns: &[KnownColumn<'_>]) -> bool {
        match &self.0 {
            Kind::Builtin(printer) => columns == printer.columns,
            Kind::Custom(printer) => printer.columns().eq(columns.iter().copied()),
        }
    }

    /// Makes the cells of an object, of which this is JSON, as this minor release of upstream does.
    pub(super) fn print(
        &self,
        object: &[u8],
        now: Timestamp,
        minor: Option<u32>,
    ) -> Result<Cells, Malformed> {
        let mut cells = Cells::new(now, minor);
        let columns = match &self.0 {
            Kind::Builtin(printer) => {
                (printer.print)(object, &mut cells)?;
                printer.columns.len()
            }
            Kind::Custom(printer) => {
                printer.print(object, &mut cells)?;
                printer.columns().count()
            }
        };
        if cells.count() == columns {
            Ok(cells)
        } else {
            Err(Malformed("a row of another length"))
        }
    }

    pub(super) fn metadata(&self) -> RowMetadata {
        match &self.0 {
            Kind::Builtin(printer) => printer.metadata,
            Kind::Custom(_) => RowMetadata::AsIs,
        }
    }
}
