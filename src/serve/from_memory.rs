//! Answers requests from memory: authorizes them, opens what they read, and waits until it is fresh.
mod checkpoint_answers;
mod documents;
mod verdict_answers;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use watershed_protocol::{Status, Verb};

use super::answer::{self, Answer, ListContext, WatchContext};
use super::exchange::Exchange;
use super::limits::exceeded::LimitExceeded;
use super::limits::memory::RequestMemory;
use super::limits::reads::ReadLimits;
use super::limits::requests::Admission;
use super::limits::watches::WatchLimits;
use super::metrics::Meters;
use super::plan::document_request::DocumentRequest;
use super::plan::request_deadline::RequestDeadline;
use super::plan::{PlannedAction, ReadKind, ReadPlan};
use super::reads::freshness::{self, FreshScope, ReadOrigin};
use super::reads::open::ScopeOpener;
use super::reads::{large_answers, unfolding};
use super::review;
use super::source::{AnswerSource, ForwardReason};
use super::unanswered::{Refusal, Unanswered};
use super::verify::Verifier;
use crate::access::{Access, Caller, ReviewType, ReviewedAccess, VERDICT_MEDIA_TYPE, VerdictAge};
use crate::audit;
use crate::body::holding;
use crate::drain::DrainWatch;
use crate::headers::VIA;
use crate::proof::{GetCrowds, Provers, WaitingGet};
use crate::upstream::UpstreamClient;
use crate::watcher::ContentCoding;
use checkpoint_answers::CheckpointAnswers;
use documents::DocumentCache;
use verdict_answers::VerdictAnswers;

/// Time after which a verdict is asked for again if the answer is only made then. An API server
/// waits for at most three seconds between the two.
/// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (`blockTimeout`).
pub(super) const VERDICT_WAIT: Duration = Duration::from_secs(3);

/// The parts that answer from memory: scopes, proofs that they are fresh, and the limits of answers.
pub(super) struct FromMemory {
    opener: ScopeOpener,
    access: Access,
    provers: Provers,
    gets: GetCrowds,
    documents: DocumentCache,
    checkpoints: CheckpointAnswers,
    verdicts: VerdictAnswers,
    verifier: Verifier,
    request_memory: Arc<RequestMemory>,
    read_limits: ReadLimits,
    watch_limits: WatchLimits,
    draining: DrainWatch,
    meters: Meters,
}

impl FromMemory {
    /// Puts the parts together. `client` asks upstream for proofs and documents.
    pub(super) fn new(
        opener: ScopeOpener,
        access: Access,
        client: UpstreamClient,
        request_memory: Arc<RequestMemory>,
        draining: DrainWatch,
    ) -> Self {
        let (policy, budget) = (&opener.policy, opener.scopes.budget());
        Self {
            provers: Provers::new(client.clone()),
            gets: GetCrowds::default(),
            verifier: Verifier::new(client.clone(), policy.verification, budget),
            documents: DocumentCache::new(client, budget),
            checkpoints: CheckpointAnswers::default(),
            verdicts: VerdictAnswers::default(),
            read_limits: ReadLimits::new(policy.users),
            watch_limits: WatchLimits::within(budget, policy.users),
            meters: Meters::default(),
            opener,
            access,
            request_memory,
            draining,
        }
    }

    /// Answers a request from memory, or returns why not.
    pub(super) async fn answer(
        &self,
        exchange: &mut Exchange<'_>,
        admission: &Result<Admission, LimitExceeded>,
    ) -> Result<Answer, Unanswered> {
        if let Caller::Rejected(rejected) = &exchange.caller {
            return Err(review::rejected_caller(&rejected.reason).into());
        }
        if exchange.plan.verb == Verb::Watch && self.draining.is_draining() {
            // A watch that began now would end with the process. As an API server does, the proxy
            // sends the client to another one.
            // Source: `apiserver/pkg/server/filters/watch_termination.go`, `waitgroup.go`.
            let status = Status::service_unavailable("the proxy is shutting down", 1);
            return Err(Refusal::new(AnswerSource::Shutdown, status).into());
        }
        if let Err(exceeded) = admission {
            return Err((*exceeded).into());
        }
        match &exchange.plan.action {
            PlannedAction::Forward(reason) => Err((*reason).into()),
            PlannedAction::Read(read) => match exchange.plan.features.refusal(read) {
                Some(status) => {
                    review::authorize_read(exchange, read).await?;
                    Err(review::refuse_read(read, AnswerSource::ClientRule, status))
                }
                None => self.read(exchange, read).await,
            },
            PlannedAction::Document(document) => self.document(exchange, document).await,
            PlannedAction::Checkpoint(checkpoint) => {
                let identity = review::identify_known(exchange).await?;
                let scopes = &self.opener.scopes;
                CheckpointAnswers::expect_held(scopes, checkpoint)?;
                review::authorize_checkpoint(exchange, &identity, checkpoint).await?;
                let user = identity.user.as_str();
                let answer = self.checkpoints.answer(scopes, user, checkpoint);
                Ok(answer.await?)
            }
            // Boxed: other requests need no room for it.
            PlannedAction::Verdict(review, age) => {
                let (review, age) = (*review, *age);
                Box::pin(self.verdict(exchange, review, age)).await
            }
        }
    }

    /// Answers a read: authorizes it, opens its scope, waits until the scope is fresh.
    async fn read(&self, exchange: &Exchange<'_>, read: &ReadPlan) -> Result<Answer, Unanswered> {
        let deadline = RequestDeadline::of(read, exchange.arrived);
        let is_get = matches!(read.kind, ReadKind::Get { .. });
        let asked = Instant::now();
        let (origin, _waiting) = if is_get && read.needs_proof() {
            let (rate, waiting) = self.crowd_of_gets(read, asked)?;
            (ReadOrigin::Crowd(rate), Some(waiting))
        } else {
            let origin = ReadOrigin::Request {
                number: request_number(exchange),
                arrived: asked,
            };
            (origin, None)
        };
        let reviewed = review::authorize_read(exchange, read).await?;
        let share = || self.read_limits.scope(reviewed.user());
        let opened = self.opener.open(read, share);
        let opened = deadline.wait(opened, ForwardReason::Syncing).await?;
        let late = freshness::reason_if_late(read);
        let fresh = freshness::wait_until_fresh(&self.provers, opened, read, origin);
        let fresh = deadline.wait(fresh, late).await?;
        let reviewed = if asked.elapsed() > VERDICT_WAIT {
            review::authorize_read(exchange, read).await?
        } else {
            reviewed
        };
        let mut answer = self.answer_of(exchange, read, &fresh, reviewed).await?;
        answer::add_age_header(&mut answer, &fresh);
        answer::add_omission_header(&mut answer, &fresh);
        Ok(self.verifier.sample(answer, &fresh, read))
    }

    /// Makes the answer of a fresh scope, within the limits of what answers may take.
    async fn answer_of(
        &self,
        exchange: &Exchange<'_>,
        read: &ReadPlan,
        fresh: &FreshScope,
        reviewed: ReviewedAccess,
    ) -> Result<Answer, Unanswered> {
        let (budget, headers) = (self.opener.scopes.budget(), exchange.headers());
        large_answers::refuse(budget, &fresh.opened, read)?;
        let coding = match &read.kind {
            ReadKind::Watch(watch) => answer::watch_coding(&fresh.opened, watch, headers).await,
            ReadKind::Get { .. } | ReadKind::List(_) => ContentCoding::Identity,
        };
        let unfolding = unfolding::begin(budget, &fresh.opened, read, headers, coding)?;
        match &read.kind {
            ReadKind::Get { name } => Ok(answer::get(fresh, read, name, headers, budget)?),
            ReadKind::List(list) => {
                let is_scan = fresh.opened.form.is_converted() || read.is_scan(list);
                let _scan = is_scan
                    .then(|| self.read_limits.scan(reviewed.user()))
                    .transpose()?;
                let memory = self.request_memory.list(reviewed.identity(), exchange);
                let context = ListContext {
                    headers,
                    memory,
                    page_state: || self.read_limits.page_state(reviewed.user()),
                };
                let mut answer = answer::list(fresh, read, list, context).await?;
                if let Some(unfolding) = unfolding {
                    answer.response = answer.response.map(|body| holding(body, unfolding));
                }
                Ok(answer)
            }
            ReadKind::Watch(watch) => {
                let recorded = audit::kept_bytes(&exchange.request) as u64;
                let share = self
                    .watch_limits
                    .begin(reviewed.user(), read.selector_bytes + recorded)?;
                let guard = self.access.authorizer.guard(reviewed, exchange.address());
                let context = WatchContext {
                    coding,
                    arrived: exchange.arrived.into(),
                    timeout: read.timeout,
                    guard,
                    draining: &self.draining,
                    meters: &self.meters,
                    labels: &exchange.labels,
                    unfolding,
                    is_of_proxy: exchange.headers().contains_key(VIA),
                };
                let mut answer = answer::watch(fresh, watch, context)?;
                answer.response = answer.response.map(|body| holding(body, share));
                Ok(answer)
            }
        }
    }

    /// Returns the rate of gets in the crowd that a consistent get belongs to, and its place there. One
    /// object costs upstream no more than the proof would, so a lone get is forwarded. That is
    /// decided before the caller is reviewed, because a review costs upstream almost as much as the
    /// get.
    fn crowd_of_gets<'a>(
        &'a self,
        read: &'a ReadPlan,
        now: Instant,
    ) -> Result<(f64, WaitingGet<'a>), ForwardReason> {
        let get = self.gets.arrived(&read.resource.gvr, now);
        let scope = get.is_in_a_crowd().then(|| self.opener.ready_now(read));
        match scope.flatten() {
            Some(scope) if self.provers.is_worth_for_gets(&scope, get.rate) => {
                Ok((get.rate, get.wait()))
            }
            _ => Err(ForwardReason::Consistent),
        }
    }

    /// Answers a review of another proxy, if that may ask for it.
    async fn verdict(
        &self,
        exchange: &mut Exchange<'_>,
        asked: ReviewType,
        age: VerdictAge,
    ) -> Result<Answer, Unanswered> {
        let proxy = review::identify_known(exchange).await?;
        review::authorize_review(exchange, &proxy, asked).await?;
        let body = exchange.request.body_mut();
        let Some(_turn) = self.verdicts.turn(&proxy, body) else {
            return Err(ForwardReason::NotARead.into());
        };
        let review = verdict_answers::read(asked, body).await?;
        let decided = self
            .access
            .answer_proxy(review, &proxy, exchange.address(), age)
            .await;
        let verdict = decided.map_err(|error| review::undecided(exchange, &error))?;
        let response = answer::verdict(VERDICT_MEDIA_TYPE, verdict);
        Ok(Answer::new(AnswerSource::Verdict, response))
    }

    /// Answers a request for a discovery, OpenAPI or version document.
    async fn document(
        &self,
        exchange: &Exchange<'_>,
        document: &DocumentRequest,
    ) -> Result<Answer, Unanswered> {
        review::authorize_document(exchange, document).await?;
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
fn request_number(exchange: &Exchange<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    exchange.request_key().hash(&mut hasher);
    hasher.finish()
}
