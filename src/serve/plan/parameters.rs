//! The meaning of a read's parameters.
use std::time::Duration;

use watershed_protocol::Freshness;

use crate::access::ReviewSelectors;
use crate::serve::policy::scope_choice::ScopeChoice;

/// The meaning of a read's parameters. `K` is the part that only reads of its kind have.
pub(super) struct ReadParameters<K> {
    pub(super) kind: K,
    pub(super) freshness: Freshness,
    /// The time that the client gives the read.
    pub(super) timeout: Option<Duration>,
    /// The selectors that upstream's authorizers see.
    pub(super) selectors: ReviewSelectors,
    /// The scope to look into.
    pub(super) scope: ScopeChoice,
}

impl<K> ReadParameters<K> {
    /// Makes them the parameters of a read of any kind.
    pub(super) fn map<T>(self, kind: impl FnOnce(K) -> T) -> ReadParameters<T> {
        let Self {
            kind: of_kind,
            freshness,
            timeout,
            selectors,
            scope,
        } = self;
        ReadParameters {
            kind: kind(of_kind),
            freshness,
            timeout,
            selectors,
            scope,
        }
    }
}
