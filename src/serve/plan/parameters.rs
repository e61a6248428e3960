//! What the parameters of a read ask for.
use watershed_protocol::Freshness;

use super::read::ReadKind;
use crate::access::ReviewSelectors;
use crate::serve::scope_choice::ScopeChoice;

/// What the parameters of a read ask for.
pub(super) struct ReadParameters {
    pub(super) kind: ReadKind,
    pub(super) freshness: Freshness,
    /// The selectors that upstream's authorizers see.
    pub(super) selectors: ReviewSelectors,
    /// The scope to look into.
    pub(super) scope: ScopeChoice,
}
