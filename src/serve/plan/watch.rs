//! The plan of a watch.
use watershed_protocol::{Freshness, ListOptions, Selection, WatchStart};

use super::context::ReadContext;
use super::selected::Selected;
use crate::access::ReviewSelectors;
use crate::serve::scope_choice::ScopeChoice;
use crate::serve::source::ForwardReason;
use crate::watcher::ViewFilter;

/// The parameters of a watch.
pub(in crate::serve) struct WatchPlan {
    pub(in crate::serve) filter: ViewFilter,
    pub(in crate::serve) start: WatchStart,
    /// The client sent `sendInitialEvents`, with whatever value.
    pub(in crate::serve) names_initial_events: bool,
    pub(in crate::serve) bookmarks: bool,
    pub(in crate::serve) timeout_seconds: Option<u64>,
    /// The selected objects, if the watch begins with the most recent state.
    pub(in crate::serve) fresh_selection: Option<Selection>,
}

/// Returns the watch's parameters, its selectors, and the scope to look into.
pub(super) fn plan(
    context: &ReadContext<'_>,
) -> Result<(WatchPlan, ReviewSelectors, ScopeChoice), ForwardReason> {
    let options = ListOptions::parse(context.query).map_err(|_| ForwardReason::Parameters)?;
    let selected = Selected::new(context, &options)?;
    let start = options
        .watch_start()
        .map_err(|_| ForwardReason::Parameters)?;
    context.permit(start.freshness())?;
    let timeout_seconds = match options.timeout_seconds {
        None | Some(0) => None,
        Some(seconds) => Some(u64::try_from(seconds).map_err(|_| ForwardReason::Parameters)?),
    };
    let is_fresh = start.freshness() == Freshness::MostRecent;
    let watch = WatchPlan {
        fresh_selection: is_fresh.then(|| selected.selection(context)),
        filter: selected.filter,
        start,
        names_initial_events: options.send_initial_events.is_some(),
        bookmarks: options.allow_bookmarks,
        timeout_seconds,
    };
    Ok((watch, selected.selectors, selected.scope))
}
