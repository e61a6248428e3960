//! The plan of a watch.
use std::ops::RangeInclusive;
use std::time::Duration;

use watershed_protocol::{
    FieldOperator, FieldRequirement, FieldSelector, ListOptions, Query, WatchStart,
};

use super::context::ReadContext;
use super::parameters::ReadParameters;
use super::selected::Selected;
use crate::access::ReviewSelectors;
use crate::serve::source::ForwardReason;
use crate::watcher::ViewFilter;

/// Seconds that Go's `time.Duration` can hold. Upstream takes more of them for a time in the past, or
/// for another one. Source: `apiserver/pkg/endpoints/handlers/get.go` (ListResource).
const MEASURABLE: RangeInclusive<i64> = 0..=i64::MAX / 1_000_000_000;

/// The parameters of a watch.
pub(in crate::serve) struct WatchPlan {
    pub(in crate::serve) filter: ViewFilter,
    pub(in crate::serve) start: WatchStart,
    /// The client sent `sendInitialEvents`, with whatever value.
    pub(in crate::serve) names_initial_events: bool,
    pub(in crate::serve) bookmarks: bool,
}

/// The path of a watch.
#[derive(Clone, Copy, Debug)]
pub(super) enum WatchPath<'a> {
    /// The path of the collection.
    Present,
    /// The deprecated path with `/watch/` in it, and the name at its end.
    Legacy(Option<&'a str>),
}

/// Returns the meaning of a watch's parameters.
pub(super) fn plan(
    context: &ReadContext<'_>,
    path: WatchPath<'_>,
) -> Result<(WatchPlan, ReadParameters), ForwardReason> {
    let mut options = ListOptions::of(context.query).map_err(|_| ForwardReason::Parameters)?;
    let start = match path {
        WatchPath::Present => options.watch_start(),
        WatchPath::Legacy(_) => options.legacy_watch_start(),
    };
    let start = start.map_err(|_| ForwardReason::Parameters)?;
    if let WatchPath::Legacy(Some(name)) = path {
        options.field_selector = Some(selector_of(name, options.field_selector.as_deref())?);
    }
    let selected = Selected::new(context, &options)?;
    context.permit(start.freshness())?;
    let timeout = match options.timeout_seconds {
        None | Some(0) => None,
        Some(seconds) if MEASURABLE.contains(&seconds) => {
            Some(Duration::from_secs(seconds.unsigned_abs()))
        }
        Some(_) => return Err(ForwardReason::Parameters),
    };
    let watch = WatchPlan {
        filter: selected.filter,
        start,
        names_initial_events: options.send_initial_events.is_some(),
        bookmarks: options.allow_bookmarks,
    };
    let reviewed = match path {
        WatchPath::Present => selected.reviewed,
        // Upstream's authorizers see the name of the path, and no selectors.
        WatchPath::Legacy(_) => ReviewSelectors::default(),
    };
    let parameters = ReadParameters {
        freshness: start.freshness(),
        timeout,
        selectors: selected.selectors,
        selector_bytes: selected.bytes,
        reviewed,
        scope: selected.scope,
    };
    Ok((watch, parameters))
}

/// Returns `true` if a watch with these parameters certainly begins with the events after a version
/// that its client names.
pub(super) fn begins_after_version(query: &Query<'_>, is_legacy: bool) -> bool {
    let start = ListOptions::of(query).and_then(|options| {
        if is_legacy {
            options.legacy_watch_start()
        } else {
            options.watch_start()
        }
    });
    matches!(start, Ok(WatchStart::After(_)))
}

/// Returns the field selector of a watch whose path names an object. Another one in the query has
/// to require that name.
///
/// Source: `apiserver/pkg/endpoints/handlers/get.go` (`listOpts`).
fn selector_of(name: &str, given: Option<&str>) -> Result<String, ForwardReason> {
    let given = FieldSelector::parse(given.unwrap_or_default());
    let given = given.map_err(|_| ForwardReason::Selector)?;
    let selector = if given.is_everything() {
        given.and(FieldRequirement {
            field: "metadata.name".to_owned(),
            operator: FieldOperator::Equals,
            value: name.to_owned(),
        })
    } else if given.required_value("metadata.name") == Some(name) {
        given
    } else {
        return Err(ForwardReason::Selector);
    };
    Ok(selector.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_watch_that_upstream_begins_after_a_version_is_taken_for_one() {
        for (query, is_legacy, wanted) in [
            ("watch=1&resourceVersion=7", false, true),
            ("watch=1&resource%56ersion=7", false, true),
            ("watch=1&resourceVersion=7&resourceVersion=0", false, true),
            ("watch=1&resourceVersion=0&resourceVersion=7", false, false),
            ("watch=1&resourceVersion=&resourceVersion=7", false, false),
            ("watch=1&resourceVersion=0", false, false),
            ("watch=1", false, false),
            (
                "watch=1&resourceVersion=7&resourceVersionMatch=NotOlderThan&sendInitialEvents=true",
                false,
                false,
            ),
            (
                "watch=1&resourceVersion=7&resourceVersionMatch=NotOlderThan&send%49nitialEvents=1",
                false,
                false,
            ),
            (
                "watch=1&resourceVersion=7&resourceVersionMatch=NotOlderThan&sendInitialEvents=0",
                false,
                true,
            ),
            ("watch=1&resourceVersion=7&a=%zz", false, false),
            ("resourceVersion=7", true, true),
            ("resourceVersion=0&resourceVersion=7", true, false),
            ("", true, false),
        ] {
            let parsed = Query::parse(Some(query));
            assert_eq!(begins_after_version(&parsed, is_legacy), wanted, "{query}");
        }
        assert!(!begins_after_version(&Query::parse(None), false));
    }
}
