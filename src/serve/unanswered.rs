//! Reasons why a request is not answered from memory.
use watershed_protocol::Status;

use super::limits::requests::LimitExceeded;
use super::source::{AnswerSource, ForwardReason};

/// The reason why a request is not answered from memory.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Upstream answers.
    Forward(ForwardReason),
    /// The proxy refuses the request.
    Refuse(AnswerSource, Box<Status>),
    /// The caller exceeds a limit.
    Limit(LimitExceeded),
}

impl Unanswered {
    pub(super) fn access(status: Status) -> Self {
        Self::Refuse(AnswerSource::Access, Box::new(status))
    }
}

impl From<LimitExceeded> for Unanswered {
    fn from(exceeded: LimitExceeded) -> Self {
        Self::Limit(exceeded)
    }
}

impl From<ForwardReason> for Unanswered {
    fn from(reason: ForwardReason) -> Self {
        Self::Forward(reason)
    }
}
