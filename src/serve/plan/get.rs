//! The plan of a get.
use watershed_protocol::{ResourceRequest, Selection, Selectors, get_freshness, request_timeout};

use super::context::ReadContext;
use super::parameters::ReadParameters;
use crate::access::ReviewSelectors;
use crate::serve::source::ForwardReason;

/// Returns the name of the object that a get is about, and the meaning of its parameters.
pub(super) fn plan(
    context: &ReadContext<'_>,
    asked: &ResourceRequest,
) -> Result<(String, ReadParameters), ForwardReason> {
    let freshness = get_freshness(context.query).map_err(|_| ForwardReason::Parameters)?;
    context.permit(freshness)?;
    let name = asked.name.clone().ok_or(ForwardReason::NotAResource)?;
    let scope = context
        .policy
        .scope_for(&context.resource.gvr, true, || {
            Selection::named(context.namespace, &name)
        })
        .ok_or(ForwardReason::NotCovered)?;
    let parameters = ReadParameters {
        freshness,
        timeout: request_timeout(context.query),
        selectors: Selectors::default(),
        selector_bytes: 0,
        reviewed: ReviewSelectors::default(),
        scope,
    };
    Ok((name, parameters))
}
