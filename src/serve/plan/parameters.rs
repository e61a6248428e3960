//! The meaning of a read's parameters.
use std::time::Duration;

use watershed_protocol::{Freshness, Selectors};

use crate::access::ReviewSelectors;
use crate::serve::policy::scope_choice::ScopeChoice;

/// The meaning of a read's parameters.
pub(super) struct ReadParameters {
    pub(super) freshness: Freshness,
    /// The time that the client gives the read.
    pub(super) timeout: Option<Duration>,
    pub(super) selectors: Selectors,
    /// Bytes that the selectors take while the answer is sent.
    pub(super) selector_bytes: u64,
    /// The selectors that upstream's authorizers see.
    pub(super) reviewed: ReviewSelectors,
    /// The scope to look into.
    pub(super) scope: ScopeChoice,
}
