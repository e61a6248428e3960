//! The plan of a checkpoint for another replica.
use std::sync::Arc;

use watershed_protocol::{
    FieldSelector, Freshness, GroupVersionResource, LabelSelector, ListOptions, ListStart,
    Representation, ResourceRequest, Selection, Verb,
};

use super::selected::check_length;
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
    query: Option<&str>,
    representation: Representation,
) -> Result<CheckpointPlan, ForwardReason> {
    let options = ListOptions::parse(query).map_err(|_| ForwardReason::Parameters)?;
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
    let labels = options.label_selector.as_deref().map(LabelSelector::parse);
    let fields = options.field_selector.as_deref().map(FieldSelector::parse);
    let labels = labels.transpose().map_err(|_| ForwardReason::Selector)?;
    let fields = fields.transpose().map_err(|_| ForwardReason::Selector)?;
    check_length(labels.as_ref(), fields.as_ref())?;
    Ok(CheckpointPlan {
        attributes: AccessAttributes {
            verb: Verb::List,
            resource: asked.clone(),
            selectors: ReviewSelectors::new(labels.as_ref(), fields.as_ref()),
        },
        key: ScopeKey {
            gvr: gvr.clone(),
            selection: Arc::new(Selection {
                namespace,
                labels: labels.unwrap_or_default(),
                fields: fields.unwrap_or_default(),
            }),
            representation,
        },
    })
}
