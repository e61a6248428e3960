//! Shadow mode: upstream answers everything, and what memory would have answered is noted.
use http_body_util::BodyExt as _;

use super::answer::Answer;
use super::exchange::Exchange;
use super::metrics;
use super::source::{AnswerSource, ForwardReason};
use super::unanswered::{Refusal, Unanswered};
use super::verify::IsSampled;
use crate::access::Caller;

/// The codes of refusals by which the proxy repeats what upstream said about a caller.
const UPSTREAMS_WORDS: [u16; 2] = [401, 403];

/// Returns what takes the place of an answer: the request is forwarded. Returns the answer's source
/// with it, unless the request would have been forwarded anyway.
///
/// Requests that the proxy would refuse are forwarded, too, if upstream finds the same about the
/// caller. The proxy's own refusals stay: limits, its end, callers that upstream must not see, and
/// those about whom it could not be asked (`--authorization-unavailable=refuse`).
pub(super) fn instead(
    exchange: &Exchange<'_>,
    answered: Result<Answer, Unanswered>,
) -> (Result<Answer, Unanswered>, Option<AnswerSource>) {
    let labels = &exchange.labels;
    let is_rejected = matches!(exchange.caller, Caller::Rejected(_));
    let source = match &answered {
        Ok(answer) => answer.source,
        Err(Unanswered::Refuse(Refusal::Status(source @ AnswerSource::Access, status)))
            if !is_rejected && UPSTREAMS_WORDS.contains(&status.code) =>
        {
            *source
        }
        Err(Unanswered::Forward(reason)) => {
            metrics::shadowed(labels, AnswerSource::Forward(*reason));
            return (answered, None);
        }
        Err(Unanswered::Refuse(_)) => return (answered, None),
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
