//! Completes every response before it is sent, wherever it was made.
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use watershed_protocol::Verb;

use super::answer::{self, Answer};
use super::audit_id;
use super::exchange::Exchange;
use super::limits::exceeded::LimitExceeded;
use super::limits::memory::{AnswerOrigin, AnsweredRequest, RequestMemory};
use super::limits::refusal_log;
use super::limits::requests::Admission;
use super::metrics::InFlight;
use super::received::ReceivedRequest;
use super::source::{AnswerSource, ForwardReason};
use super::usage::{HeldAnswer, Usage};
use crate::access::{Access, Caller, Credential, Identity};
use crate::body::{Body, Finite};
use crate::fairness::Share;
use crate::headers::{self, VIA};
use crate::upstream::{ConnectionClass, ProxyChain};

/// The parts that complete responses: they count what is sent, and name this proxy to others.
pub(super) struct Completer {
    usage: Usage,
    request_memory: Arc<RequestMemory>,
    access: Access,
    chain: Arc<ProxyChain>,
}

/// The facts about a request that are still needed once it was forwarded.
pub(super) struct Completion {
    pub(super) received: ReceivedRequest,
    pub(super) facts: RequestFacts,
    pub(super) admission: Result<Admission, LimitExceeded>,
    /// The caller, if it was reviewed for this answer or lately.
    pub(super) user: Option<Arc<Identity>>,
    /// The proxy that sent the request, if one did.
    pub(super) proxy: Option<(Caller, Option<Credential>)>,
    /// In shadow mode, the source of the answer from memory.
    pub(super) shadow: Option<AnswerSource>,
    pub(super) in_flight: InFlight,
}

/// The parts of a request that are recorded with its answer.
pub(super) struct RequestFacts {
    /// The client's `User-Agent`.
    agent: Option<HeaderValue>,
    verb: Verb,
    /// The request only reads.
    is_safe: bool,
    /// The class of the request if it is forwarded.
    pub(super) forward_class: ConnectionClass,
    /// The answer is known to end by itself.
    is_finite: bool,
}

impl RequestFacts {
    /// Returns the facts about a request that is to be answered.
    pub(super) fn of(exchange: &Exchange<'_>) -> Self {
        Self {
            agent: exchange.headers().get(header::USER_AGENT).cloned(),
            verb: exchange.plan.verb,
            is_safe: exchange.request.method().is_safe(),
            forward_class: exchange.plan.forward_class,
            is_finite: exchange.plan.is_finite(),
        }
    }

    /// Returns `true` if the response is the events of a watch.
    fn is_watch(&self, response: &Response<Body>) -> bool {
        self.verb == Verb::Watch && response.status() == StatusCode::OK
    }

    /// Returns the facts by which a response counts.
    fn answered_by(&self, made: &MadeResponse) -> AnsweredRequest {
        let is_forwarded = matches!(made.source, AnswerSource::Forward(_));
        let is_watch = self.is_watch(&made.response);
        AnsweredRequest {
            origin: match (is_forwarded, self.forward_class) {
                (false, _) if is_watch => AnswerOrigin::WatchHere,
                (false, _) => AnswerOrigin::Here,
                (true, ConnectionClass::Relayed) => AnswerOrigin::Relayed,
                (true, ConnectionClass::Short) if !is_watch => AnswerOrigin::Upstream,
                (true, _) => AnswerOrigin::OpenUpstream,
            },
            may_refuse: !is_forwarded || self.is_safe,
        }
    }
}

/// The server that made a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseMaker {
    /// This proxy.
    Here,
    /// Upstream, or another server behind it.
    Upstream,
}

/// A response, and where it was made.
pub(super) struct MadeResponse {
    source: AnswerSource,
    response: Response<Body>,
    maker: ResponseMaker,
}

impl MadeResponse {
    /// Returns an answer of this proxy.
    pub(super) fn here(Answer { source, response }: Answer) -> Self {
        Self {
            source,
            response,
            maker: ResponseMaker::Here,
        }
    }

    /// Returns upstream's response to a forwarded request.
    pub(super) fn by_upstream(reason: ForwardReason, response: Response<Body>) -> Self {
        Self {
            source: AnswerSource::Forward(reason),
            response,
            maker: ResponseMaker::Upstream,
        }
    }

    /// Returns this proxy's response to a forwarded request that upstream did not answer.
    pub(super) fn in_place_of_upstream(reason: ForwardReason, response: Response<Body>) -> Self {
        Self {
            source: AnswerSource::Forward(reason),
            response,
            maker: ResponseMaker::Here,
        }
    }
}

impl Completer {
    /// Puts the parts together.
    pub(super) fn new(
        usage: Usage,
        request_memory: Arc<RequestMemory>,
        access: Access,
        chain: Arc<ProxyChain>,
    ) -> Self {
        Self {
            usage,
            request_memory,
            access,
            chain,
        }
    }

    /// Names the proxies up to the API server to another proxy, if it is a known caller. Nobody
    /// else learns of them, neither from this proxy nor from upstream's answer.
    fn add_via_header(&self, proxy: Option<(Caller, Option<Credential>)>, headers: &mut HeaderMap) {
        match proxy {
            Some((caller, credential)) if self.access.is_known(&caller, credential.as_ref()) => {
                headers.insert(VIA, self.chain.answer());
            }
            _ => {
                headers.remove(VIA);
            }
        }
    }
}

impl Completion {
    /// Returns the share of the memory of requests that this one has, if it was admitted.
    pub(super) fn memory(&mut self) -> Option<&mut Share> {
        self.admission.as_mut().ok()?.memory.as_mut()
    }

    /// Notes that the request with these headers is about to be forwarded. Upstream logs it by the
    /// same id.
    pub(super) fn forwards(&mut self, headers: &mut HeaderMap) {
        let received = &mut self.received;
        if let Some(record) = &mut received.record {
            record.forwarded();
            headers.insert(audit_id::NAME, received.audit_id.clone());
            audit_id::never_index(headers);
        }
    }

    /// Adds the headers of every response, counts it, and begins the records that end with its body.
    pub(super) fn complete(mut self, completer: &Completer, made: MadeResponse) -> Response<Body> {
        let (made, held) = self.hold(&completer.request_memory, made);
        let is_watch = self.facts.is_watch(&made.response);
        let MadeResponse {
            source,
            mut response,
            maker,
        } = made;
        match maker {
            ResponseMaker::Here => {
                let headers = response.headers_mut();
                headers.insert(audit_id::NAME, self.received.audit_id);
            }
            ResponseMaker::Upstream => {
                // The history is that of another proxy, or an aggregated server wrote it.
                response.headers_mut().remove(headers::HISTORY);
            }
        }
        audit_id::never_index(response.headers_mut());
        completer.add_via_header(self.proxy, response.headers_mut());
        response
            .headers_mut()
            .insert(headers::SOURCE, source.header());
        if let Some(shadow) = self.shadow {
            let headers = response.headers_mut();
            headers.insert(headers::SHADOW, shadow.header());
        }
        let took = self.received.arrived.elapsed();
        self.in_flight.answered(source, response.status(), took);
        let admitted = match self.admission {
            Ok(admission) => admission.answered(response),
            Err(_) => response,
        };
        let mut completed = match self.received.record {
            Some(record) if maker == ResponseMaker::Here || record.is_only_here() => {
                record.answered(admitted)
            }
            _ => admitted,
        };
        let user = self.user.as_ref().map(|identity| identity.user.as_str());
        let agent = self.facts.agent.as_ref();
        let agent = agent.and_then(|agent| agent.to_str().ok());
        let usage = &completer.usage;
        let meter = usage.answered(source, user, agent.unwrap_or_default(), is_watch, held);
        let extensions = completed.extensions_mut();
        extensions.insert(meter);
        if self.facts.is_finite {
            extensions.insert(Finite);
        }
        completed
    }

    /// Counts the memory of a response from now on. Refuses it if the caller holds too much, unless it
    /// tells what upstream has done.
    fn hold(
        &mut self,
        memories: &RequestMemory,
        made: MadeResponse,
    ) -> (MadeResponse, Option<HeldAnswer>) {
        let memory = match &mut self.admission {
            Ok(admission) => admission.memory.take(),
            Err(_) => None,
        };
        let Some(memory) = memory else {
            return (made, None);
        };
        let user = self.user.as_deref();
        match memories.hold(memory, user, self.facts.answered_by(&made), &made.response) {
            Ok(held) => (made, held),
            Err(exceeded) => {
                // Its address is not known any more.
                refusal_log::refused(exceeded, user, None);
                if let (Some(record), Some(user)) = (&self.received.record, &self.user) {
                    record.refused(user);
                }
                (MadeResponse::here(answer::over_the_limit(exceeded)), None)
            }
        }
    }
}
