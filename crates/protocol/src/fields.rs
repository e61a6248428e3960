//! Field labels: which ones a type can be selected by, and where their values are in its objects.
mod builtin;
mod table;

pub use table::FieldTable;
pub(crate) use table::{PathStep, StepTarget, ValueShape};
