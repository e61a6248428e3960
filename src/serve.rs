//! Answers requests: from memory where that is exactly what upstream would say, else upstream does.
//!
//! [`ProxyService::handle`] is the sequence of phases that a request passes through.
mod always_open;
mod answer;
mod audit_id;
mod bound_objects;
mod client_address;
mod clients;
mod coalesce;
mod document_request;
mod documents;
mod exchange;
mod fence;
mod forecast;
mod forward_limits;
mod freshness;
mod get_crowds;
mod large_answers;
mod limit;
pub mod metrics;
mod open;
mod optional_parameters;
mod plan;
mod policy;
mod read_limits;
mod refusal_form;
mod request_filter;
mod review;
mod scope_choice;
mod shadow;
mod singleflight;
mod source;
mod stored_response;
mod takeover;
mod unanswered;
mod unknown_callers;
mod until_drain;
mod usage;
mod verify;
mod watch_limits;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use watershed_protocol::{Status, Verb};

use crate::access::{Access, Caller, Credential, Identity};
use crate::audit::Audit;
use crate::body::{Body, holding};
use crate::catalog::Catalog;
use crate::drain;
use crate::listener::{Peer, TrustedProxies};
use crate::scope::Scopes;
use crate::upstream::{
    ForwardIdentity, ForwardOptions, Forwarder, ProxyChain, UpstreamClient, VIA,
};
use answer::{Answer, WatchContext};
use coalesce::{Coalescer, CoalescerSlot};
use document_request::DocumentRequest;
use documents::DocumentCache;
use exchange::Exchange;
use fence::Fences;
use forward_limits::{ForwardLimits, ForwardPermit};
use freshness::ReadOrigin;
use get_crowds::GetCrowds;
use limit::{Admission, LimitExceeded, Limiter};
use metrics::{InFlight, Meters};
use optional_parameters::ParameterProbe;
use plan::{PlannedAction, ReadKind, ReadPlan, RequestPlan};
use read_limits::ReadLimits;
use stored_response::RequestKey;
use takeover::Takeovers;
use unanswered::Unanswered;
use verify::Verifier;
use watch_limits::WatchLimits;

pub use bound_objects::CachedObjects;
pub use forecast::{CallerStanding, Forecast, Forecaster};
pub use policy::{
    CacheMode, CachingException, CachingPolicy, ConsistentReads, ScopePolicy, TypeName, UserLimits,
    Verification, type_name,
};
pub use request_filter::RequestFilter;
pub use source::{AnswerSource, ForwardReason};
pub use usage::{ClientUsage, TopClients, Usage};

/// Gets of one type in a second from which on a shared proof is considered.
const MANY_GETS: f64 = 200.0;

/// Everything needed to answer requests. Cheap to clone.
#[derive(Clone)]
pub struct ProxyService {
    parts: Arc<ServiceParts>,
    audit: Option<Audit>,
    trusted: TrustedProxies,
    filter: Option<Arc<RequestFilter>>,
    hsts: Option<HeaderValue>,
}

struct ServiceParts {
    catalog: Catalog,
    policy: Arc<CachingPolicy>,
    scopes: Scopes,
    access: Access,
    limiter: Limiter,
    forward_limits: ForwardLimits,
    watch_limits: WatchLimits,
    read_limits: ReadLimits,
    verifier: Verifier,
    fences: Fences,
    documents: DocumentCache,
    parameters: ParameterProbe,
    gets: GetCrowds,
    coalescer: Coalescer,
    takeovers: Takeovers,
    forwarder: Forwarder,
    chain: Arc<ProxyChain>,
    draining: drain::DrainWatch,
    meters: Meters,
    usage: Usage,
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
        let policy = Arc::new(policy);
        let parts = ServiceParts {
            takeovers: Takeovers::new(catalog.clone(), Arc::clone(&policy), scopes.clone()),
            limiter: Limiter::new(policy.users),
            forward_limits: ForwardLimits::new(policy.users),
            watch_limits: WatchLimits::new(policy.users),
            chain: Arc::clone(client.upstream().chain()),
            read_limits: ReadLimits::new(policy.users),
            verifier: Verifier::new(client.clone(), policy.verification, scopes.budget()),
            fences: Fences::new(client.clone()),
            parameters: ParameterProbe::new(client.clone()),
            documents: DocumentCache::new(client, scopes.budget()),
            gets: GetCrowds::default(),
            coalescer: Coalescer::new(forwarder.clone(), scopes.budget()),
            usage: Usage::within(scopes.budget()),
            catalog,
            policy,
            scopes,
            access,
            forwarder,
            draining,
            meters: Meters::default(),
        };
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

    /// Believes these proxies when they tell a client's address.
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
        let parts = &self.parts;
        always_open::keep_open(&parts.catalog, &parts.policy, &parts.scopes).await;
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
                Err(error) => self.refused(answer::from_a_loop(&error), request, &peer),
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
        let audit_id = audit_id::of(request.headers());
        let hop = peer.address.ip();
        let is_told = peer.connection.has_client_address();
        client_address::settle(&self.trusted, request.headers_mut(), hop, is_told);
        let audit = self.audit.as_ref();
        let record = audit.map(|audit| audit.begin(&mut request, hop, &audit_id));
        response.headers_mut().insert(audit_id::NAME, audit_id);
        match record {
            Some(record) => record.answered(response),
            None => response,
        }
    }

    /// Answers a request that is not refused at once.
    async fn answer(
        &self,
        mut request: Request<Incoming>,
        mut peer: Peer,
        from_proxy: bool,
    ) -> Response<Body> {
        let parts = &*self.parts;
        let started = Instant::now();
        let audit_id = audit_id::of(request.headers());
        let hop = peer.address.ip();
        let is_told = peer.connection.has_client_address();
        let client = client_address::settle(&self.trusted, request.headers_mut(), hop, is_told);
        let audit = self.audit.as_ref();
        let mut record = audit.map(|audit| audit.begin(&mut request, hop, &audit_id));
        let caller = parts.access.caller(&request, &peer).await;
        let is_vouched = matches!(caller, Caller::Vouched(_));
        client_address::add_peer(&self.trusted, request.headers_mut(), hop, is_vouched);
        // From here on the address is what limits count by.
        peer.address.set_ip(client);
        let parameters = parts.parameters.known_for(&request).await;
        let plan = RequestPlan::new(&parts.catalog, &parts.policy, &request, parameters);
        let mut exchange = Exchange::new(&parts.access, request, caller, plan, peer);
        exchange.record_vouched();
        let in_flight = InFlight::begin(&exchange.labels);
        let admission = parts.admit(&exchange).await;
        let answered = parts.answer(&exchange, &admission).await;
        let (answered, shadow) = if parts.policy.verification.shadow {
            shadow::instead(&exchange, answered)
        } else {
            (answered, None)
        };
        // The slot is left when the answer is there.
        let (answered, _slot) = parts.coalesce(&exchange, answered).await;
        // A review may have made the caller known.
        exchange.is_known |= parts.is_known(&exchange);
        if exchange.is_known {
            exchange.peer.connection.set_known();
        }
        let user = parts.remembered(&exchange).await;
        let admitted = parts.admit_forward(&exchange, user.as_ref(), answered);
        let (answered, permit) = admitted.await;
        let agent = exchange.headers().get(header::USER_AGENT).cloned();
        let verb = exchange.plan.verb;
        let proxy = from_proxy.then(|| (exchange.caller.clone(), exchange.credential));
        let answered = answered
            .or_else(|unanswered| answer::not_from_memory(unanswered, exchange.plan.refusals));
        let (source, mut response, is_own) = match answered {
            Ok(Answer { source, response }) => (source, response, true),
            Err(reason) => {
                if let Some(record) = &mut record {
                    record.forwarded();
                }
                let response = parts.forward(exchange, reason, permit).await;
                let is_own = answer::is_own(&response);
                (AnswerSource::Forward(reason), response, is_own)
            }
        };
        if is_own {
            response.headers_mut().insert(audit_id::NAME, audit_id);
        }
        audit_id::never_index(response.headers_mut());
        parts.tell_proxies(proxy, response.headers_mut());
        response
            .headers_mut()
            .insert("x-watershed-source", source.header());
        if let Some(shadow) = shadow {
            let headers = response.headers_mut();
            headers.insert("x-watershed-shadow", shadow.header());
        }
        in_flight.answered(source, response.status(), started.elapsed());
        let response = match admission {
            Ok(admission) => admission.answered(response),
            Err(_) => response,
        };
        let mut response = match record {
            Some(record) if is_own || record.is_only_here() => record.answered(response),
            _ => response,
        };
        let user = user.as_ref().map(|identity| identity.user.as_str());
        let is_watch = verb == Verb::Watch && response.status() == StatusCode::OK;
        let length = http_body::Body::size_hint(response.body()).upper();
        let agent = agent_name(agent.as_ref());
        let meter = parts.usage.answered(source, user, agent, is_watch, length);
        response.extensions_mut().insert(meter);
        response
    }
}

impl ServiceParts {
    /// Names the proxies up to the API server to another proxy, if it is a known caller. Nobody
    /// else learns of them, neither from this proxy nor from upstream's answer.
    fn tell_proxies(&self, proxy: Option<(Caller, Option<Credential>)>, headers: &mut HeaderMap) {
        match proxy {
            Some((caller, credential)) if self.access.is_known(&caller, credential.as_ref()) => {
                headers.insert(VIA, self.chain.answer());
            }
            _ => {
                headers.remove(VIA);
            }
        }
    }

    /// Admits a request, or returns the limit that it exceeds.
    async fn admit(&self, exchange: &Exchange) -> Result<Admission, LimitExceeded> {
        unknown_callers::check_head(&self.access, exchange).await?;
        self.limiter.admit(&self.access, exchange).await
    }

    /// Returns the caller if it was reviewed for this answer or lately. Upstream is not asked for
    /// the statistics.
    async fn remembered(&self, exchange: &Exchange) -> Option<Arc<Identity>> {
        let credential = exchange.credential.as_ref();
        self.access
            .remembered(&exchange.caller, credential, exchange.headers())
            .await
    }

    fn is_known(&self, exchange: &Exchange) -> bool {
        self.access
            .is_known(&exchange.caller, exchange.credential.as_ref())
    }

    /// Answers a request from memory, or returns why not.
    async fn answer(
        &self,
        exchange: &Exchange,
        admission: &Result<Admission, LimitExceeded>,
    ) -> Result<Answer, Unanswered> {
        if let Caller::Rejected(rejected) = &exchange.caller {
            return Err(review::refused(&rejected.reason));
        }
        if exchange.plan.verb == Verb::Watch && self.draining.is_draining() {
            // A watch that began now would end with the process. As an API server does, the proxy
            // sends the client to another one.
            // Source: `apiserver/pkg/server/filters/watch_termination.go`, `waitgroup.go`.
            let status = Status::service_unavailable("the proxy is shutting down", 1);
            return Err(Unanswered::Refuse(AnswerSource::Shutdown, Box::new(status)));
        }
        if let Err(exceeded) = admission {
            return Err(Unanswered::Limit(*exceeded));
        }
        match &exchange.plan.action {
            PlannedAction::Forward(reason) => Err(Unanswered::Forward(*reason)),
            PlannedAction::Read(read) => self.read(exchange, read).await,
            PlannedAction::Document(document) => self.document(exchange, document).await,
        }
    }

    /// Answers a read: authorizes it, opens its scope, waits until the scope is fresh.
    async fn read(&self, exchange: &Exchange, read: &ReadPlan) -> Result<Answer, Unanswered> {
        let is_get = matches!(read.kind, ReadKind::Get { .. });
        let (origin, _waiting) = if is_get && read.needs_proof() {
            let crowd = self.crowd_of_gets(read)?;
            (crowd, Some(self.gets.wait(&read.resource.gvr)))
        } else {
            let number = request_number(&exchange.request);
            (ReadOrigin::Request(number), None)
        };
        let judged = review::authorize_read(&self.access, exchange, read).await?;
        let user = judged.user();
        let share = || self.read_limits.scope(user);
        let opened = open::open(&self.catalog, &self.policy, &self.scopes, read, share).await?;
        if let Some(reason) = read.exceeds_page(&opened.scope.reader.snapshot()) {
            return Err(reason.into());
        }
        let fresh = freshness::wait_until_fresh(&self.fences, opened, read, origin).await?;
        large_answers::refuse(self.scopes.budget(), &fresh.opened, read)?;
        let headers = exchange.headers();
        let mut answer = match &read.kind {
            ReadKind::Get { name } => answer::get(&fresh, read, name, headers)?,
            ReadKind::List(list) => {
                let is_made = fresh.opened.partial().is_some() || fresh.opened.table.is_some();
                let is_scan = is_made || read.is_scan(list);
                let _scan = is_scan.then(|| self.read_limits.scan(user)).transpose()?;
                let page_state = || self.read_limits.page_state(user);
                answer::list(&fresh, read, list, headers, page_state).await?
            }
            ReadKind::Watch(watch) => {
                let query = exchange.request.uri().query();
                let share = self.watch_limits.begin(user, query)?;
                let guard = self.access.authorizer.guard(judged);
                let context = WatchContext {
                    coding: answer::watch_coding(&fresh.opened, watch, headers).await,
                    guard,
                    draining: &self.draining,
                    meters: &self.meters,
                    labels: &exchange.labels,
                };
                let mut answer = answer::watch(&fresh, read, watch, context)?;
                answer.response = answer.response.map(|body| holding(body, share));
                answer
            }
        };
        answer::tell_age(&mut answer, &fresh);
        let query = exchange.request.uri().query();
        Ok(self.verifier.sample(answer, &fresh, read, query))
    }

    /// Returns the crowd that a consistent get belongs to. One object costs upstream no more than
    /// the proof would, so a lone get is forwarded.
    fn crowd_of_gets(&self, read: &ReadPlan) -> Result<ReadOrigin, ForwardReason> {
        let rate = self.gets.arrived(&read.resource.gvr, Instant::now());
        if rate >= MANY_GETS && open::is_ready(&self.scopes, read) {
            Ok(ReadOrigin::Crowd(rate))
        } else {
            Err(ForwardReason::Consistent)
        }
    }

    /// Answers a request for a discovery, OpenAPI or version document.
    async fn document(
        &self,
        exchange: &Exchange,
        document: &DocumentRequest,
    ) -> Result<Answer, Unanswered> {
        review::authorize_document(&self.access, exchange, document).await?;
        match self.documents.answer(document).await {
            Ok(response) => Ok(Answer::new(AnswerSource::Document, response)),
            Err(error) => {
                tracing::debug!(path = document.path, %error, "a document is forwarded");
                Err(ForwardReason::NotAResource.into())
            }
        }
    }

    /// Lets identical reads that go to upstream share one request, if they are consistent or many
    /// may come at once. Returns the answer, and the slot of a read that is under way.
    async fn coalesce(
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
            ))
        );
        if !may_share || matches!(read.kind, ReadKind::Watch(_)) {
            return (answered, None);
        }
        let slot = self.coalescer.enter(&exchange.request);
        if slot.is_first {
            return (answered, Some(slot));
        }
        if let Err(unanswered) = review::authorize_read(&self.access, exchange, read).await {
            return (Err(unanswered), Some(slot));
        }
        let shared = slot
            .answer(exchange.headers(), &exchange.caller.authority())
            .await;
        let answered = match shared {
            Some(shared) => Ok(Answer::new(AnswerSource::Coalesced, shared.response())),
            None => answered,
        };
        (answered, Some(slot))
    }

    /// Admits a request that is to be forwarded, or answers it with the limit that it exceeds.
    async fn admit_forward(
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

    async fn forward(
        &self,
        exchange: Exchange,
        reason: ForwardReason,
        permit: Option<ForwardPermit>,
    ) -> Response<Body> {
        let caller = ForwardedCaller::of(&exchange);
        let Exchange { request, plan, .. } = exchange;
        let takeover = self.takeovers.of(reason, plan.action);
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
                tracing::warn!(%error, "cannot forward a request");
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

/// Returns a number that requests for the same have in common.
fn request_number<B>(request: &Request<B>) -> u64 {
    let mut hasher = DefaultHasher::new();
    RequestKey::new(request).hash(&mut hasher);
    hasher.finish()
}

fn agent_name(agent: Option<&HeaderValue>) -> &str {
    agent
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default()
}
