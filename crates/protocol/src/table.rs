//! Tables: objects as the rows that `kubectl get` prints.
//!
//! The columns are learned from an answer of upstream ([`TableForm::learn`]). The cells are made
//! here, by a printer for each type, and compared with those of the answer. What is not certain to
//! be printed as upstream does comes out as an error, and the request is forwarded.
//!
//! Sources: `kubernetes/pkg/printers`, `apiserver/pkg/endpoints/handlers/response.go` (asTable),
//! `apiextensions-apiserver/pkg/registry/customresource/tableconvertor`.
mod age;
mod answer;
mod builtin;
mod cells;
mod column;
mod custom;
mod form;
mod json_path;
mod members;
mod printer;
mod request;
mod row_metadata;
mod selector;
#[cfg(test)]
mod tests;

pub use column::PrinterColumn;
pub use form::{RowTable, TableForm, TableRow};
pub use printer::TablePrinter;
pub use request::{IncludedObject, TableRequest, TableVersion};
