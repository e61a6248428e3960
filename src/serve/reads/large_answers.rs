//! Refuses requests for very large answers when memory is almost used up.
use watershed_protocol::{Status, WatchStart};

use super::open::OpenedScope;
use crate::budget::{MemoryBudget, PressureStep, metrics};
use crate::serve::plan::{ReadKind, ReadPlan};
use crate::serve::source::AnswerSource;
use crate::serve::unanswered::Refusal;

/// Answers from this size on are very large.
const VERY_LARGE: usize = 4 << 20;
/// Clients are asked to come back after so many seconds. By then the largest types are closed.
const RETRY_AFTER: u32 = 10;

/// Refuses a read whose answer is very large, if memory is at its last step.
pub(in crate::serve) fn refuse(
    budget: &MemoryBudget,
    opened: &OpenedScope,
    read: &ReadPlan,
) -> Result<(), Refusal> {
    let has_objects = match &read.kind {
        ReadKind::List(_) => true,
        ReadKind::Watch(watch) => matches!(watch.start, WatchStart::State { .. }),
        ReadKind::Get { .. } => false,
    };
    if !has_objects || budget.step() < PressureStep::RefuseAnswers {
        return Ok(());
    }
    let snapshot = opened.scope.reader.snapshot();
    if read.selected_size(&snapshot).bytes < VERY_LARGE {
        return Ok(());
    }
    metrics::released(PressureStep::RefuseAnswers, 0);
    let message = "the answer is too large for the memory that is left, please try again later";
    let status = Status::too_many_requests(message, RETRY_AFTER);
    Err(Refusal::new(AnswerSource::Limit, status))
}
