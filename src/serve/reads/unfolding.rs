//! Reads of folded objects: with memory for what they unfold, or forwarded.
use http::HeaderMap;
use watershed_protocol::{ItemBytes, WatchStart, accepts_gzip};

use super::open::OpenedScope;
use crate::budget::{MemoryBudget, PressureStep};
use crate::scope::Unfolding;
use crate::serve::plan::{ReadKind, ReadPlan};
use crate::serve::source::ForwardReason;
use crate::store::{ObjectPeek, StoredObject};
use crate::watcher::ContentCoding;

/// Sets memory aside for the objects that an answer unfolds. It is held until the answer is sent.
/// `coding` is that of a watch.
pub(in crate::serve) fn begin(
    budget: &MemoryBudget,
    opened: &OpenedScope,
    read: &ReadPlan,
    headers: &HeaderMap,
    coding: ContentCoding,
) -> Result<Option<Unfolding>, ForwardReason> {
    let is_converted = opened.form.is_converted();
    let unfolds = match &read.kind {
        ReadKind::Get { .. } => false,
        ReadKind::List(list) => {
            let is_indented = read.is_indented(opened.representation.encoding);
            // Others are sent as they are held.
            is_converted || is_indented || read.is_scan(list) || !accepts_gzip(headers)
        }
        ReadKind::Watch(watch) => {
            let is_plain = !is_converted && watch.filter.is_plain();
            unfolds_events(watch.start, coding, is_plain)
        }
    };
    if !unfolds {
        return Ok(None);
    }
    let unfolding = opened.scope.begin_unfolding(budget);
    unfolding.map_err(|_| ForwardReason::Budget)
}

/// Returns `true` if a watch unfolds the objects that it begins with. Where plain views are compressed,
/// they share events that are made of objects as they are held.
fn unfolds_events(start: WatchStart, coding: ContentCoding, is_plain: bool) -> bool {
    match start {
        WatchStart::State { .. } => coding == ContentCoding::Identity || !is_plain,
        WatchStart::After(_) | WatchStart::Now(_) => false,
    }
}

/// Returns the bytes of one object. Those beside it are unfolded with it, unless memory is short.
pub(in crate::serve) fn bytes(budget: &MemoryBudget, object: &StoredObject) -> ItemBytes {
    if budget.step() >= PressureStep::ReleaseDerived {
        ObjectPeek::default().bytes(object)
    } else {
        object.bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use watershed_protocol::{Freshness, ResourceVersion};

    use super::*;

    #[test]
    fn only_a_state_that_is_not_shared_as_it_is_held_is_unfolded() {
        let (gzip, identity) = (ContentCoding::Gzip, ContentCoding::Identity);
        let state = WatchStart::State {
            freshness: Freshness::Any,
            end_mark: true,
        };
        assert!(!unfolds_events(state, gzip, true));
        assert!(unfolds_events(state, gzip, false));
        assert!(unfolds_events(state, identity, true));
        let after = WatchStart::After(ResourceVersion(1));
        assert!(!unfolds_events(after, identity, false));
    }
}
