//! Reasons why a request is not answered from memory.
use watershed_protocol::Status;

use super::limits::exceeded::LimitExceeded;
use super::source::{AnswerSource, ForwardReason};

/// The reason why a request is not answered from memory.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Upstream answers.
    Forward(ForwardReason),
    /// The proxy refuses the request.
    Refuse(Refusal),
}

/// A refusal of a request by the proxy.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The answer has this status, and names this source.
    Status(AnswerSource, Box<Status>),
    /// The caller exceeds a limit.
    Limit(LimitExceeded),
}

impl Refusal {
    pub(super) fn new(source: AnswerSource, status: Status) -> Self {
        Self::Status(source, Box::new(status))
    }

    /// Creates the refusal of a caller who may not do it, or is not known.
    pub(super) fn access(status: Status) -> Self {
        Self::new(AnswerSource::Access, status)
    }
}

impl From<LimitExceeded> for Refusal {
    fn from(exceeded: LimitExceeded) -> Self {
        Self::Limit(exceeded)
    }
}

impl<R: Into<Refusal>> From<R> for Unanswered {
    fn from(refusal: R) -> Self {
        Self::Refuse(refusal.into())
    }
}

impl From<ForwardReason> for Unanswered {
    fn from(reason: ForwardReason) -> Self {
        Self::Forward(reason)
    }
}
