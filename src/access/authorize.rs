//! Authorization of single reads by SubjectAccessReview, with cached verdicts.
pub(super) mod authorizer_rules;
mod recent_denials;
mod verdict_use;
mod verdicts;
mod watch_turns;
pub(super) mod wide_grants;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use tokio::time::Instant;

use super::changes::Changes;
use super::changes::settling::SETTLED;
use super::config::AuthorizationConfig;
use super::error::ReviewError;
use super::identity::Identity;
use super::metrics;
use super::node::{NODES, NodeRights};
use super::request::{AccessRequest, AccessTarget};
use super::reviews::queues::ReviewQueues;
use super::reviews::verdict_form::{self, ReviewType, VerdictAge};
use super::verdict::{Decision, ReviewedAccess, Verdict, VerdictBasis, max_renewed_age};
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;
use authorizer_rules::AuthorizerRules;
use recent_denials::RecentDenials;
use verdict_use::VerdictUse;
use verdicts::{ReviewResult, Verdicts};
use watch_turns::WatchTurns;
use wide_grants::WideGrants;

/// Verdicts of open watches are reviewed at most this often, unless RBAC changes. Ten thousand
/// watches then cause 170 reviews a second; upstream itself authorizes a watch once, at its start.
pub(super) const MIN_WATCH_LIFETIME: Duration = Duration::from_mins(1);
/// Watches review their verdicts after a random multiple of the lifetime, up to this one.
pub(super) const MAX_LIFETIME_FACTOR: f32 = 1.1;
/// A client that did not read for this long missed the moment at which its grant became doubtful.
pub(super) const OVERDUE: Duration = Duration::from_secs(5);

/// Verdicts on requests that take more than this are not cached.
/// Source, for as much text: the webhook authorizer's limit
/// (plugin/pkg/authorizer/webhook/webhook.go).
const MAX_CACHED_BYTES: usize = 10_000;

/// The review that a request without a verdict needs.
enum MissingVerdict {
    /// The request itself.
    One,
    /// The request, or this wider one in its place.
    OneOrWide(Arc<AccessRequest>),
    /// This wider one, which was granted before. If it is denied now, the request itself, unless only the
    /// tokens differ.
    WideAgain(Arc<AccessRequest>),
}

/// Asks upstream for verdicts and caches them.
pub struct Authorizer {
    client: UpstreamClient,
    config: AuthorizationConfig,
    verdicts: Verdicts,
    /// The verdicts of the last minute on what other proxies asked. They know callers of their own, so
    /// these verdicts are not used here.
    passed_on: Verdicts,
    changes: Arc<Changes>,
    nodes: Arc<NodeRights>,
    rules: Arc<AuthorizerRules>,
    wide_grants: WideGrants,
    watch_turns: WatchTurns,
    denials: RecentDenials,
    queues: ReviewQueues,
}

impl Authorizer {
    pub(super) fn new(
        client: UpstreamClient,
        config: AuthorizationConfig,
        timeline: Timeline,
        queues: ReviewQueues,
    ) -> Self {
        let longest = config
            .allowed_ttl
            .max(config.denied_ttl)
            .max(MIN_WATCH_LIFETIME)
            .max(max_renewed_age(config.allowed_ttl));
        let longest = longest.mul_f32(MAX_LIFETIME_FACTOR) + MIN_WATCH_LIFETIME + OVERDUE;
        let rules = Arc::new(AuthorizerRules::new(client.clone(), timeline.clone()));
        let changes = Arc::new(Changes::new(longest, timeline, config.followed_rbac));
        let nodes = NodeRights::new(config.node_grants, Arc::clone(changes.listeners()));
        Self {
            wide_grants: WideGrants::new(Arc::clone(&rules)),
            rules,
            client,
            verdicts: Verdicts::of_callers(config.node_grants),
            passed_on: Verdicts::for_proxies(),
            config,
            changes,
            nodes: Arc::new(nodes),
            watch_turns: WatchTurns::default(),
            denials: RecentDenials::default(),
            queues,
        }
    }

    pub(super) fn config(&self) -> &AuthorizationConfig {
        &self.config
    }

    pub(super) fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    pub(super) fn nodes(&self) -> &Arc<NodeRights> {
        &self.nodes
    }

    /// Asks whether `identity` may have this access. Without credentials, the caller's reviews and denials count
    /// for its address.
    pub async fn authorize(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        address: IpAddr,
        target: AccessTarget,
    ) -> Result<ReviewedAccess, Arc<ReviewError>> {
        let request = Arc::new(AccessRequest {
            identity: Arc::clone(identity),
            target,
        });
        let known = self.known(&request, VerdictUse::Here).await;
        metrics::remembered(known.is_ok());
        match known {
            Ok(reviewed) => Ok(reviewed),
            Err(_) if self.denials.sends_on(&request, address) => {
                Err(ReviewError::OftenDenied.into())
            }
            // Boxed, because the future is large and rare.
            Err(missing) => {
                Box::pin(self.review_missing(&request, missing, VerdictUse::Here, address)).await
            }
        }
    }

    /// Returns a verdict for another proxy at this address. Unless upstream decides now, it is a recent grant by RBAC
    /// that no change concerns.
    pub(super) async fn decide_for_proxy(
        self: &Arc<Self>,
        request: &Arc<AccessRequest>,
        address: IpAddr,
        age: VerdictAge,
    ) -> ReviewResult {
        let usage = VerdictUse::PassedOn(age);
        match self.known(request, usage).await {
            Ok(reviewed) => Ok(reviewed),
            Err(missing) => self.review_missing(request, missing, usage, address).await,
        }
    }

    /// Returns the age of upstream's answer that its authorizers can all list their rules, which another proxy
    /// asks about itself. An error means that only upstream can tell.
    pub(super) async fn rules_for_proxy(
        &self,
        proxy: &Identity,
    ) -> Result<Duration, Arc<ReviewError>> {
        // The node authorizer cannot list the rules of nodes. Of others it can.
        let listed = if proxy.is_in(NODES) {
            None
        } else {
            self.rules.listed_lately().await
        };
        let listed = listed.ok_or(ReviewError::LeftToUpstream)?;
        Ok(listed.elapsed())
    }

    /// Returns the cached verdict on a request, or the cached grant of a wider one, if it is fit for
    /// use. Otherwise returns the review that is needed.
    async fn known(
        &self,
        request: &Arc<AccessRequest>,
        usage: VerdictUse,
    ) -> Result<ReviewedAccess, MissingVerdict> {
        if let Some(reviewed) = self.cached(request, usage).await {
            return Ok(reviewed);
        }
        // Nodes are granted single objects.
        let is_node = request.identity.is_in(NODES);
        let wide = (!is_node).then(|| request.widened()).flatten();
        let Some(wide) = wide.map(Arc::new) else {
            return Err(MissingVerdict::One);
        };
        match self.cached(&wide, usage).await {
            Some(reviewed) if covers(&wide, &reviewed) => Ok(reviewed.covering(request)),
            Some(_) => Err(MissingVerdict::One),
            None if self.is_denied(&wide).await => Err(MissingVerdict::One),
            None if self.was_granted(&wide, usage).await => Err(MissingVerdict::WideAgain(wide)),
            None => Err(MissingVerdict::OneOrWide(wide)),
        }
    }

    /// Returns `true` if a request was granted lately, whatever that is worth now.
    async fn was_granted(&self, request: &Arc<AccessRequest>, usage: VerdictUse) -> bool {
        let known = self.verdicts_for(usage).get(request).await;
        known.is_some_and(|known| known.is_allowed())
    }

    fn verdicts_for(&self, usage: VerdictUse) -> &Verdicts {
        match usage {
            VerdictUse::Here => &self.verdicts,
            VerdictUse::PassedOn(_) => &self.passed_on,
        }
    }

    /// Returns `true` if a valid verdict denies a request.
    async fn is_denied(&self, request: &Arc<AccessRequest>) -> bool {
        let cached = self.verdicts.get(request).await;
        cached.is_some_and(|cached| !cached.is_allowed() && self.is_valid(&cached))
    }

    /// Reviews a request that has no verdict, or a wider one in its place, where that is possible
    /// and granted.
    async fn review_missing(
        self: &Arc<Self>,
        request: &Arc<AccessRequest>,
        missing: MissingVerdict,
        usage: VerdictUse,
        address: IpAddr,
    ) -> ReviewResult {
        let wide = match missing {
            MissingVerdict::One => None,
            MissingVerdict::OneOrWide(wide) => {
                let should_widen = self.should_widen(request, &wide, usage).await;
                should_widen.then_some(wide)
            }
            MissingVerdict::WideAgain(wide) => self.rules.are_listed().await.then_some(wide),
        };
        if let Some(wide) = wide {
            let reviewed = self.review_shared(&wide, usage, address).await?;
            if covers(&wide, &reviewed) {
                return Ok(self.noted(reviewed.covering(request), usage, address));
            }
            if usage != VerdictUse::Here {
                // So that the next one is not asked about twice.
                self.verdicts.insert(wide, reviewed).await;
            }
        }
        let reviewed = self.review_shared(request, usage, address).await?;
        Ok(self.noted(reviewed, usage, address))
    }

    /// Notes a denial here, to a caller at this address.
    fn noted(
        &self,
        reviewed: ReviewedAccess,
        usage: VerdictUse,
        address: IpAddr,
    ) -> ReviewedAccess {
        if !reviewed.is_allowed() && usage == VerdictUse::Here {
            self.denials.record(&reviewed.request, address);
        }
        reviewed
    }

    /// Returns `true` if a wider request should be reviewed in place of one.
    async fn should_widen(
        &self,
        request: &AccessRequest,
        wide: &AccessRequest,
        usage: VerdictUse,
    ) -> bool {
        match usage {
            VerdictUse::Here if wide.is_for_any_token() && self.rules.are_known_to_be_listed() => {
                true
            }
            VerdictUse::Here => self.wide_grants.should_review(request, wide).await,
            // The proxies of other nodes will ask the same about other tokens and names.
            VerdictUse::PassedOn(_) => self.rules.are_listed().await,
        }
    }

    /// Returns the cached verdict if it is fit for use, or becomes so as upstream says that nothing
    /// but RBAC can have ended it.
    async fn cached(
        &self,
        request: &Arc<AccessRequest>,
        usage: VerdictUse,
    ) -> Option<ReviewedAccess> {
        let cached = self.verdicts_for(usage).get(request).await?;
        if self.is_fit(&cached, usage) {
            return Some(cached);
        }
        if usage != VerdictUse::Here || !self.is_renewable(&cached) {
            return None;
        }
        // Boxed, because the future is large and rare.
        Box::pin(self.rules.look_again(|| self.is_valid(&cached))).await;
        self.is_valid(&cached).then_some(cached)
    }

    /// Returns `true` if nothing but its age ended a verdict, and an answer to a question about the
    /// rules could renew it.
    fn is_renewable(&self, ReviewedAccess { request, verdict }: &ReviewedAccess) -> bool {
        let now = Instant::now();
        let renewed = self.renewed(verdict, request, now);
        renewed.is_some_and(|(from, lifetime)| verdict.is_valid(now, from + lifetime))
    }

    /// Returns the moment from which on a verdict ages, and its lifetime, if upstream said at
    /// `listed` that nothing but RBAC can end it. `None` if that prolongs nothing.
    fn renewed(
        &self,
        verdict: &Verdict,
        request: &AccessRequest,
        listed: Instant,
    ) -> Option<(Instant, Duration)> {
        if !self.changes.are_followed(request) {
            return None;
        }
        let known = self.changes.known_until(request)?;
        verdict.renewed_at(listed.min(known))
    }

    fn is_valid(&self, ReviewedAccess { request, verdict }: &ReviewedAccess) -> bool {
        self.compare(verdict, request);
        let (from, lifetime) = self.lifetime(verdict, request);
        verdict.is_valid(Instant::now(), from + lifetime)
    }

    fn is_fit(&self, reviewed: &ReviewedAccess, usage: VerdictUse) -> bool {
        let is_valid = self.is_valid(reviewed);
        let ReviewedAccess { request, verdict } = reviewed;
        match usage {
            VerdictUse::Here => is_valid,
            VerdictUse::PassedOn(VerdictAge::New) => false,
            // A change that is not settled yet may have reached the other proxy earlier.
            VerdictUse::PassedOn(age @ (VerdictAge::Young | VerdictAge::Old)) => {
                is_valid
                    && verdict.is_granted_by_rbac()
                    && verdict.age() <= age.limit()
                    && verdict.settled_at().is_none()
                    && self.changes.are_followed(request)
            }
        }
    }

    /// Compares a verdict with what has happened since it was last compared.
    pub(super) fn compare(&self, verdict: &Verdict, request: &AccessRequest) {
        let VerdictBasis::Node { reason, .. } = &verdict.basis else {
            // A pod may have been gone when a reason was looked for, and its departure not noted.
            self.settle(verdict, request, verdict.position.requested + SETTLED);
            return self.changes.apply(verdict, request);
        };
        // RBAC gave nothing here, so no change of it takes the grant away.
        if verdict.overtaken_at().is_some() {
            return;
        }
        let is_current = self.changes.is_in_this_timeline(&verdict.position)
            && self.nodes.still_holds(reason, request);
        if !is_current {
            verdict.set_overtaken(Instant::now());
        }
    }

    /// Returns the moment from which on a verdict about a request ages, and its lifetime.
    pub(super) fn lifetime(
        &self,
        verdict: &Verdict,
        request: &AccessRequest,
    ) -> (Instant, Duration) {
        let requested = verdict.position.requested;
        let VerdictBasis::Node { reason, lifetime } = &verdict.basis else {
            let listed = self.rules.last_listed();
            let renewed = listed.and_then(|listed| self.renewed(verdict, request, listed));
            return renewed.unwrap_or_else(|| {
                let is_followed = self.changes.are_followed(request);
                (requested, verdict.lifetime(is_followed))
            });
        };
        match self.nodes.unknown_since(reason) {
            None => (requested, *lifetime),
            Some(since) => (requested.max(since), verdict.unwatched_ttl),
        }
    }

    /// Returns a verdict that is fit for use, or one that was requested after this call.
    async fn review_shared(
        self: &Arc<Self>,
        request: &Arc<AccessRequest>,
        usage: VerdictUse,
        address: IpAddr,
    ) -> ReviewResult {
        let arrived = Instant::now();
        let size = match usage {
            VerdictUse::Here => request.target.size(),
            // The asking proxy names the user.
            VerdictUse::PassedOn(_) => request.size(),
        };
        if size <= MAX_CACHED_BYTES {
            // Concurrent equal requests share one review. A review that was already under way may
            // be overtaken by a change before it is answered. The second one is newer than this
            // call, so it fits.
            for _ in 0..2 {
                let verdicts = self.verdicts_for(usage);
                let review = || {
                    let (this, request) = (Arc::clone(self), Arc::clone(request));
                    async move { this.review_once(&request, arrived, usage, address).await }.boxed()
                };
                let reviewed = verdicts.review(request, address, review).await?;
                if self.fits(&reviewed, arrived, usage) {
                    return Ok(reviewed);
                }
            }
        }
        self.review(request, usage, address).await
    }

    /// Reviews a request that nobody else has reviewed at the moment, and caches the verdict.
    async fn review_once(
        &self,
        request: &Arc<AccessRequest>,
        arrived: Instant,
        usage: VerdictUse,
        address: IpAddr,
    ) -> ReviewResult {
        let verdicts = self.verdicts_for(usage);
        // The review before this one may just have ended.
        if let Some(cached) = verdicts.get(request).await
            && self.fits(&cached, arrived, usage)
        {
            return Ok(cached);
        }
        let reviewed = self.review(request, usage, address).await;
        verdicts.note(request, &reviewed).await;
        reviewed
    }

    /// Returns `true` if a verdict answers a call that came at `arrived`: it is fit for use, or was requested
    /// after that.
    fn fits(&self, reviewed: &ReviewedAccess, arrived: Instant, usage: VerdictUse) -> bool {
        let ReviewedAccess { verdict, .. } = reviewed;
        let is_later = verdict.position.requested >= arrived
            && self.changes.is_in_this_timeline(&verdict.position);
        // The shared review may be for a proxy that accepts older verdicts.
        let is_young_enough = match usage {
            VerdictUse::PassedOn(age) => verdict.age() <= age.limit() + arrived.elapsed(),
            VerdictUse::Here => true,
        };
        is_later && is_young_enough || self.is_fit(reviewed, usage)
    }

    /// Returns a valid verdict for an open watch. The reviews of all open watches together have a
    /// bounded rate.
    pub(super) async fn recheck(
        self: &Arc<Self>,
        request: &Arc<AccessRequest>,
        address: IpAddr,
    ) -> ReviewResult {
        if let Ok(reviewed) = self.known(request, VerdictUse::Here).await {
            return Ok(reviewed);
        }
        let turn = self.watch_turns.turn(&request.identity, address).await;
        // Another watch may have had the same reviewed meanwhile.
        let missing = match self.known(request, VerdictUse::Here).await {
            Ok(reviewed) => return Ok(reviewed),
            Err(missing) => missing,
        };
        let _review = turn.begin();
        self.review_missing(request, missing, VerdictUse::Here, address)
            .await
    }

    async fn review(
        &self,
        request: &Arc<AccessRequest>,
        usage: VerdictUse,
        address: IpAddr,
    ) -> ReviewResult {
        let review = SubjectAccessReview {
            spec: request.for_review(),
            ..SubjectAccessReview::default()
        };
        self.changes.want(request);
        let turn = self.queues.of_access(&request.identity, address).await;
        let kind = ReviewType::SubjectAccess.endpoint().kind;
        let turn = turn.inspect_err(|error| metrics::not_sent(kind, error))?;
        // Taken before the review is sent, so that no later change is taken for an earlier one.
        let position = self.changes.position();
        let wanted = usage.wanted_age(&self.changes, &position, request, self.config.allowed_ttl);
        let posted = verdict_form::ask(&self.client, &review, wanted);
        let answer = turn.run(posted).await?;
        if let Some(failure) = answer.failure() {
            return Err(Arc::new(ReviewError::Undecided(failure.to_owned())));
        }
        let (age, allowed) = (answer.age(), answer.is_granted());
        let status = answer.status.ok_or_else(ReviewError::without_status)?;
        let reason = status.reason.unwrap_or_default().into();
        let decision = if allowed {
            Decision::Allowed(reason)
        } else {
            Decision::Denied(reason)
        };
        let (ttl, unwatched_ttl) = self.config.lifetimes(&request.identity, &decision);
        let mut verdict = Verdict::new(decision, position, ttl, unwatched_ttl).aged(age);
        if verdict.is_granted_by_rbac() {
            verdict = self.renew_with_rbac(verdict, request);
        } else if verdict.is_grant_without_reason() && !ttl.is_zero() {
            verdict = self.keep_with_reason(verdict, request);
        }
        Ok(ReviewedAccess {
            request: Arc::clone(request),
            verdict: Arc::new(verdict),
        })
    }

    /// Has a grant by RBAC renewed for hours if the followed objects of RBAC explain it. Otherwise it is renewed
    /// up to the age that RBAC had not changed for when it was requested: the API server that gave it may lag,
    /// and only a server that lags for longer than that can have given a wrong one.
    fn renew_with_rbac(&self, verdict: Verdict, request: &AccessRequest) -> Verdict {
        let longest = max_renewed_age(verdict.ttl);
        // `renewed_until` counts from the request, when the decision had this age already.
        let age = verdict.age();
        let is_explained = self.changes.explain(verdict.decision.reason(), request);
        metrics::granted_by_rbac(is_explained);
        if is_explained {
            return verdict.explained_until(longest.saturating_sub(age));
        }
        let quiet = self
            .changes
            .quiet_before(&verdict.position, request, longest);
        // Less quiet time precedes the decision than the request.
        let quiet = quiet.saturating_sub(age).saturating_sub(age);
        verdict.renewed_until(quiet)
    }

    /// Keeps a grant for as long as the proxy sees the reason for it.
    fn keep_with_reason(&self, verdict: Verdict, request: &AccessRequest) -> Verdict {
        if let Some(reason) = self.nodes.grant_reason(request) {
            return verdict.with_node_reason(reason);
        }
        self.settle(&verdict, request, Instant::now());
        verdict
    }

    /// Has a grant without a reason reviewed again, if a pod left the node just before it was
    /// requested, or since then until `until`.
    fn settle(&self, verdict: &Verdict, request: &AccessRequest, until: Instant) {
        let requested = verdict.position.requested;
        if verdict.is_grant_without_reason()
            && let Some(after) = self.nodes.settles_after(request, requested, until)
        {
            verdict.set_settled(after);
        }
    }
}

/// Returns `true` if a verdict on a wider request counts for those that it is wider than. A grant always does. A
/// denial does if only the tokens differ.
fn covers(wide: &AccessRequest, reviewed: &ReviewedAccess) -> bool {
    reviewed.is_allowed() || wide.is_for_any_token()
}
