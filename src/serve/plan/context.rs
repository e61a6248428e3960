//! The input of every read plan.
use std::sync::Arc;

use watershed_protocol::{Freshness, Query};

use super::optional_parameters::ParameterUse;
use crate::catalog::ResourceType;
use crate::serve::policy::{CacheMode, CachingPolicy, ConsistentReads};
use crate::serve::source::ForwardReason;

/// A read of a cached type.
pub(super) struct ReadContext<'a> {
    pub(super) resource: &'a Arc<ResourceType>,
    pub(super) policy: &'a CachingPolicy,
    pub(super) mode: CacheMode,
    pub(super) namespace: Option<&'a str>,
    pub(super) query: &'a Query<'a>,
    pub(super) consistent_reads: ConsistentReads,
    /// The effect of `shardSelector` at upstream.
    pub(super) sharding: ParameterUse,
}

impl ReadContext<'_> {
    /// Returns an error if the operator wants upstream to answer reads of this freshness.
    pub(super) fn permit(&self, freshness: Freshness) -> Result<(), ForwardReason> {
        let forwarded = freshness == Freshness::MostRecent
            && self.consistent_reads == ConsistentReads::Upstream;
        if forwarded {
            Err(ForwardReason::Consistent)
        } else {
            Ok(())
        }
    }

    pub(super) fn may_be_stale(&self) -> bool {
        self.consistent_reads == ConsistentReads::PossiblyStale
    }
}
