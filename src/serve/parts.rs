//! The service's parts (caches, limits, forwarder), and the order in which they answer a request.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Request};
use watershed_protocol::{Status, Verb};

use super::answer::{self, Answer, WatchContext};
use super::checkpoint_answers::CheckpointAnswers;
use super::coalesce::Coalescer;
use super::document_request::DocumentRequest;
use super::documents::DocumentCache;
use super::exchange::Exchange;
use super::fence::Fences;
use super::forward_limits::ForwardLimits;
use super::freshness::{self, ReadOrigin};
use super::get_crowds::GetCrowds;
use super::limit::{Admission, LimitExceeded, Limiter};
use super::metrics::Meters;
use super::optional_parameters::ParameterProbe;
use super::plan::{PlannedAction, ReadKind, ReadPlan};
use super::policy::CachingPolicy;
use super::read_limits::ReadLimits;
use super::request_deadline::RequestDeadline;
use super::source::{AnswerSource, ForwardReason};
use super::stored_response::RequestKey;
use super::takeover::Takeovers;
use super::unanswered::Unanswered;
use super::usage::Usage;
use super::verify::Verifier;
use super::watch_limits::WatchLimits;
use super::{large_answers, open, review, unfolding, unknown_callers};
use crate::access::{Access, Caller, Credential, Identity};
use crate::body::holding;
use crate::catalog::Catalog;
use crate::drain::DrainWatch;
use crate::headers::VIA;
use crate::scope::Scopes;
use crate::upstream::{Forwarder, ProxyChain, UpstreamClient};

/// Time after which a verdict is asked for again if the answer is only made then. An API server
/// waits for at most three seconds between the two.
/// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (`blockTimeout`).
pub(super) const VERDICT_WAIT: Duration = Duration::from_secs(3);

/// Everything that answers requests.
pub(super) struct ServiceParts {
    pub(super) catalog: Catalog,
    pub(super) policy: Arc<CachingPolicy>,
    pub(super) scopes: Scopes,
    pub(super) access: Access,
    pub(super) limiter: Limiter,
    pub(super) forward_limits: ForwardLimits,
    pub(super) watch_limits: WatchLimits,
    pub(super) read_limits: ReadLimits,
    pub(super) verifier: Verifier,
    pub(super) fences: Fences,
    pub(super) documents: DocumentCache,
    pub(super) checkpoints: CheckpointAnswers,
    pub(super) parameters: ParameterProbe,
    pub(super) gets: GetCrowds,
    pub(super) coalescer: Coalescer,
    pub(super) takeovers: Takeovers,
    pub(super) forwarder: Forwarder,
    pub(super) chain: Arc<ProxyChain>,
    pub(super) draining: DrainWatch,
    pub(super) meters: Meters,
    pub(super) usage: Usage,
}

impl ServiceParts {
    pub(super) fn new(
        catalog: Catalog,
        policy: CachingPolicy,
        scopes: Scopes,
        access: Access,
        client: UpstreamClient,
        forwarder: Forwarder,
        draining: DrainWatch,
    ) -> Self {
        let policy = Arc::new(policy);
        Self {
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
            checkpoints: CheckpointAnswers::default(),
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
        }
    }

    /// Names the proxies up to the API server to another proxy, if it is a known caller. Nobody
    /// else learns of them, neither from this proxy nor from upstream's answer.
    pub(super) fn add_via_header(
        &self,
        proxy: Option<(Caller, Option<Credential>)>,
        headers: &mut HeaderMap,
    ) {
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
    pub(super) async fn admit(&self, exchange: &Exchange) -> Result<Admission, LimitExceeded> {
        unknown_callers::check_head(&self.access, exchange).await?;
        self.limiter.admit(&self.access, exchange).await
    }

    /// Returns the caller if it was reviewed for this answer or lately. Upstream is not asked for
    /// the statistics.
    pub(super) async fn remembered(&self, exchange: &Exchange) -> Option<Arc<Identity>> {
        let credential = exchange.credential.as_ref();
        self.access
            .remembered(&exchange.caller, credential, exchange.headers())
            .await
    }

    pub(super) fn is_known(&self, exchange: &Exchange) -> bool {
        self.access
            .is_known(&exchange.caller, exchange.credential.as_ref())
    }

    /// Answers a request from memory, or returns why not.
    pub(super) async fn answer(
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
            PlannedAction::Read(read) => match exchange.features.refusal(read) {
                Some(status) => {
                    review::authorize_read(&self.access, exchange, read).await?;
                    Err(review::refuse(read, AnswerSource::ClientRule, status))
                }
                None => self.read(exchange, read).await,
            },
            PlannedAction::Document(document) => self.document(exchange, document).await,
            PlannedAction::Checkpoint(checkpoint) => {
                let identity = review::identify_known(&self.access, exchange).await?;
                CheckpointAnswers::expect_held(&self.scopes, checkpoint)?;
                review::authorize_checkpoint(&self.access, exchange, &identity, checkpoint).await?;
                let user = identity.user.as_str();
                self.checkpoints
                    .answer(&self.scopes, user, checkpoint)
                    .await
            }
        }
    }

    /// Answers a read: authorizes it, opens its scope, waits until the scope is fresh.
    async fn read(&self, exchange: &Exchange, read: &ReadPlan) -> Result<Answer, Unanswered> {
        let query = exchange.request.uri().query();
        let deadline = RequestDeadline::of(read, query);
        let is_get = matches!(read.kind, ReadKind::Get { .. });
        let (origin, _waiting) = if is_get && read.needs_proof() {
            let crowd = self.crowd_of_gets(read)?;
            (crowd, Some(self.gets.wait(&read.resource.gvr)))
        } else {
            let number = request_number(&exchange.request);
            let arrived = Instant::now();
            (ReadOrigin::Request { number, arrived }, None)
        };
        let asked = Instant::now();
        let judged = review::authorize_read(&self.access, exchange, read).await?;
        let share = || self.read_limits.scope(judged.user());
        let opened = open::open(&self.catalog, &self.policy, &self.scopes, read, share);
        let opened = deadline.wait(opened, ForwardReason::Syncing).await?;
        let late = freshness::reason_if_late(read);
        let fresh = freshness::wait_until_fresh(&self.fences, opened, read, origin);
        let fresh = deadline.wait(fresh, late).await?;
        let judged = if asked.elapsed() > VERDICT_WAIT {
            review::authorize_read(&self.access, exchange, read).await?
        } else {
            judged
        };
        let user = judged.user();
        large_answers::refuse(self.scopes.budget(), &fresh.opened, read)?;
        let headers = exchange.headers();
        let budget = self.scopes.budget();
        let unfolding = unfolding::begin(budget, &fresh.opened, read, headers)?;
        let mut answer = match &read.kind {
            ReadKind::Get { name } => answer::get(&fresh, read, name, headers, budget)?,
            ReadKind::List(list) => {
                let is_made = fresh.opened.partial().is_some() || fresh.opened.table.is_some();
                let is_scan = is_made || read.is_scan(list);
                let _scan = is_scan.then(|| self.read_limits.scan(user)).transpose()?;
                let page_state = || self.read_limits.page_state(user);
                let mut answer = answer::list(&fresh, read, list, headers, page_state).await?;
                if let Some(unfolding) = unfolding {
                    answer.response = answer.response.map(|body| holding(body, unfolding));
                }
                answer
            }
            ReadKind::Watch(watch) => {
                let share = self.watch_limits.begin(user, query)?;
                let guard = self.access.authorizer.guard(judged);
                let context = WatchContext {
                    coding: answer::watch_coding(&fresh.opened, watch, headers).await,
                    guard,
                    draining: &self.draining,
                    meters: &self.meters,
                    labels: &exchange.labels,
                    unfolding,
                };
                let mut answer = answer::watch(&fresh, read, watch, context)?;
                answer.response = answer.response.map(|body| holding(body, share));
                answer
            }
        };
        answer::add_age_header(&mut answer, &fresh);
        answer::add_omission_header(&mut answer, &fresh);
        Ok(self.verifier.sample(answer, &fresh, read, query))
    }

    /// Returns the crowd that a consistent get belongs to. One object costs upstream no more than
    /// the proof would, so a lone get is forwarded. That is decided before the caller is reviewed,
    /// because a review costs upstream almost as much as the get.
    fn crowd_of_gets(&self, read: &ReadPlan) -> Result<ReadOrigin, ForwardReason> {
        let get = self.gets.arrived(&read.resource.gvr, Instant::now());
        let scope = get
            .is_in_a_crowd()
            .then(|| open::ready_now(&self.scopes, read));
        match scope.flatten() {
            Some(scope) if self.fences.is_worth_for_gets(&scope, get.rate) => {
                Ok(ReadOrigin::Crowd(get.rate))
            }
            _ => Err(ForwardReason::Consistent),
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
}

/// Returns a number that requests for the same have in common.
fn request_number<B>(request: &Request<B>) -> u64 {
    let mut hasher = DefaultHasher::new();
    RequestKey::new(request).hash(&mut hasher);
    hasher.finish()
}
