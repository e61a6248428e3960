//! Answers requests: from memory where that is exactly what upstream would say, else upstream does.
//!
//! `ProxyService::answer` is the sequence of phases that a request passes through. `ServiceParts`
//! has what they need:
//!
//! 1. `plan` decides what answers a request, by the request and the operator's `policy`. Both are in
//!    an `exchange` from then on.
//! 2. `limits` tells what its caller may still take.
//! 3. `FromMemory` authorizes the caller by `review`. `reads` opens the scope and waits until it is
//!    fresh, and `answer` makes the response. `Forwarding` sends all other requests to upstream.
//! 4. `Completer` adds the headers that all responses have, and `usage` counts what is sent.
mod always_open;
mod answer;
mod audit_id;
mod bound_objects;
mod client_address;
mod completion;
mod exchange;
mod forecast;
mod forwarding;
mod from_memory;
mod limits;
pub mod metrics;
mod parts;
mod plan;
mod policy;
mod reads;
mod received;
mod review;
mod shadow;
mod source;
mod stored_response;
mod target;
mod unanswered;
mod usage;
mod verify;

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;

use crate::access::{Access, Caller};
use crate::audit::Audit;
use crate::body::{self, Body};
use crate::catalog::Catalog;
use crate::drain;
use crate::listener::{Peer, TrustedProxies};
use crate::scope::Scopes;
use crate::upstream::{Forwarder, UpstreamClient};
use completion::{Completion, MadeResponse, RequestFacts};
use exchange::Exchange;
use limits::refusal_log;
use metrics::InFlight;
use parts::ServiceParts;
use plan::RequestPlan;
use received::ReceivedRequest;

pub use bound_objects::CachedObjects;
pub use forecast::{CallerStanding, Forecast, Forecaster};
pub use policy::client_rules::{AgentPattern, ClientRule};
pub use policy::request_filter::RequestFilter;
pub use policy::type_name::TypeName;
pub use policy::{
    CacheMode, CachingException, CachingPolicy, ConsistentReads, ScopePolicy, TypePolicies,
    TypePolicy, UserLimits, Verification,
};
pub use source::{AnswerSource, ForwardReason};
pub use usage::{ClientUsage, TopClients, Usage};

/// Everything needed to answer requests. Cheap to clone.
#[derive(Clone)]
pub struct ProxyService {
    parts: Arc<ServiceParts>,
    audit: Option<Audit>,
    trusted: TrustedProxies,
    filter: Option<Arc<RequestFilter>>,
    hsts: Option<HeaderValue>,
}

impl ProxyService {
    /// Puts the modules together.
    pub fn new(
        catalog: Catalog,
        policy: CachingPolicy,
        scopes: Scopes,
        access: Access,
        client: UpstreamClient,
        forwarder: Forwarder,
        draining: drain::DrainWatch,
    ) -> Self {
        let parts = ServiceParts::new(catalog, policy, scopes, access, client, forwarder, draining);
        Self {
            parts: Arc::new(parts),
            audit: None,
            trusted: TrustedProxies::default(),
            filter: None,
            hsts: None,
        }
    }

    /// Adds an audit log of the requests that are answered here.
    pub fn audited(self, audit: Option<Audit>) -> Self {
        Self { audit, ..self }
    }

    /// Trusts these proxies to report a client's address (`--trusted-proxies`).
    pub fn behind(self, trusted: TrustedProxies) -> Self {
        Self { trusted, ..self }
    }

    /// Refuses the requests that a filter does not accept.
    pub fn filtered(self, filter: Option<RequestFilter>) -> Self {
        let filter = filter.map(Arc::new);
        Self { filter, ..self }
    }

    /// Adds `Strict-Transport-Security` to all answers.
    pub fn with_hsts(self, hsts: Option<HeaderValue>) -> Self {
        Self { hsts, ..self }
    }

    /// Returns the counters of what clients were given.
    pub fn usage(&self) -> Usage {
        self.parts.usage.clone()
    }

    /// Keeps the scopes open that the policy wants open before the first request.
    pub async fn keep_scopes_open(self) {
        always_open::keep_open(&self.parts.opener).await;
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let refusal = self
            .filter
            .as_ref()
            .and_then(|filter| filter.refusal(request.method(), request.uri(), request.headers()));
        let mut response = match refusal {
            Some(flag) => {
                metrics::filtered(flag);
                self.refused(answer::filtered(flag), request, &peer)
            }
            None => match self.parts.chain.accept(request.headers()) {
                Ok(from_proxy) => self.answer(request, peer, from_proxy).await,
                Err(error) => {
                    refusal_log::refused_chain(&error, request.headers(), peer.address.ip());
                    self.refused(answer::from_a_loop(&error), request, &peer)
                }
            },
        };
        if let Some(value) = &self.hsts {
            response
                .headers_mut()
                .insert(header::STRICT_TRANSPORT_SECURITY, value.clone());
        }
        response
    }

    /// Refuses a request. Nobody has asked who sent it.
    fn refused(
        &self,
        mut response: Response<Body>,
        mut request: Request<Incoming>,
        peer: &Peer,
    ) -> Response<Body> {
        let received = self.receive(&mut request, peer);
        response
            .headers_mut()
            .insert(audit_id::NAME, received.audit_id);
        body::discard_of(request);
        match received.record {
            Some(record) => record.answered(response),
            None => response,
        }
    }

    /// Finds out the address of a request's client, and begins the audit record.
    fn receive(&self, request: &mut Request<Incoming>, peer: &Peer) -> ReceivedRequest {
        let arrived = Instant::now();
        let audit_id = audit_id::of(request.headers());
        let hop = peer.address.ip();
        let is_told = peer.connection.has_client_address();
        let client = client_address::settle(&self.trusted, request.headers_mut(), hop, is_told);
        let audit = self.audit.as_ref();
        let record = audit.map(|audit| audit.begin(request, hop, &audit_id));
        ReceivedRequest {
            arrived,
            audit_id,
            client,
            record,
        }
    }

    /// Finds out who sent a request, and plans its answer.
    async fn plan(
        &self,
        mut request: Request<Incoming>,
        mut peer: Peer,
        received: &ReceivedRequest,
    ) -> Exchange<'_> {
        let parts = &*self.parts;
        let hop = peer.address.ip();
        let caller = parts.access.caller(&request, &peer).await;
        let is_vouched = matches!(caller, Caller::Vouched(_));
        client_address::add_peer(&self.trusted, request.headers_mut(), hop, is_vouched);
        // From here on the address is what limits count by.
        peer.address.set_ip(received.client);
        let parameters = parts.parameters.known_for(&request).await;
        let plan = RequestPlan::new(&parts.catalog, &parts.policy, &request, parameters);
        plan.features.restrict(&mut request);
        let exchange = Exchange::new(&parts.access, request, caller, plan, peer, received.arrived);
        exchange.record_vouched();
        exchange
    }

    /// Answers a request that is not refused at once.
    async fn answer(
        &self,
        mut request: Request<Incoming>,
        peer: Peer,
        from_proxy: bool,
    ) -> Response<Body> {
        let parts = &*self.parts;
        let received = self.receive(&mut request, &peer);
        let mut exchange = self.plan(request, peer, &received).await;
        let in_flight = InFlight::begin(&exchange.labels, exchange.plan.may_be_silent());
        let admission = parts.admit(&exchange).await;
        let from_memory = parts.from_memory.answer(&mut exchange, &admission).await;
        let (from_memory, shadow) = if parts.policy.verification.shadow {
            shadow::instead(&exchange, from_memory)
        } else {
            (from_memory, None)
        };
        // A review may have made the caller known.
        exchange.note_known();
        let user = exchange.remembered().await;
        let mut completion = Completion {
            received,
            facts: RequestFacts::of(&exchange),
            proxy: from_proxy.then(|| (exchange.caller.clone(), exchange.credential)),
            admission,
            user,
            shadow,
            in_flight,
        };
        let made = match from_memory {
            Ok(answer) => {
                body::discard_of(exchange.into_request());
                MadeResponse::here(answer)
            }
            // Boxed: the requests that are answered from memory need no room for it.
            Err(unanswered) => {
                let forwarding = &parts.forwarding;
                Box::pin(forwarding.answer(exchange, &mut completion, unanswered)).await
            }
        };
        completion.complete(&parts.completer, made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The allocator's size class that the future of a request fits, in bytes.
    ///
    /// A freed future becomes the buffer of another connection if both are of the same class. Those
    /// of h2 are of 8 and 16 KiB. Made of fresh memory, a buffer takes only as much as was written to
    /// it, and on connections with an idle watch that is little.
    const SIZE_CLASS: usize = 7 << 10;
    /// Bytes that the listener adds to the future.
    const LISTENER: usize = 1_824;

    fn size_of_future<'a, F>(
        _: impl FnOnce(&'a ProxyService, Request<Incoming>, Peer) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_memory_of_an_answered_request_becomes_no_buffer_of_a_connection() {
        let size = size_of_future(ProxyService::handle) + LISTENER;
        assert!(
            size <= SIZE_CLASS,
            "{size} bytes: box what few requests need"
        );
    }
}
