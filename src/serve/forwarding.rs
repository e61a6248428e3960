//! Sends requests to upstream that are not answered from memory.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode, header};
use watershed_protocol::Verb;

use super::answer::{self, Answer};
use super::coalesce::CoalescerSlot;
use super::exchange::Exchange;
use super::forward_limits::ForwardPermit;
use super::limit::LimitExceeded;
use super::parts::ServiceParts;
use super::plan::{PlannedAction, ReadKind};
use super::source::{AnswerSource, ForwardReason};
use super::unanswered::Unanswered;
use super::{review, unknown_callers, until_drain};
use crate::access::{Caller, Credential, Identity};
use crate::body::{Body, holding};
use crate::log_throttle::LogThrottle;
use crate::upstream::{ForwardIdentity, ForwardOptions};

/// Requests that failed on their way to upstream. Clients can have them fail, too.
static NOT_FORWARDED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

impl ServiceParts {
    /// Lets identical reads that go to upstream share one request, if they are consistent or many
    /// may come at once. Returns the answer, and the slot of a read that is under way.
    pub(super) async fn coalesce(
        &self,
        exchange: &Exchange,
        answered: Result<Answer, Unanswered>,
    ) -> (Result<Answer, Unanswered>, Option<CoalescerSlot<'_>>) {
        let PlannedAction::Read(read) = &exchange.plan.action else {
            return (answered, None);
        };
        let may_share = matches!(
            answered,
            Err(Unanswered::Forward(
                ForwardReason::Consistent
                    | ForwardReason::Unproven
                    | ForwardReason::Stale
                    | ForwardReason::Quarantined
                    | ForwardReason::SchemaChanged
            ))
        );
        if !may_share || matches!(read.kind, ReadKind::Watch(_)) {
            return (answered, None);
        }
        let slot = self.coalescer.enter(&exchange.request);
        if slot.is_first() {
            return (answered, Some(slot));
        }
        if let Err(unanswered) = review::authorize_read(&self.access, exchange, read).await {
            return (Err(unanswered), Some(slot));
        }
        let user = self.remembered(exchange).await;
        let capacity = self.forwarder.capacity();
        let limits = &self.forward_limits;
        let Some(share) = limits.share_of_known(exchange, user.as_ref(), capacity) else {
            return (Err(LimitExceeded::Forwarded.into()), Some(slot));
        };
        let authority = exchange.caller.authority();
        let shared = slot.answer(exchange.headers(), &authority, share).await;
        let answered = match shared {
            Some(shared) => Ok(Answer::new(AnswerSource::Coalesced, shared.response())),
            None => answered,
        };
        (answered, Some(slot))
    }

    /// Admits a request that is to be forwarded, or answers it with the limit that it exceeds.
    pub(super) async fn admit_forward(
        &self,
        exchange: &Exchange,
        user: Option<&Arc<Identity>>,
        answered: Result<Answer, Unanswered>,
    ) -> (Result<Answer, Unanswered>, Option<ForwardPermit>) {
        if !matches!(answered, Err(Unanswered::Forward(_))) {
            return (answered, None);
        }
        if let Err(refused) = unknown_callers::admit_forward(&self.access, exchange).await {
            return (Err(refused), None);
        }
        let capacity = self.forwarder.capacity();
        let limits = &self.forward_limits;
        match limits.admit(&self.access, exchange, user, capacity).await {
            Ok(permit) => (answered, Some(permit)),
            Err(refused) => (Err(refused), None),
        }
    }

    pub(super) async fn forward(
        &self,
        exchange: Exchange,
        reason: ForwardReason,
        permit: Option<ForwardPermit>,
    ) -> Response<Body> {
        let caller = ForwardedCaller::of(&exchange);
        let Exchange { request, plan, .. } = exchange;
        let query = request.uri().query();
        let takeover = self.takeovers.of(reason, query, plan.action);
        let (mut share, turn) = permit.map(ForwardPermit::split).unwrap_or_default();
        // A tunnel goes on after its answer.
        let is_upgrade = request.headers().contains_key(header::UPGRADE);
        let options = ForwardOptions {
            long: plan.own_connection,
            identity: caller.identity(),
            share: share.take_if(|_| is_upgrade),
        };
        let forwarded = self.forwarder.forward(request, options).await;
        drop(turn);
        let response = match forwarded {
            Ok(response) => response,
            Err(error) => {
                if error.is_refused() {
                    // The request is at fault: nobody could mend anything.
                    tracing::debug!(%error, "refused to forward a request");
                } else if let Some(requests) = NOT_FORWARDED.count(1) {
                    tracing::warn!(%error, requests, "cannot forward a request");
                }
                return answer::unreachable(&error, plan.refusals);
            }
        };
        if self
            .learn(&caller, response.status(), response.headers())
            .await
        {
            // It would count as an unknown caller's for as long as it stays open.
            let capacity = self.forwarder.capacity();
            let accepted = |unknown| {
                self.forward_limits
                    .accepted(caller.address, unknown, capacity)
            };
            share = share.map(accepted);
        }
        let response = match share {
            Some(share) => response.map(|body| holding(body, share)),
            None => response,
        };
        if plan.verb == Verb::Watch {
            until_drain::apply(response, &self.draining, takeover)
        } else {
            response
        }
    }

    /// Learns from upstream's answer whether it accepts the caller. Returns `true` if that was not
    /// known before.
    async fn learn(
        &self,
        forwarded: &ForwardedCaller,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> bool {
        let Some(credential) = &forwarded.credential else {
            return false;
        };
        let ForwardedCaller { address, path, .. } = forwarded;
        self.access
            .note_answer(credential, *address, path, (status, headers))
            .await;
        !forwarded.is_known && self.access.is_known(&forwarded.caller, Some(credential))
    }
}

/// The caller of a request that was forwarded.
struct ForwardedCaller {
    caller: Caller,
    credential: Option<Credential>,
    is_known: bool,
    address: IpAddr,
    path: String,
}

impl ForwardedCaller {
    fn of(exchange: &Exchange) -> Self {
        Self {
            caller: exchange.caller.clone(),
            credential: exchange.credential,
            is_known: exchange.is_known,
            address: exchange.address(),
            path: exchange.request.uri().path().to_owned(),
        }
    }

    fn identity(&self) -> ForwardIdentity {
        match self.caller.authority() {
            ForwardIdentity::Caller if !self.is_known => ForwardIdentity::UnknownCaller,
            identity => identity,
        }
    }
}
