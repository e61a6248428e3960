//! Sends requests to upstream that are not answered from memory.
mod coalesce;
mod orderly_end;
mod remaining_time;
mod slow_leaders;
mod slow_upload;
mod stream_position;
mod takeover;

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use watershed_protocol::Verb;

use super::answer::{self, Answer};
use super::completion::{Completion, MadeResponse};
use super::exchange::Exchange;
use super::from_memory::VERDICT_WAIT;
use super::limits::forwards::{ForwardLimits, ForwardPermit, ForwardShare};
use super::limits::memory::RequestMemory;
use super::limits::{refusal_log, unknown_callers};
use super::plan::request_deadline::RequestDeadline;
use super::plan::{PlannedAction, ReadKind, ReadPlan};
use super::reads::open::ScopeOpener;
use super::review;
use super::source::{AnswerSource, ForwardReason};
use super::unanswered::{Refusal, Unanswered};
use crate::access::{Access, Caller, Credential, Identity, is_of_api_server};
use crate::body::{self, Body, holding, holding_until_end};
use crate::drain::DrainWatch;
use crate::fairness::QueueTurn;
use crate::listener::{LastOfConnection, PeerConnection};
use crate::log_throttle::LogThrottle;
use crate::upstream::{
    ConnectionClass, ForwardIdentity, ForwardOptions, Forwarder, UpstreamError, is_upgrade,
};
use coalesce::{Coalescer, CoalescerSlot};
use remaining_time::with_time_left;
use slow_upload::SlowUpload;
use takeover::Takeovers;

/// Requests that failed on their way to upstream. Clients can have them fail, too.
static NOT_FORWARDED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// The parts that answer what memory does not: the forwarder, its limits, and what saves requests to upstream.
pub(super) struct Forwarding {
    forwarder: Forwarder,
    access: Access,
    coalescer: Coalescer,
    takeovers: Takeovers,
    limits: ForwardLimits,
    request_memory: Arc<RequestMemory>,
    draining: DrainWatch,
}

impl Forwarding {
    /// Puts the parts together. Watches are taken over by scopes of `opener`.
    pub(super) fn new(
        forwarder: Forwarder,
        opener: ScopeOpener,
        access: Access,
        request_memory: Arc<RequestMemory>,
        draining: DrainWatch,
    ) -> Self {
        Self {
            coalescer: Coalescer::new(forwarder.clone(), opener.scopes.budget()),
            limits: ForwardLimits::new(opener.policy.users, forwarder.clone()),
            takeovers: Takeovers::new(access.clone(), opener),
            forwarder,
            access,
            request_memory,
            draining,
        }
    }

    /// Answers a request that memory does not answer: refuses it, gives it the answer to another, or
    /// forwards it.
    pub(super) async fn answer(
        &self,
        mut exchange: Exchange<'_>,
        completion: &mut Completion,
        unanswered: Unanswered,
    ) -> MadeResponse {
        // The slot is left when the answer is there.
        let arrived = completion.received.arrived;
        let (coalesced, slot) = self.coalesce(&exchange, unanswered, arrived).await;
        if slot.is_some() {
            exchange.note_known();
            completion.user = exchange.remembered().await;
        }
        let refusals = exchange.plan.refusals;
        let address = exchange.address();
        let refused = |refusal: Refusal, user: Option<&Identity>| {
            if let Refusal::Limit(exceeded) = refusal {
                refusal_log::refused(exceeded, user, Some(address));
            }
            MadeResponse::here(answer::refused(refusal, refusals))
        };
        let reason = match coalesced {
            Ok(answer) => return MadeResponse::here(answer),
            Err(Unanswered::Refuse(refusal)) => {
                body::discard_of(exchange.into_request());
                return refused(refusal, completion.user.as_deref());
            }
            Err(Unanswered::Forward(reason)) => reason,
        };
        match self.admit_forward(&exchange, completion).await {
            Ok(permit) => {
                completion.forwards(exchange.request.headers_mut());
                exchange.note_time_left();
                self.forward(exchange, reason, permit, completion).await
            }
            Err(refusal) => {
                body::discard_of(exchange.into_request());
                refused(refusal, completion.user.as_deref())
            }
        }
    }

    /// Lets identical reads that go to upstream share one request, if they are consistent or many
    /// may come at once. Returns the answer, and the slot of a read that is under way.
    async fn coalesce(
        &self,
        exchange: &Exchange<'_>,
        unanswered: Unanswered,
        arrived: Instant,
    ) -> (Result<Answer, Unanswered>, Option<CoalescerSlot<'_>>) {
        let PlannedAction::Read(read) = &exchange.plan.action else {
            return (Err(unanswered), None);
        };
        let may_share = matches!(
            unanswered,
            Unanswered::Forward(
                ForwardReason::Consistent
                    | ForwardReason::Unproven
                    | ForwardReason::Stale
                    | ForwardReason::Quarantined
                    | ForwardReason::SchemaChanged
            )
        );
        if !may_share || matches!(read.kind, ReadKind::Watch(_)) {
            return (Err(unanswered), None);
        }
        let identity = exchange.caller.forward_identity();
        let (key, headers) = (exchange.request_key(), exchange.headers());
        let slot = self.coalescer.enter(key, headers, &identity);
        let answer = if slot.is_first() {
            Err(unanswered)
        } else {
            let deadline = RequestDeadline::of(read, arrived);
            self.answer_shared(exchange, read, &slot, deadline)
                .await
                .and_then(|answer| answer.ok_or(unanswered))
        };
        (answer, Some(slot))
    }

    /// Answers a read with a response that others share; `None` if there is none in time. Fails with the
    /// reason for which the caller may not have it.
    async fn answer_shared(
        &self,
        exchange: &Exchange<'_>,
        read: &ReadPlan,
        slot: &CoalescerSlot<'_>,
        deadline: RequestDeadline,
    ) -> Result<Option<Answer>, Unanswered> {
        let asked = Instant::now();
        review::authorize_read(exchange, read).await?;
        let user = exchange.remembered().await;
        let share = self.limits.share_of_known(exchange, user.as_ref())?;
        let identity = exchange.caller.forward_identity();
        let shared = slot.answer(exchange.headers(), identity, share);
        let Some(shared) = deadline.wait_for_others(shared).await else {
            return Ok(None);
        };
        if asked.elapsed() > VERDICT_WAIT {
            review::authorize_read(exchange, read).await?;
        }
        let answer = Answer::new(AnswerSource::Coalesced, shared.response());
        Ok(Some(answer))
    }

    /// Admits a request that is to be forwarded.
    async fn admit_forward(
        &self,
        exchange: &Exchange<'_>,
        completion: &mut Completion,
    ) -> Result<ForwardPermit, Refusal> {
        if let Some(memory) = completion.memory() {
            let held = self.request_memory.forward(memory, exchange);
            held.inspect_err(|_| exchange.record_refused(completion.user.as_ref()))?;
        }
        unknown_callers::admit_forward(exchange).await?;
        let user = completion.user.as_ref();
        let admitted = self.limits.admit(exchange, user).await;
        admitted.inspect_err(|_| exchange.record_refused(user))
    }

    /// Forwards a request, and learns from the answer if upstream knows the caller.
    async fn forward(
        &self,
        exchange: Exchange<'_>,
        reason: ForwardReason,
        permit: ForwardPermit,
        completion: &mut Completion,
    ) -> MadeResponse {
        let mut caller = ForwardedCaller::of(&exchange);
        let Exchange {
            request,
            plan,
            arrived,
            ..
        } = exchange;
        let is_safe = request.method().is_safe();
        let takeover = self.takeovers.of(reason, plan.action, arrived);
        let is_watch = plan.verb == Verb::Watch;
        let is_resumable = plan.begins_after_version;
        let sent = self.send(request, plan.forward_class, &caller, permit);
        let (mut response, share) = match sent.await {
            Ok(sent) => sent,
            Err(error) => {
                report_not_forwarded(&error);
                let response = answer::not_forwarded(&error, is_safe, plan.refusals);
                return MadeResponse::in_place_of_upstream(reason, response);
            }
        };
        let settled = self.settle(&mut caller, &mut response, share, completion);
        let share = settled.await;
        let response = hold(response, share, caller.is_known);
        let response = if is_watch {
            orderly_end::apply(response, is_resumable, &self.draining, takeover)
        } else {
            response
        };
        MadeResponse::by_upstream(reason, response)
    }

    /// Sends a request to upstream. Returns the response, and the share to hold until that has
    /// ended. A tunnel goes on after its answer, and holds the share itself.
    async fn send(
        &self,
        request: Request<Incoming>,
        class: ConnectionClass,
        caller: &ForwardedCaller,
        permit: ForwardPermit,
    ) -> Result<(Response<Body>, Option<ForwardShare>), UpstreamError> {
        let ForwardPermit { share, turn } = permit;
        let (of_tunnel, of_answer) = if is_upgrade(&request) {
            (Some(share.of_all), None)
        } else {
            (None, Some(share))
        };
        let options = ForwardOptions {
            class,
            identity: caller.identity(),
            share: of_tunnel,
        };
        let response = match turn {
            Some(turn) => self.forward_in_turn(request, options, turn).await?,
            None => self.forwarder.forward(request, options).await?,
        };
        Ok((response, of_answer))
    }

    /// Learns from upstream's answer whether it accepts the caller. Returns the share to hold until
    /// the answer has ended: one of a known caller, if it does.
    async fn settle(
        &self,
        caller: &mut ForwardedCaller,
        response: &mut Response<Body>,
        mut share: Option<ForwardShare>,
        completion: &mut Completion,
    ) -> Option<ForwardShare> {
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED && is_of_api_server(&caller.path, response.headers())
        {
            response.extensions_mut().insert(LastOfConnection);
        }
        if self.learn(caller, status, response.headers()).await {
            caller.is_known = true;
            caller.connection.set_known();
            // It would count as an unknown caller's for as long as it stays open.
            let (address, class) = (caller.address, completion.facts.forward_class);
            share = share.map(|unknown| self.limits.accepted(address, class, unknown));
        }
        if let Some(memory) = completion.memory().filter(|_| caller.is_known) {
            self.request_memory.accepted(memory);
        }
        share
    }

    /// Forwards a request of an unknown caller, which keeps its turn until upstream answers. It
    /// gives the turn back at once if it is slow to send its body: upstream only waits for that.
    async fn forward_in_turn(
        &self,
        request: Request<Incoming>,
        options: ForwardOptions,
        turn: QueueTurn,
    ) -> Result<Response<Body>, UpstreamError> {
        let (request, upload) = SlowUpload::watch(body::from_client(request));
        let mut forwarding = pin!(self.forwarder.forward_body(request, options));
        tokio::select! {
            answer = &mut forwarding => return answer,
            () = upload.slow() => drop(turn),
        }
        forwarding.await
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
        // API servers may answer a browser's preflight request without a look at who sends it.
        if forwarded.is_preflight && status != StatusCode::UNAUTHORIZED {
            return false;
        }
        let ForwardedCaller { address, path, .. } = forwarded;
        self.access
            .note_answer(credential, *address, path, status, headers)
            .await;
        !forwarded.is_known && self.access.is_known(&forwarded.caller, Some(credential))
    }
}

impl Exchange<'_> {
    /// Leaves upstream what is left of the request's time, if a read has waited here for an answer from
    /// memory.
    fn note_time_left(&mut self) {
        let PlannedAction::Read(read) = &self.plan.action else {
            return;
        };
        let Some(given) = read.timeout else {
            return;
        };
        let is_watch = matches!(read.kind, ReadKind::Watch(_));
        let (target, passed) = (self.request.uri(), self.arrived.elapsed());
        if let Some(left) = with_time_left(target, is_watch, given, passed) {
            *self.request.uri_mut() = left;
        }
    }
}

/// The caller of a request that was forwarded.
struct ForwardedCaller {
    caller: Caller,
    credential: Option<Credential>,
    is_known: bool,
    connection: PeerConnection,
    address: IpAddr,
    path: String,
    is_preflight: bool,
}

impl ForwardedCaller {
    fn of(exchange: &Exchange<'_>) -> Self {
        Self {
            caller: exchange.caller.clone(),
            credential: exchange.credential,
            is_known: exchange.is_known,
            connection: exchange.peer.connection.clone(),
            address: exchange.address(),
            path: exchange.request.uri().path().to_owned(),
            is_preflight: exchange.request.method() == Method::OPTIONS,
        }
    }

    fn identity(&self) -> ForwardIdentity {
        match self.caller.forward_identity() {
            ForwardIdentity::Caller if !self.is_known => ForwardIdentity::UnknownCaller,
            identity => identity,
        }
    }
}

/// Ties the share of a request to its answer.
fn hold(response: Response<Body>, share: Option<ForwardShare>, is_known: bool) -> Response<Body> {
    match share {
        Some(share) if is_known => response.map(|body| holding(body, share)),
        // An unknown caller that reads nothing must not keep others from being reviewed.
        Some(share) => response.map(|body| holding_until_end(body, share)),
        None => response,
    }
}

/// Logs why a request was not forwarded.
fn report_not_forwarded(error: &UpstreamError) {
    if error.is_refused() {
        // The request is at fault, so there is nothing for operators to do.
        tracing::debug!(%error, "not forwarded, as the client's request is invalid");
    } else if let Some(requests) = NOT_FORWARDED.count(1) {
        tracing::warn!(%error, requests, "cannot forward a request");
    }
}
