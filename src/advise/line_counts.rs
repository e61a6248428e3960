//! Counts of what was read.
use jiff::Timestamp;

/// Counts of the lines in the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineCounts {
    pub(super) files: u64,
    pub(super) lines: u64,
    /// Lines that are no events, or whose request cannot be one.
    pub(super) damaged: u64,
    pub(super) too_long: u64,
    /// Requests of the API server to itself.
    pub(super) internal: u64,
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
}
