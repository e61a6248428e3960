//! The plan of a list.
use watershed_protocol::{
    Freshness, InvalidOptions, ListOptions, ListStart, is_key_part, request_timeout,
};

use super::context::ReadContext;
use super::parameters::ReadParameters;
use super::selected::Selected;
use crate::serve::source::ForwardReason;
use crate::watcher::ViewFilter;

/// The parameters of a list.
pub(in crate::serve) struct ListPlan {
    pub(in crate::serve) filter: ViewFilter,
    /// Upper bound of objects on the page.
    pub(in crate::serve) limit: Option<usize>,
    /// The key after which the page begins, from a continue token.
    pub(in crate::serve) after: Option<String>,
    /// Upstream has no watch cache of the type, so that its continue tokens are etcd's.
    pub(in crate::serve) is_from_etcd: bool,
    /// It is a first page, and not of a state of the past.
    pub(in crate::serve) is_first_of_present: bool,
}

/// Returns the meaning of a list's parameters.
pub(super) fn plan(context: &ReadContext<'_>) -> Result<(ListPlan, ReadParameters), ForwardReason> {
    let options = ListOptions::of(context.query).map_err(|_| ForwardReason::Parameters)?;
    let selected = Selected::new(context, &options)?;
    let ListStart { freshness, after } = options.list_start().map_err(|error| match error {
        InvalidOptions::ContinueToken => ForwardReason::ContinueToken,
        _ => ForwardReason::Parameters,
    })?;
    context.permit(freshness)?;
    let is_from_etcd = context.resource.gvr.is_event();
    let is_exact = matches!(freshness, Freshness::Exact(_));
    let limit = page_limit(&options, is_from_etcd).filter(|_| {
        // Upstream reads a single key then, and there is no second page.
        let is_one_read = freshness == Freshness::MostRecent || (is_from_etcd && !is_exact);
        !(is_one_read && after.is_none() && is_one_key(context, &selected))
    });
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
    let list = ListPlan {
        filter: selected.filter,
        limit,
        is_first_of_present: after.is_none() && !is_exact,
        after,
        is_from_etcd,
    };
    let parameters = ReadParameters {
        freshness,
        timeout: request_timeout(context.query),
        selectors: selected.selectors,
        selector_bytes: selected.bytes,
        reviewed: selected.reviewed,
        scope: selected.scope,
    };
    Ok((list, parameters))
}

/// Returns the limit that applies. Version "0" lifts it only where upstream has a watch cache.
fn page_limit(options: &ListOptions, is_from_etcd: bool) -> Option<usize> {
    let limit = if is_from_etcd {
        u64::try_from(options.limit).ok().filter(|&limit| limit > 0)
    } else {
        options.page_limit()
    };
    limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Returns `true` if upstream reads a single key for the selectors: they require a name that an
/// object can have, in a namespace that the path names.
fn is_one_key(context: &ReadContext<'_>, selected: &Selected) -> bool {
    let name = selected.selectors.fields.required_value("metadata.name");
    let has_namespace = context.namespace.is_some() || !context.resource.namespaced;
    name.is_some_and(is_key_part) && has_namespace && !selected.requires("metadata.namespace")
}
