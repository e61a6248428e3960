//! Answers another replica that asks for a checkpoint.
use http_body_util::BodyExt as _;
use watershed_protocol::Status;

use crate::body::holding;
use crate::budget::PressureStep;
use crate::fairness::{CallerKey, Shares};
use crate::scope::{Scopes, checkpoint_media_type};
use crate::serve::answer::{self, Answer};
use crate::serve::plan::CheckpointPlan;
use crate::serve::source::AnswerSource;
use crate::serve::unanswered::Refusal;

/// Checkpoints that are sent at a time, half of them to one user. Each holds a state until it is
/// sent.
const AT_ONCE: u64 = 16;
/// Others are asked at once. A later request of the same replica is about another type.
const RETRY_AFTER: u32 = 1;
/// Message for those that ask for anything else.
const NOT_HELD: &str = "the state is not held, or cannot be continued";

/// Answers requests for checkpoints.
#[derive(Debug)]
pub(in crate::serve) struct CheckpointAnswers {
    turns: Shares,
}

impl Default for CheckpointAnswers {
    fn default() -> Self {
        Self {
            turns: Shares::bounded(AT_ONCE),
        }
    }
}

impl CheckpointAnswers {
    /// Refuses what is certainly not held, before a review that would cost upstream a request.
    ///
    /// Every known caller may learn that nobody reads a type here. What is held of a namespace or
    /// with a selector tells what others read, so it takes the review.
    pub(in crate::serve) fn expect_held(
        scopes: &Scopes,
        plan: &CheckpointPlan,
    ) -> Result<(), Refusal> {
        if plan.key.selection.is_everything() && !scopes.is_ready(&plan.key) {
            return Err(not_held(NOT_HELD));
        }
        Ok(())
    }

    /// Answers a user who may list what the checkpoint has.
    ///
    /// Nothing is opened, forwarded or waited for: the other replica would do that itself, and it
    /// may be this very process.
    pub(in crate::serve) async fn answer(
        &self,
        scopes: &Scopes,
        user: &str,
        plan: &CheckpointPlan,
    ) -> Result<Answer, Refusal> {
        let turn = self.turns.take(CallerKey::user(user), 1).ok_or_else(busy)?;
        if scopes.budget().step() >= PressureStep::RefuseAnswers {
            return Err(not_held("memory is short"));
        }
        let Some(state) = scopes.checkpoint(&plan.key).await else {
            return Err(not_held(NOT_HELD));
        };
        tracing::info!(
            resource = %plan.key.gvr,
            selection = %plan.key.selection,
            objects = state.objects(),
            "sending a state to another replica"
        );
        let body = holding(state.map_err(Into::into).boxed_unsync(), turn);
        let media_type = checkpoint_media_type(plan.key.representation);
        let response = answer::checkpoint(media_type, body);
        Ok(Answer::new(AnswerSource::Snapshot, response))
    }
}

fn busy() -> Refusal {
    let status = Status::too_many_requests("too many states are being sent", RETRY_AFTER);
    Refusal::new(AnswerSource::NoState, status)
}

fn not_held(reason: &str) -> Refusal {
    let status = Status::service_unavailable(reason, RETRY_AFTER);
    Refusal::new(AnswerSource::NoState, status)
}
