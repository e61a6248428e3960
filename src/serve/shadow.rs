//! Shadow mode: upstream answers everything, and what memory would have answered is noted.
use http_body_util::BodyExt as _;

use super::answer::Answer;
use super::metrics::{self, Labels};
use super::source::{AnswerSource, ForwardReason};
use super::unanswered::Unanswered;
use super::verify::IsSampled;

/// Returns what takes the place of an answer: the request is forwarded. Returns the answer's source
/// with it, unless the request would have been forwarded anyway.
///
/// What the proxy would refuse is forwarded, too, except where it protects itself: limits, and its
/// end.
pub(super) fn instead(
    labels: &Labels,
    answered: Result<Answer, Unanswered>,
) -> (Result<Answer, Unanswered>, Option<AnswerSource>) {
    let source = match &answered {
        Ok(answer) => answer.source,
        Err(Unanswered::Refuse(source @ AnswerSource::Access, _)) => *source,
        Err(Unanswered::Forward(reason)) => {
            metrics::shadowed(labels, AnswerSource::Forward(*reason));
            return (answered, None);
        }
        Err(Unanswered::Refuse(..) | Unanswered::Limit(_)) => return (answered, None),
    };
    metrics::shadowed(labels, source);
    if let Ok(answer) = answered
        && answer.response.extensions().get::<IsSampled>().is_some()
    {
        // The comparison begins when the body has been taken.
        tokio::spawn(async move {
            let mut body = answer.response.into_body();
            while let Some(Ok(_)) = body.frame().await {}
        });
    }
    (Err(ForwardReason::Shadow.into()), Some(source))
}
