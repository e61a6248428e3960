//! Identifies and authorizes callers. Both come before anything is read.
use std::sync::Arc;
use std::time::Duration;

use watershed_protocol::Status;

use super::exchange::Exchange;
use super::limits::exceeded::LimitExceeded;
use super::plan::document_request::DocumentRequest;
use super::plan::{CheckpointPlan, ReadPlan};
use super::source::{AnswerSource, ForwardReason};
use super::unanswered::{Refusal, Unanswered};
use crate::access::{
    AccessAttributes, AccessTarget, Authenticated, Decision, Identity, Rejection, ReviewError,
    ReviewType, ReviewedAccess,
};
use crate::audit;
use crate::log_throttle::LogThrottle;

/// Requests whose caller could not be reviewed.
static NOT_REVIEWED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Returns the decision that lets the caller read what they ask for.
pub(super) async fn authorize_read(
    exchange: &Exchange<'_>,
    read: &ReadPlan,
) -> Result<ReviewedAccess, Unanswered> {
    let identity = match identify(exchange).await? {
        Authenticated::Known(identity) => identity,
        Authenticated::Refused => {
            return Err(refuse_read(
                read,
                AnswerSource::Access,
                Status::unauthorized(),
            ));
        }
        Authenticated::Unknown => return Err(ForwardReason::Identity.into()),
    };
    let authorizer = &exchange.access.authorizer;
    let review = authorizer.authorize(&identity, exchange.address(), read.attributes.target());
    let reviewed = reviewed(exchange, &identity, review).await?;
    match reviewed.decision() {
        Decision::Allowed(_) => Ok(reviewed),
        Decision::Denied(reason) => {
            let status = denied(&identity, &read.attributes, reason);
            Err(refuse_read(read, AnswerSource::Access, status))
        }
    }
}

/// Returns the caller. Unknown ones are forwarded, so upstream refuses them in its own words.
pub(super) async fn identify_known(exchange: &Exchange<'_>) -> Result<Arc<Identity>, Unanswered> {
    match identify(exchange).await? {
        Authenticated::Known(identity) => Ok(identity),
        _ => Err(ForwardReason::Identity.into()),
    }
}

/// Returns an error unless the caller may list what the checkpoint has. Unauthorized callers are
/// forwarded, so upstream refuses them in its own words.
pub(super) async fn authorize_checkpoint(
    exchange: &Exchange<'_>,
    identity: &Arc<Identity>,
    checkpoint: &CheckpointPlan,
) -> Result<(), Unanswered> {
    let authorizer = &exchange.access.authorizer;
    let review = authorizer.authorize(identity, exchange.address(), checkpoint.attributes.target());
    let reviewed = reviewed(exchange, identity, review).await?;
    expect_allowed(&reviewed, ForwardReason::Representation)
}

/// Returns an error unless RBAC lets the caller ask for verdicts about others. Those of other callers are
/// forwarded, so upstream refuses them in its own words.
pub(super) async fn authorize_review(
    exchange: &Exchange<'_>,
    proxy: &Arc<Identity>,
    review: ReviewType,
) -> Result<(), Unanswered> {
    let granted = exchange
        .access
        .may_review(proxy, exchange.address(), review)
        .await;
    let granted = granted.map_err(|error| not_reviewed(exchange, Some(proxy), &error))?;
    let granted = granted.ok_or(ForwardReason::NotARead)?;
    audit::record_decision(&exchange.request, granted.decision());
    Ok(())
}

/// Returns the refusal of a verdict that upstream did not give. If upstream answered in some way, the
/// other proxy gets that answer by asking for upstream's own.
pub(super) fn undecided(exchange: &Exchange<'_>, error: &ReviewError) -> Refusal {
    if !error.is_unavailable() {
        return only_upstream();
    }
    exchange.access.note_failed_review();
    Refusal::access(not_now(error))
}

/// Returns an error unless the caller may see the document. Unknown or unauthorized callers are
/// forwarded, so upstream refuses them in its own words.
pub(super) async fn authorize_document(
    exchange: &Exchange<'_>,
    document: &DocumentRequest,
) -> Result<(), Unanswered> {
    let identity = identify_known(exchange).await?;
    let authorizer = &exchange.access.authorizer;
    let target = AccessTarget::get_of_path(&document.path);
    let review = authorizer.authorize(&identity, exchange.address(), target);
    let reviewed = reviewed(exchange, &identity, review).await?;
    expect_allowed(&reviewed, ForwardReason::NotAResource)
}

/// Returns the refusal of a caller that upstream would not accept.
pub(super) fn rejected_caller(refusal: &Rejection) -> Refusal {
    match refusal {
        Rejection::Status(status) => Refusal::access((**status).clone()),
        Rejection::ReviewFailed(error) => {
            if let Some(exceeded) = LimitExceeded::of_review(error) {
                return exceeded.into();
            }
            if let Some(requests) = NOT_REVIEWED.count(1) {
                tracing::warn!(%error, requests, "cannot review an impersonation request");
            }
            Refusal::access(not_now(error))
        }
    }
}

/// Forwards the request for this reason unless the caller may have what it asks for.
fn expect_allowed(reviewed: &ReviewedAccess, or_else: ForwardReason) -> Result<(), Unanswered> {
    match reviewed.decision() {
        Decision::Allowed(_) => Ok(()),
        Decision::Denied(_) => Err(or_else.into()),
    }
}

/// Waits for a review, and records its decision in the audit log.
async fn reviewed(
    exchange: &Exchange<'_>,
    identity: &Identity,
    review: impl Future<Output = Result<ReviewedAccess, Arc<ReviewError>>>,
) -> Result<ReviewedAccess, Unanswered> {
    let reviewed = review.await;
    let reviewed = reviewed.map_err(|error| not_reviewed(exchange, Some(identity), &error))?;
    audit::record_decision(&exchange.request, reviewed.decision());
    Ok(reviewed)
}

async fn identify(exchange: &Exchange<'_>) -> Result<Authenticated, Unanswered> {
    let reviewed = exchange.identify().await;
    if let Ok(Authenticated::Known(identity)) = &reviewed {
        exchange.record_identified(identity);
    }
    reviewed.map_err(|error| not_reviewed(exchange, None, &error))
}

/// Returns the outcome for a caller that could not be reviewed: refused or forwarded, as configured. The
/// log tells the user, if it is known.
fn not_reviewed(
    exchange: &Exchange<'_>,
    identity: Option<&Identity>,
    error: &ReviewError,
) -> Unanswered {
    if let Some(exceeded) = LimitExceeded::of_review(error) {
        return exceeded.into();
    }
    if matches!(error, ReviewError::OftenDenied) {
        return ForwardReason::OftenDenied.into();
    }
    exchange.access.note_failed_review();
    if let Some(requests) = NOT_REVIEWED.count(1) {
        tracing::warn!(
            %error,
            user = identity.map(|identity| identity.user.as_str()),
            address = %exchange.peer.address.ip(),
            requests,
            "cannot review the caller"
        );
    }
    if exchange.access.must_refuse(error) {
        Refusal::access(not_now(error)).into()
    } else {
        ForwardReason::ReviewFailed.into()
    }
}

/// Refuses a read: here, or by forwarding it, so that upstream uses its own words.
pub(super) fn refuse_read(read: &ReadPlan, source: AnswerSource, status: Status) -> Unanswered {
    match read.refused_by_upstream() {
        Some(reason) => reason.into(),
        None => Refusal::new(source, status).into(),
    }
}

/// Returns the refusal of a review that only upstream can answer exactly. The other proxy then asks for
/// upstream's own answer.
pub(super) fn only_upstream() -> Refusal {
    let message = "only the API server can answer this review; accept its own form";
    Refusal::access(Status::new(406, "NotAcceptable", message))
}

fn not_now(error: &ReviewError) -> Status {
    let message = format!("the API server could not be asked about the caller: {error}");
    Status::service_unavailable(message, 1)
}

fn denied(identity: &Identity, attributes: &AccessAttributes, reason: &str) -> Status {
    Status::forbidden(
        &identity.user,
        attributes.verb,
        &attributes.resource,
        reason,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_whose_impersonation_waits_too_often_is_told_to_slow_down() {
        let rejected = |error: ReviewError| rejected_caller(&Rejection::ReviewFailed(error.into()));
        let limited = rejected(ReviewError::TooManyImpersonations);
        assert!(
            matches!(limited, Refusal::Limit(LimitExceeded::ImpersonationReviews)),
            "{limited:?}"
        );
        let failed = rejected(ReviewError::Late(Duration::from_secs(10)));
        assert!(
            matches!(&failed, Refusal::Status(_, status) if status.code == 503),
            "{failed:?}"
        );
    }
}
