//! Reads of folded objects: with memory for what they unfold, or forwarded.
use http::HeaderMap;
use watershed_protocol::{ItemBytes, WatchStart, accepts_gzip};

use super::open::OpenedScope;
use crate::budget::{MemoryBudget, PressureStep};
use crate::scope::Unfolding;
use crate::serve::plan::{ReadKind, ReadPlan};
use crate::serve::source::ForwardReason;
use crate::store::{ObjectPeek, StoredObject};

/// Sets memory aside for the objects that an answer unfolds. It is held until the answer is sent.
pub(in crate::serve) fn begin(
    budget: &MemoryBudget,
    opened: &OpenedScope,
    read: &ReadPlan,
    headers: &HeaderMap,
) -> Result<Option<Unfolding>, ForwardReason> {
    let unfolds = match &read.kind {
        ReadKind::Get { .. } => false,
        ReadKind::List(list) => {
            let is_made = opened.partial().is_some() || opened.table.is_some();
            let is_indented = read.is_indented(opened.representation.encoding);
            // Others are sent as they are held.
            is_made || is_indented || read.is_scan(list) || !accepts_gzip(headers)
        }
        ReadKind::Watch(watch) => matches!(watch.start, WatchStart::State { .. }),
    };
    if !unfolds {
        return Ok(None);
    }
    let unfolding = opened.scope.begin_unfolding(budget);
    unfolding.map_err(|_| ForwardReason::Budget)
}

/// Returns the bytes of one object. Those beside it are unfolded with it, unless memory is short.
pub(in crate::serve) fn bytes(budget: &MemoryBudget, object: &StoredObject) -> ItemBytes {
    if budget.step() >= PressureStep::ReleaseDerived {
        ObjectPeek::default().bytes(object)
    } else {
        object.bytes.get()
    }
}
