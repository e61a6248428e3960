//! The plan of a list.
use watershed_protocol::{Freshness, InvalidOptions, ListOptions, ListStart};

use super::context::ReadContext;
use super::selected::Selected;
use crate::access::ReviewSelectors;
use crate::serve::scope_choice::ScopeChoice;
use crate::serve::source::ForwardReason;
use crate::watcher::ViewFilter;

/// The parameters of a list.
pub(in crate::serve) struct ListPlan {
    pub(in crate::serve) filter: ViewFilter,
    /// Upper bound of objects on the page.
    pub(in crate::serve) limit: Option<usize>,
    /// The key after which the page begins, from a continue token.
    pub(in crate::serve) after: Option<String>,
}

/// Returns the list's parameters and freshness, its selectors, and the scope to look into.
pub(super) fn plan(
    context: &ReadContext<'_>,
) -> Result<(ListPlan, Freshness, ReviewSelectors, ScopeChoice), ForwardReason> {
    let options = ListOptions::parse(context.query).map_err(|_| ForwardReason::Parameters)?;
    let selected = Selected::new(context, &options)?;
    let ListStart { freshness, after } = options.list_start().map_err(|error| match error {
        InvalidOptions::ContinueToken => ForwardReason::ContinueToken,
        _ => ForwardReason::Parameters,
    })?;
    context.permit(freshness)?;
    let limit = options
        .page_limit()
        .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let paged = limit.is_some() || matches!(freshness, Freshness::Exact(_));
    // Upstream reads a single key, or the keys of one namespace, for these selectors: its tokens
    // and versions then follow other rules.
    if paged && (selected.requires("metadata.name") || selected.requires("metadata.namespace")) {
        return Err(ForwardReason::Paging);
    }
    // Releases differ in whether version "0" lifts the limit of a later page.
    if after.is_some() && limit.is_none() && options.limit > 0 {
        return Err(ForwardReason::Paging);
    }
    // Events have no watch cache upstream: version "0" does not lift the limit, and pages are
    // etcd's.
    if *context.resource.gvr.resource == *"events" && (paged || options.limit > 0) {
        return Err(ForwardReason::Paging);
    }
    let list = ListPlan {
        filter: selected.filter,
        limit,
        after,
    };
    Ok((list, freshness, selected.selectors, selected.scope))
}
