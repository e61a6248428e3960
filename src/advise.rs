//! Advice before installing: replays kube-apiserver's audit log, and reports what a proxy would
//! answer from memory.
//!
//! The forecasts are those of `serve` ([`crate::serve::Forecaster`]). What an audit log does not
//! have is assumed, and the report says how.
mod caller;
mod client_name;
mod event;
mod known_types;
mod line_counts;
mod log;
mod open_requests;
mod picture;
mod replay;
mod report;
mod table;
mod tally;
#[cfg(test)]
mod tests;

pub use log::{LogError, LogInput};
pub use picture::picture;
pub use replay::Replay;
pub use report::Report;
pub use table::table;
