//! The plan of a get.
use watershed_protocol::{ResourceRequest, Selection, get_freshness, request_timeout};

use super::context::ReadContext;
use super::parameters::ReadParameters;
use crate::access::ReviewSelectors;
use crate::serve::source::ForwardReason;

/// Returns the meaning of a get's parameters: an object of this name.
pub(super) fn plan(
    context: &ReadContext<'_>,
    asked: &ResourceRequest,
) -> Result<ReadParameters<String>, ForwardReason> {
    let freshness = get_freshness(context.query).map_err(|_| ForwardReason::Parameters)?;
    context.permit(freshness)?;
    let name = asked.name.clone().ok_or(ForwardReason::NotAResource)?;
    let scope = context
        .policy
        .scope_for(&context.resource.gvr, true, || {
            Selection::named(context.namespace, &name)
        })
        .ok_or(ForwardReason::NotCovered)?;
    Ok(ReadParameters {
        kind: name,
        freshness,
        timeout: request_timeout(context.query),
        selectors: ReviewSelectors::default(),
        scope,
    })
}
