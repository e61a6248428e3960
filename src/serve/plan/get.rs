//! The plan of a get.
use watershed_protocol::{Freshness, ResourceRequest, Selection, get_freshness};

use super::context::ReadContext;
use crate::serve::scope_choice::ScopeChoice;
use crate::serve::source::ForwardReason;

/// Returns the object's name, the freshness of the answer, and the scope to look into.
pub(super) fn plan(
    context: &ReadContext<'_>,
    asked: &ResourceRequest,
) -> Result<(String, Freshness, ScopeChoice), ForwardReason> {
    let freshness = get_freshness(context.query).map_err(|_| ForwardReason::Parameters)?;
    context.permit(freshness)?;
    let name = asked.name.clone().ok_or(ForwardReason::NotAResource)?;
    let scope = context
        .policy
        .scope_for(&context.resource.gvr, true, || {
            Selection::named(context.namespace, &name)
        })
        .ok_or(ForwardReason::NotCovered)?;
    Ok((name, freshness, scope))
}
