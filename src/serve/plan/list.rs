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
    /// The list may be answered only if it has fewer objects than the limit: upstream does not
    /// make the pages of the type as those of others.
    pub(in crate::serve) only_whole: bool,
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
    // Upstream reads a single key then, and there is no second page.
    let limit = limit.filter(|_| {
        let is_one_key = after.is_none() && is_one_key(context, &selected);
        freshness != Freshness::MostRecent || !is_one_key
    });
    let is_exact = matches!(freshness, Freshness::Exact(_));
    let paged = limit.is_some() || is_exact;
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
    // etcd's. What is shorter than a page is the same.
    let is_events = *context.resource.gvr.resource == *"events";
    if is_events && (is_exact || after.is_some()) {
        return Err(ForwardReason::Paging);
    }
    let etcd_limit = usize::try_from(options.limit)
        .ok()
        .filter(|&limit| limit > 0);
    let only_whole = is_events && etcd_limit.is_some();
    let list = ListPlan {
        filter: selected.filter,
        limit: if only_whole { etcd_limit } else { limit },
        after,
        only_whole,
    };
    Ok((list, freshness, selected.selectors, selected.scope))
}

/// Returns true if upstream reads a single key for the selectors: they require a name that an
/// object can have, in a namespace that the path names.
fn is_one_key(context: &ReadContext<'_>, selected: &Selected) -> bool {
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(['/', '%']);
    let fields = selected.fields.as_ref();
    let name = fields.and_then(|fields| fields.required_value("metadata.name"));
    let has_namespace = context.namespace.is_some() || !context.resource.namespaced;
    name.is_some_and(is_name) && has_namespace && !selected.requires("metadata.namespace")
}
