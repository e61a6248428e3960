//! Answers one request: from memory where that is exactly what upstream would say, else upstream
//! does.
mod always;
mod answer;
mod audit_id;
mod bound_objects;
mod clients;
mod decide;
mod documents;
mod fence;
mod get;
mod gzip;
mod limit;
mod list;
mod list_body;
pub mod metrics;
mod policy;
mod replay;
mod scope_choice;
mod shared;
mod source;
mod turns;
mod until_drain;
mod usage;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::access::{
    Access, AccessAttributes, Authenticated, Caller, Decision, Identity, Rejection, ReviewError,
    ReviewedAccess,
};
use crate::audit::{self, Audit};
use crate::body::Body;
use crate::catalog::Catalog;
use crate::drain;
use crate::listener::Peer;
use crate::scope::{NotReady, ReadyScope, Scope, ScopeHandle, ScopePhase, Scopes};
use crate::upstream::{Forwarder, Stopped, UpstreamClient};
use watershed_protocol::{Encoding, PartialFormat, Representation, ResourceVersion, Status, Verb};

pub use bound_objects::CachedObjects;
use decide::{Age, Plan, Planned, Read, decide};
use documents::Documents;
use fence::Fences;
use limit::Limiter;
pub use limit::UserLimits;
use metrics::{InFlight, Labels, Meters};
pub use policy::{
    CacheMode, CachingException, CachingPolicy, ConsistentReads, ScopePolicy, TypeName, type_name,
};
use scope_choice::ScopeChoice;
use shared::{Place, Shared};
pub use source::{AnswerSource, ForwardReason};
pub use usage::{ClientUsage, TopClients, Usage};

/// A version that is ahead of the cache is waited for this long; then upstream answers, which waits
/// by its own rule (3 s) and refuses in its own words. Events are milliseconds behind; a type on
/// which nothing happens would not get there before its next bookmark.
const VERSION_WAIT: Duration = Duration::from_secs(1);

/// Everything needed to answer. Cheap to clone.
#[derive(Clone)]
pub struct ProxyService(Arc<Inner>, Option<Audit>);

struct Inner {
    catalog: Catalog,
    policy: CachingPolicy,
    scopes: Scopes,
    access: Access,
    limiter: Limiter,
    fences: Fences,
    documents: Documents,
    shared: Shared,
    forwarder: Forwarder,
    draining: drain::DrainWatch,
    meters: Meters,
    usage: Usage,
}

/// A scope that can answer, and what it knows.
struct Opened {
    scope: ScopeHandle,
    /// All that is asked for is there, if it exists.
    is_complete: bool,
    ready: Arc<ReadyScope>,
    representation: Representation,
    /// The version that a snapshot must have at least to be the answer.
    floor: ResourceVersion,
    /// What answers that come from a snapshot say of their source.
    source: AnswerSource,
}

impl Outcome {
    fn compressed(self, request: &Request<Incoming>) -> Self {
        match self {
            Self::Answered(source, response) => {
                Self::Answered(source, gzip::apply(request.headers(), response))
            }
            forward @ Self::Forward(_) => forward,
        }
    }
}

impl Opened {
    /// How the objects are to be reduced, if only their metadata is asked for and more of them is
    /// held.
    fn partial(&self) -> Option<PartialFormat> {
        let Representation {
            encoding,
            metadata_only,
        } = self.representation;
        let reduced = metadata_only && !self.scope.key.representation.metadata_only;
        reduced.then(|| PartialFormat::of(&self.ready.format, encoding))
    }
}

/// What came of trying to answer from memory.
enum Outcome {
    Answered(AnswerSource, Response<Body>),
    Forward(ForwardReason),
}

impl ProxyService {
    /// Puts the rooms together.
    pub fn new(
        catalog: Catalog,
        policy: CachingPolicy,
        scopes: Scopes,
        access: Access,
        client: UpstreamClient,
        forwarder: Forwarder,
        draining: drain::DrainWatch,
    ) -> Self {
        let fences = Fences::new(client.clone());
        let documents = Documents::new(client);
        let shared = Shared::new(forwarder.clone());
        let limiter = Limiter::new(policy.users);
        let inner = Inner {
            catalog,
            policy,
            scopes,
            access,
            limiter,
            fences,
            documents,
            shared,
            forwarder,
            draining,
            meters: Meters::default(),
            usage: Usage::default(),
        };
        Self(Arc::new(inner), None)
    }

    /// The same, with an audit log of what is answered here.
    pub fn audited(self, audit: Option<Audit>) -> Self {
        Self(self.0, audit)
    }

    /// What clients were given, and who they are.
    pub fn usage(&self) -> Usage {
        self.0.usage.clone()
    }

    /// Keeps the scopes open that the policy wants open before anybody asks.
    pub async fn keep_scopes_open(self) {
        self.0.keep_scopes_open().await;
    }

    /// Answers one request.
    pub async fn handle(&self, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let started = Instant::now();
        let audit_id = audit_id::of(request.headers());
        let audit = self.1.as_ref();
        let mut record = audit.map(|audit| audit.begin(&mut request, peer.address.ip(), &audit_id));
        let caller = self.0.access.caller(request.headers(), &peer).await;
        let plan = decide(&self.0.catalog, &self.0.policy, &request);
        let labels = Labels::new(&plan, request.method());
        let in_flight = InFlight::begin(&labels);
        let admitted = self
            .0
            .limiter
            .admit(&self.0.access, &caller, &request, &peer, &plan)
            .await;
        let agent = request.headers().get(http::header::USER_AGENT).cloned();
        // Left when the answer is there.
        let mut place = None;
        let outcome = match (&caller, &admitted, &plan.plan) {
            (Caller::Rejected(refusal), ..) => {
                Outcome::Answered(AnswerSource::Access, refused(refusal, plan.errors))
            }
            _ if plan.verb == Verb::Watch && self.0.draining.is_draining() => {
                Outcome::Answered(AnswerSource::Shutdown, answer::ending(plan.errors))
            }
            (_, Err(refused), _) => Outcome::Answered(AnswerSource::Limit, refused.response()),
            (.., Plan::Forward(reason)) => Outcome::Forward(*reason),
            (.., Plan::Read(read)) => {
                let outcome = self.0.read(read, &request, &caller, &labels).await;
                self.0
                    .share(outcome, read, &request, &caller, &mut place)
                    .await
            }
            (.., Plan::Document(asked)) => {
                match self.0.document(asked, &request, &caller, plan.errors).await {
                    Ok(response) => Outcome::Answered(AnswerSource::Document, response),
                    Err(outcome) => outcome,
                }
            }
        };
        // Whoever was looked at for this answer is known now. For no other reason is upstream
        // asked.
        let user = self.0.access.remembered(&caller, request.headers()).await;
        let (source, mut response, own) = match outcome {
            Outcome::Answered(source, response) => (source, response, true),
            Outcome::Forward(reason) => {
                if let Some(record) = &mut record {
                    record.forwarded();
                }
                let response = self.0.forward(request, &plan, &caller).await;
                let own = answer::is_own(&response);
                (AnswerSource::Forward(reason), response, own)
            }
        };
        if own {
            response.headers_mut().insert(audit_id::NAME, audit_id);
        }
        audit_id::come_once(response.headers_mut());
        response
            .headers_mut()
            .insert("x-watershed-source", source.header());
        in_flight.answered(source, response.status(), started.elapsed());
        let response = match admitted {
            Ok(admitted) => admitted.answered(response),
            Err(_) => response,
        };
        let mut response = match record {
            Some(record) if own => record.answered(response),
            _ => response,
        };
        let user = user.as_ref().map(|identity| identity.user.as_str());
        let agent = agent
            .as_ref()
            .and_then(|agent| agent.to_str().ok())
            .unwrap_or_default();
        let watch = plan.verb == Verb::Watch && response.status() == StatusCode::OK;
        response
            .extensions_mut()
            .insert(self.0.usage.answered(source, user, agent, watch));
        response
    }
}

impl Inner {
    async fn forward(
        &self,
        request: Request<Incoming>,
        plan: &Planned,
        caller: &Caller,
    ) -> Response<Body> {
        let encoding = plan.errors;
        match self
            .forwarder
            .forward(request, plan.own_connection, &caller.authority())
            .await
        {
            Ok(response) if plan.verb == Verb::Watch => {
                until_drain::apply(response, &self.draining)
            }
            Ok(response) => response,
            Err(error) => {
                tracing::warn!(%error, "a request could not be forwarded");
                answer::unreachable(&error, encoding)
            }
        }
    }

    /// Consistent reads that go to upstream go there together, where they are the same.
    async fn share<'a>(
        &'a self,
        outcome: Outcome,
        read: &Read,
        request: &Request<Incoming>,
        caller: &Caller,
        place: &mut Option<Place<'a>>,
    ) -> Outcome {
        let Outcome::Forward(reason @ (ForwardReason::Consistent | ForwardReason::Unproven)) =
            outcome
        else {
            return outcome;
        };
        if matches!(read.kind, decide::ReadKind::Watch(_)) {
            return outcome;
        }
        let place = place.insert(self.shared.enter(request));
        if place.is_first {
            return outcome;
        }
        if let Err(refused) = self.admit(read, request, caller).await {
            return refused;
        }
        match place.answer(request.headers(), &caller.authority()).await {
            Some(replay) => Outcome::Answered(AnswerSource::Shared, replay.response()),
            None => Outcome::Forward(reason),
        }
    }

    /// That the caller may have what they ask for.
    async fn admit(
        &self,
        read: &Read,
        request: &Request<Incoming>,
        caller: &Caller,
    ) -> Result<ReviewedAccess, Outcome> {
        let refuse = |status: &Status| match read.refused_by_upstream() {
            Some(reason) => Outcome::Forward(reason),
            None => Outcome::Answered(
                AnswerSource::Access,
                answer::status(status, read.errors(), &[]),
            ),
        };
        let identity = match self.identify(request, caller, read.errors()).await? {
            Authenticated::Known(identity) => identity,
            Authenticated::Refused => return Err(refuse(&Status::unauthorized())),
            Authenticated::Unknown => return Err(Outcome::Forward(ForwardReason::Identity)),
        };
        let attributes = read.attributes();
        let reviewed = self
            .access
            .authorizer
            .authorize(&identity, &attributes)
            .await;
        let judged = reviewed.map_err(|error| self.unreviewed(&error, read.errors()))?;
        audit::record_decision(request, judged.decision());
        match judged.decision() {
            Decision::Allowed(_) => Ok(judged),
            Decision::Denied(reason) => Err(refuse(&denied(&identity, &attributes, reason))),
        }
    }

    async fn identify(
        &self,
        request: &Request<Incoming>,
        caller: &Caller,
        errors: Encoding,
    ) -> Result<Authenticated, Outcome> {
        let reviewed = self.access.identify(caller, request.headers()).await;
        if let Ok(Authenticated::Known(identity)) = &reviewed {
            audit::record_caller(request, identity);
        }
        reviewed.map_err(|error| self.unreviewed(&error, errors))
    }

    /// Upstream could not be asked about the caller.
    fn unreviewed(&self, error: &ReviewError, errors: Encoding) -> Outcome {
        tracing::warn!(%error, "a caller could not be reviewed");
        if !self.access.must_refuse(error) {
            return Outcome::Forward(ForwardReason::ReviewFailed);
        }
        Outcome::Answered(AnswerSource::Access, not_now(error, errors))
    }

    /// Authentication and authorization come before anything is read (invariant 5).
    async fn read(
        &self,
        read: &Read,
        request: &Request<Incoming>,
        caller: &Caller,
        labels: &Labels,
    ) -> Outcome {
        // One object costs upstream no more than the proof would.
        if matches!(
            (&read.kind, read.age),
            (decide::ReadKind::Get { .. }, Age::Latest)
        ) {
            return Outcome::Forward(ForwardReason::Consistent);
        }
        let judged = match self.admit(read, request, caller).await {
            Ok(judged) => judged,
            Err(outcome) => return outcome,
        };
        let mut opened = match self.open(read).await {
            Ok(opened) => opened,
            Err(reason) => return Outcome::Forward(reason),
        };
        if let Err(reason) = self.ripen(&mut opened, read).await {
            return Outcome::Forward(reason);
        }
        match &read.kind {
            decide::ReadKind::Get { name, .. } => {
                get::answer(&opened, read, name).compressed(request)
            }
            decide::ReadKind::List(list) => list::answer(&opened, read, list, request.headers()),
            decide::ReadKind::Watch(watch) => {
                let guard = self.access.authorizer.guard(judged);
                let coding = watch::coding(&opened, watch, request.headers()).await;
                watch::answer(self, &opened, read, watch, coding, guard, labels)
            }
        }
    }

    /// Whoever may not see a document, or is not known, hears it from upstream.
    async fn document(
        &self,
        asked: &documents::Asked,
        request: &Request<Incoming>,
        caller: &Caller,
        errors: Encoding,
    ) -> Result<Response<Body>, Outcome> {
        let Authenticated::Known(identity) = self.identify(request, caller, errors).await? else {
            return Err(Outcome::Forward(ForwardReason::Identity));
        };
        let reviewed = self
            .access
            .authorizer
            .authorize_path(&identity, &asked.path)
            .await;
        let judged = reviewed.map_err(|error| self.unreviewed(&error, errors))?;
        audit::record_decision(request, judged.decision());
        if matches!(judged.decision(), Decision::Denied(_)) {
            return Err(Outcome::Forward(ForwardReason::NotAResource));
        }
        self.documents.answer(asked).await.map_err(|error| {
            tracing::debug!(path = asked.path, %error, "a document is forwarded");
            Outcome::Forward(ForwardReason::NotAResource)
        })
    }

    /// The scope in the first representation that the client accepts and the type has.
    async fn open(&self, read: &Read) -> Result<Opened, ForwardReason> {
        // While it was found out who asks, the type may have got other selectable fields. The
        // request's selectors were resolved against the old ones, and a scope must not be opened
        // with those.
        let resource = &read.resource;
        if self
            .catalog
            .get(&resource.gvr)
            .is_none_or(|now| now.fields != resource.fields)
        {
            return Err(ForwardReason::UnknownType);
        }
        for &representation in &read.representations {
            for held in read.held_as(representation) {
                let (scope, is_complete) =
                    self.acquire(read, held).ok_or(ForwardReason::NotCovered)?;
                if scope.fields != resource.fields {
                    return Err(ForwardReason::UnknownType);
                }
                match scope.wait_until_ready(self.scopes.config().sync_wait).await {
                    Ok(ready) => {
                        let (floor, source) = (ResourceVersion::default(), AnswerSource::Snapshot);
                        return Ok(Opened {
                            scope,
                            is_complete,
                            ready,
                            representation,
                            floor,
                            source,
                        });
                    }
                    Err(NotReady::Syncing) => return Err(ForwardReason::Syncing),
                    Err(NotReady::Stopped(Stopped::NotAcceptable)) => {}
                    Err(NotReady::Stopped(Stopped::Forbidden(_))) => {
                        return Err(ForwardReason::NotPermitted);
                    }
                    Err(NotReady::Stopped(_)) => return Err(ForwardReason::NotCached),
                }
            }
        }
        Err(ForwardReason::Representation)
    }

    /// The scope that the read is answered from, opened if it is not, and whether it has all that
    /// is asked for.
    fn acquire(&self, read: &Read, held: Representation) -> Option<(ScopeHandle, bool)> {
        let gvr = &read.resource.gvr;
        let keep = |on_demand| {
            self.policy
                .retention(gvr, on_demand, self.scopes.config().window)
        };
        let mut is_complete = true;
        let scope = self.scopes.acquire(
            (gvr, held),
            &read.resource.kind,
            &read.resource.fields,
            |open| {
                let on_demand = matches!(read.held_in, ScopeChoice::OnDemand { .. });
                let held_in = match &read.held_in {
                    ScopeChoice::Configured(held_in) => held_in.clone(),
                    ScopeChoice::OnDemand { asked, one, limits } => {
                        let is_here = |scope: &&Arc<Scope>| {
                            scope.key.gvr == *gvr && scope.key.representation == held
                        };
                        let (here, elsewhere): (Vec<_>, Vec<_>) = open.partition(is_here);
                        let here: Vec<_> = here.into_iter().map(present).collect();
                        let elsewhere = elsewhere
                            .into_iter()
                            .filter(|scope| present(scope).condition.is_alive());
                        limits.choose(asked, *one, &here, elsewhere.count())?
                    }
                };
                is_complete = held_in.is_complete;
                Some((held_in.selection, keep(on_demand)))
            },
        )?;
        Some((scope, is_complete))
    }

    /// Waits until the scope is as new as the answer must be.
    async fn ripen(&self, opened: &mut Opened, read: &Read) -> Result<(), ForwardReason> {
        match read.age {
            Age::Any => {}
            Age::Weakened => opened.source = AnswerSource::Cache,
            Age::NotOlderThan(version) => {
                if !opened.scope.wait_until_version(version, VERSION_WAIT).await {
                    return Err(ForwardReason::VersionAhead);
                }
                opened.floor = version;
            }
            Age::Latest => {
                let passed = self
                    .fences
                    .pass(&opened.scope, |snapshot| read.is_cheap_upstream(snapshot));
                opened.floor = passed.await.map_err(|why| {
                    tracing::debug!(resource = %opened.scope.key.gvr, %why, "a consistent read is forwarded");
                    ForwardReason::Unproven
                })?;
                opened.source = AnswerSource::Fence;
            }
        }
        Ok(())
    }
}

/// A scope as [`scope_choice`] looks at it.
fn present(scope: &Arc<Scope>) -> scope_choice::OpenScope {
    let condition = match scope.phase() {
        ScopePhase::Ready(_) => scope_choice::Condition::Ready,
        ScopePhase::Syncing | ScopePhase::Failing => scope_choice::Condition::Syncing,
        ScopePhase::Stopped(Stopped::NotAcceptable) => scope_choice::Condition::Unknown,
        ScopePhase::Stopped(_) => scope_choice::Condition::Failed,
    };
    scope_choice::OpenScope {
        selection: Arc::clone(&scope.key.selection),
        condition,
    }
}

fn refused(refusal: &Rejection, encoding: Encoding) -> Response<Body> {
    match refusal {
        Rejection::Status(status) => answer::status(status, encoding, &[]),
        Rejection::ReviewFailed(error) => {
            tracing::warn!(%error, "it could not be found out whom a caller may act as");
            not_now(error, encoding)
        }
    }
}

fn not_now(error: &ReviewError, encoding: Encoding) -> Response<Body> {
    let message = format!("the API server could not be asked about the caller: {error}");
    answer::status(&Status::service_unavailable(message, 1), encoding, &[])
}

fn denied(identity: &Identity, attributes: &AccessAttributes, reason: &str) -> Status {
    Status::forbidden(
        &identity.user,
        attributes.verb,
        &attributes.resource,
        reason,
    )
}

/// Headers that every answer from memory has.
fn from_memory(
    status: StatusCode,
    content_type: &'static str,
    body: Body,
    warnings: &[HeaderValue],
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static(content_type),
    );
    headers.insert(
        http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    for warning in warnings {
        headers.append(http::header::WARNING, warning.clone());
    }
    response
}
