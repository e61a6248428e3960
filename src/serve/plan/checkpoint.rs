//! The plan of a checkpoint for another replica.
use std::sync::Arc;

use watershed_protocol::{
    Freshness, GroupVersionResource, ListOptions, ListStart, Query, Representation,
    ResourceRequest, Verb,
};

use super::selected::parse_selectors;
use crate::access::{AccessAttributes, ReviewSelectors};
use crate::scope::ScopeKey;
use crate::serve::source::ForwardReason;

/// A checkpoint that memory can give.
pub(in crate::serve) struct CheckpointPlan {
    /// The scope that has exactly the objects that were asked for.
    pub(in crate::serve) key: ScopeKey,
    /// The question to authorization: that of a list of these objects.
    pub(in crate::serve) attributes: AccessAttributes,
}

/// Returns the plan. The request must be one for any state, as a whole.
pub(super) fn plan(
    asked: &ResourceRequest,
    gvr: &GroupVersionResource,
    namespace: Option<String>,
    query: &Query<'_>,
    representation: Representation,
) -> Result<CheckpointPlan, ForwardReason> {
    let options = ListOptions::of(query).map_err(|_| ForwardReason::Parameters)?;
    let start = options.list_start();
    let is_any = matches!(
        start,
        Ok(ListStart {
            freshness: Freshness::Any,
            after: None,
        })
    );
    if !is_any || options.shard_selector.is_some() {
        return Err(ForwardReason::Parameters);
    }
    let selectors = parse_selectors(&options)?;
    Ok(CheckpointPlan {
        attributes: AccessAttributes {
            verb: Verb::List,
            resource: asked.clone(),
            selectors: ReviewSelectors::new(&selectors.labels, &selectors.fields),
        },
        key: ScopeKey {
            gvr: gvr.clone(),
            selection: Arc::new(selectors.within(namespace)),
            representation,
        },
    })
}
