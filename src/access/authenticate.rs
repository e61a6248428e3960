//! Identifies callers: here those with a bearer token, by TokenReview, and anonymous ones.
//! `certificate` and `front_proxy` identify the others.
pub(super) mod bearer_token;
pub(super) mod certificate;
pub(super) mod front_proxy;
pub(super) mod known_tokens;
pub(super) mod refused_tokens;
pub(super) mod service_account;
pub(super) mod token_inspection;
pub(super) mod token_issuer;
pub(super) mod websocket_token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use http::HeaderMap;
use k8s_openapi::api::authentication::v1::TokenReview;
use moka::Expiry;
use moka::future::Cache;
use tokio::time::timeout;

use super::config::AuthenticationConfig;
use super::error::ReviewError;
use super::identity::Identity;
use super::metrics;
use super::review::{JSON, identity, post, token_review};
use super::review_queues::{ReviewQueues, ReviewTurn, UNKNOWN_WAIT};
use super::verdict_form::{self, ReviewType};
use crate::scope::Timeline;
use crate::shared_calls::JoinedCalls;
use crate::upstream::UpstreamClient;
use bearer_token::{any_bearer_token, has_no_credentials, only_bearer_token};
use known_tokens::{KnownTokens, MAX_TOKENS};
use refused_tokens::RefusedTokens;
use service_account::{ServiceAccounts, SignedToken};
use token_inspection::TokenInspection;

pub use known_tokens::Credential;

/// Time for which a refused token stays refused. It keeps a client in a retry loop off upstream.
const REFUSED_TTL: Duration = Duration::from_secs(2);
/// Longest time after which a token is looked at again that is checked here. That costs no review.
const CHECKED_TTL: Duration = Duration::from_secs(10);

/// The result of authentication.
#[derive(Clone, Debug)]
pub enum Authenticated {
    /// Upstream knows the caller.
    Known(Arc<Identity>),
    /// Upstream does not accept the token.
    Refused,
    /// The request has no credentials that this proxy can check, so upstream decides.
    Unknown,
}

/// The user of a token, or `None` if upstream refuses it.
type TokenVerdict = Result<Option<Arc<Identity>>, Arc<ReviewError>>;

/// Reviews tokens and caches the verdicts for a short time.
pub struct Authenticator {
    client: UpstreamClient,
    config: AuthenticationConfig,
    anonymous: Arc<Identity>,
    /// The number of a timeline is part of the kind of a token.
    timeline: Timeline,
    verdicts: Cache<Credential, CachedVerdict>,
    /// The reviews that run, each with `true` if its token was known when it began. A known token does not wait
    /// among the unknown ones.
    reviews: JoinedCalls<(Credential, bool), TokenVerdict>,
    checks: LocalChecks,
    tokens: KnownTokens,
    queues: ReviewQueues,
    refusals: RefusedTokens,
}

/// A verdict on a token, as it is cached.
#[derive(Clone, Debug)]
enum CachedVerdict {
    Refused,
    /// Only a review tells more.
    Reviewed(Arc<Identity>),
    /// The end of the token is noticed here.
    Checked(Arc<Identity>),
}

/// The one that wants to know the user of a token.
#[derive(Clone, Copy)]
enum Asker<'a> {
    /// Its bearer, at this address.
    Bearer(IpAddr),
    /// Another proxy. Upstream lets it review tokens.
    Proxy(&'a Identity),
}

/// The checks of tokens that need no review.
pub(super) struct LocalChecks {
    /// Refuses tokens.
    pub(super) inspection: Option<TokenInspection>,
    /// Accepts tokens that upstream accepted before, or another one of their kind.
    pub(super) service_accounts: Option<ServiceAccounts>,
}

impl Authenticator {
    pub(super) fn new(
        client: UpstreamClient,
        config: AuthenticationConfig,
        checks: LocalChecks,
        timeline: Timeline,
        queues: ReviewQueues,
    ) -> Self {
        let verdicts = Cache::builder()
            .max_capacity(MAX_TOKENS)
            .expire_after(TokenExpiry {
                reviewed: config.token_ttl,
            })
            .build();
        Self {
            client,
            config,
            anonymous: Arc::new(Identity::anonymous()),
            tokens: KnownTokens::new(timeline.clone()),
            timeline,
            verdicts,
            reviews: JoinedCalls::default(),
            checks,
            queues,
            refusals: RefusedTokens::default(),
        }
    }

    /// Returns `true` if reviews of other proxies are answered here: most of them take no review by upstream.
    pub(super) fn answers_proxies(&self) -> bool {
        self.checks.service_accounts.is_some() && self.config.audiences.is_empty()
    }

    /// Returns the user of a token that another proxy asks about, or `None` if upstream refuses it.
    pub(super) async fn user_for_proxy(
        &self,
        token: &str,
        proxy: &Identity,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let found = self.find_out(self.tokens.credential(token), token, Asker::Proxy(proxy));
        Ok(found.await?.user())
    }

    /// Returns the user of the token in these headers, whatever else they contain; `None` if upstream
    /// knows none.
    ///
    /// For counting only: other headers can give the request another identity.
    pub async fn bearer(self: &Arc<Self>, headers: &HeaderMap, address: IpAddr) -> TokenVerdict {
        match any_bearer_token(headers) {
            Some(token) => self.verdict(token, headers, address).await,
            None => Ok(None),
        }
    }

    /// Returns whose the token in these headers is, whatever else they contain.
    pub(super) async fn by_token(
        self: &Arc<Self>,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        let token = any_bearer_token(headers).map(str::to_owned);
        let Some(token) = token.or_else(|| websocket_token::token(headers)) else {
            return Ok(Authenticated::Unknown);
        };
        let user = self.verdict(&token, headers, address).await?;
        Ok(match user {
            Some(user) => Authenticated::Known(user),
            // It may be for another audience, which upstream accepts.
            None if !self.config.audiences.is_empty() => Authenticated::Unknown,
            None => Authenticated::Refused,
        })
    }

    /// Returns `true` if an unknown token from this address may be tried at upstream.
    pub(super) fn may_try(&self, address: IpAddr) -> bool {
        self.refusals.are_left(address)
    }

    /// Returns the bearer token that upstream would read in these headers.
    pub(super) fn credential(&self, headers: &HeaderMap) -> Option<Credential> {
        any_bearer_token(headers).map(|token| self.tokens.credential(token))
    }

    /// Returns `true` if upstream accepted a token within the last hour. Grants nothing: it may
    /// have ended since.
    pub(super) fn was_accepted(&self, credential: &Credential) -> bool {
        self.tokens.was_accepted(credential)
    }

    /// Notes that upstream accepted a token with a forwarded request.
    pub(super) fn note_accepted(&self, credential: &Credential) {
        self.tokens.note_answered(credential);
    }

    /// Notes that upstream refused a token of a forwarded request from this address.
    pub(super) async fn note_refused(&self, credential: &Credential, address: IpAddr) {
        let was_accepted = self.was_accepted(credential);
        let is_repeated = self.tokens.note_refused(*credential).await;
        // What is checked locally may not be why it was refused.
        if let Some(accounts) = &self.checks.service_accounts
            && let Some(kind) = self.tokens.kind(credential)
            // Another refusal of this token says no more about others, unless it was accepted meanwhile.
            && (was_accepted || !is_repeated)
        {
            accounts.note_refused_kind(kind);
        }
        self.verdicts.invalidate(credential).await;
        if !was_accepted {
            self.refusals.count(address, is_repeated);
        }
    }

    /// Returns `true` if upstream refused a token lately, and has not accepted it since.
    pub(super) fn was_refused(&self, credential: &Credential) -> bool {
        self.tokens.was_refused(credential) && !self.tokens.was_accepted(credential)
    }

    /// Returns the user of a token that was reviewed within the last hour. Asks nobody.
    pub(super) async fn reviewed_lately(&self, credential: &Credential) -> Option<Arc<Identity>> {
        self.tokens.counted(credential).await
    }

    /// Returns the identity of a request without credentials, if this proxy gives it one.
    pub(super) fn without_credentials(&self, headers: &HeaderMap) -> Option<Arc<Identity>> {
        (self.config.anonymous && has_no_credentials(headers)).then(|| Arc::clone(&self.anonymous))
    }

    /// Identifies the caller of a request with these headers.
    pub async fn authenticate(
        self: &Arc<Self>,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        if self.config.anonymous && has_no_credentials(headers) {
            return Ok(Authenticated::Known(Arc::clone(&self.anonymous)));
        }
        let Some(token) = only_bearer_token(headers) else {
            return Ok(Authenticated::Unknown);
        };
        Ok(self
            .verdict(token, headers, address)
            .await?
            .map_or(Authenticated::Refused, Authenticated::Known))
    }

    /// Returns the user of a token, or `None` if upstream refuses it. The request with these
    /// headers waits for that.
    async fn verdict(
        self: &Arc<Self>,
        token: &str,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> TokenVerdict {
        let credential = self.tokens.credential(token);
        if let Some(verdict) = self.verdicts.get(&credential).await {
            return Ok(verdict.user());
        }
        // Concurrent requests with one token share one review.
        let is_known = self.tokens.was_accepted(&credential);
        let key = (credential, is_known);
        let reviewed = self.reviews.join(&key, || {
            let (this, token) = (Arc::clone(self), token.to_owned());
            async move { this.find_out_once(credential, &token, address).await }.boxed()
        });
        // Boxed, because the future is rare.
        let reviewed = Box::pin(reviewed);
        if is_known {
            return reviewed.await;
        }
        let Some(_share) = self.queues.begin_unknown(address, headers) else {
            return Err(ReviewError::TooManyWaiting.into());
        };
        match timeout(UNKNOWN_WAIT, reviewed).await {
            Ok(reviewed) => reviewed,
            Err(_) => Err(ReviewError::TooManyWaiting.into()),
        }
    }

    /// Finds out the user of a token that nobody else finds out, and caches the verdict.
    async fn find_out_once(
        &self,
        credential: Credential,
        token: &str,
        address: IpAddr,
    ) -> TokenVerdict {
        // The review before this one may just have ended.
        if let Some(verdict) = self.verdicts.get(&credential).await {
            return Ok(verdict.user());
        }
        let found = self.find_out(credential, token, Asker::Bearer(address));
        let verdict = found.await?;
        self.verdicts.insert(credential, verdict.clone()).await;
        // Upstream may have refused it with a forwarded request meanwhile. Then it is reviewed again. Looked at
        // last, so that a refusal that comes now finds what is cached.
        let user = verdict.user();
        if user.is_some() && self.tokens.was_refused(&credential) {
            self.verdicts.invalidate(&credential).await;
        }
        Ok(user)
    }

    async fn find_out(
        &self,
        credential: Credential,
        token: &str,
        asker: Asker<'_>,
    ) -> Result<CachedVerdict, ReviewError> {
        let signed = self.read(credential, token, asker).await;
        let user = self
            .validate_or_review(credential, token, signed.as_ref(), asker)
            .await?;
        if let Some(identity) = &user {
            self.tokens.note_user(credential, identity).await;
        }
        Ok(match (user, signed) {
            (None, _) => CachedVerdict::Refused,
            (Some(user), None) => CachedVerdict::Reviewed(user),
            (Some(user), Some(_)) => CachedVerdict::Checked(user),
        })
    }

    async fn validate_or_review(
        &self,
        credential: Credential,
        token: &str,
        signed: Option<&SignedToken>,
        asker: Asker<'_>,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        if let Some(user) = self.known_user(credential, signed).await {
            return Ok(Some(user));
        }
        if signed.is_none() && matches!(asker, Asker::Proxy(_)) {
            return Err(ReviewError::LeftToUpstream);
        }
        if self.is_invalid(token).await {
            self.tokens.note_refused(credential).await;
            return Ok(None);
        }
        // Thousands of tokens of a kind may arrive together.
        let _first = match (&self.checks.service_accounts, signed) {
            (Some(accounts), Some(signed)) => accounts.begin_review(signed).await,
            _ => None,
        };
        self.review_in_turn(credential, token, signed, asker).await
    }

    /// Reads a token and checks its signature, unless it was refused or its bearer has presented too many bad
    /// ones.
    async fn read(
        &self,
        credential: Credential,
        token: &str,
        asker: Asker<'_>,
    ) -> Option<SignedToken> {
        let accounts = self.checks.service_accounts.as_ref()?;
        if self.tokens.was_refused(&credential) {
            return None;
        }
        if let Asker::Bearer(address) = asker
            && !self.tokens.was_accepted(&credential)
            && !self.refusals.are_left(address)
        {
            return None;
        }
        let signed = accounts.read(token, self.timeline.number()).await;
        let kind = signed.as_ref().map(|signed| signed.kind);
        self.tokens.note_kind(credential, kind);
        signed
    }

    /// Returns the user of a token that is valid, if that is known from an earlier review: of the same token,
    /// or of another one of its kind.
    async fn known_user(
        &self,
        credential: Credential,
        signed: Option<&SignedToken>,
    ) -> Option<Arc<Identity>> {
        let (accounts, signed) = (self.checks.service_accounts.as_ref()?, signed?);
        // It may have been refused since it was read.
        if self.tokens.was_refused(&credential) {
            return None;
        }
        match self.tokens.accepted(&credential).await {
            Some(user) if accounts.is_still_valid(signed, &user) => Some(user),
            _ => accounts.user(signed),
        }
    }

    /// Returns `true` if upstream would certainly refuse a token.
    async fn is_invalid(&self, token: &str) -> bool {
        let Some(inspection) = &self.checks.inspection else {
            return false;
        };
        let defect = inspection.defect(token).await;
        if let Some(defect) = defect {
            metrics::refused_on_inspection(defect.as_str());
        }
        defect.is_some()
    }

    /// Reviews a token when it is its caller's turn, unless its user has become known by then.
    async fn review_in_turn(
        &self,
        credential: Credential,
        token: &str,
        signed: Option<&SignedToken>,
        asker: Asker<'_>,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let review = async |turn: ReviewTurn| match self.known_user(credential, signed).await {
            Some(user) => Ok(Some(user)),
            None => turn.run(self.review(credential, token, signed)).await,
        };
        let counted = |turn: Result<ReviewTurn, ReviewError>| {
            turn.inspect_err(|error| metrics::not_sent("tokenreview", error))
        };
        let address = match asker {
            Asker::Proxy(proxy) => {
                return review(counted(self.queues.of_users_token(proxy).await)?).await;
            }
            Asker::Bearer(address) => address,
        };
        if let Some(identity) = self.tokens.counted(&credential).await {
            return review(counted(self.queues.of_users_token(&identity).await)?).await;
        }
        if self.tokens.was_answered(&credential) {
            return review(counted(self.queues.of_known_token(address).await)?).await;
        }
        // Looked at before the turn as well: whoever has no refusal left need not wait for it.
        if !self.refusals.are_left(address) {
            return self.without_review(credential);
        }
        let turn = self.queues.of_unknown_token(address).await;
        let Some(charge) = self.refusals.take(address) else {
            return self.without_review(credential);
        };
        let was_refused = self.tokens.was_refused(&credential);
        let verdict = review(turn).await;
        if matches!(verdict, Ok(None)) {
            charge.refused(was_refused);
        } else {
            charge.give_back();
        }
        verdict
    }

    /// Returns the verdict on a token that may not be reviewed now. One that upstream refused
    /// lately is still refused, in upstream's words.
    fn without_review(&self, credential: Credential) -> Result<Option<Arc<Identity>>, ReviewError> {
        if self.tokens.was_refused(&credential) {
            Ok(None)
        } else {
            Err(ReviewError::TooManyRefusals)
        }
    }

    /// Reviews a token, and remembers the verdict.
    async fn review(
        &self,
        credential: Credential,
        token: &str,
        signed: Option<&SignedToken>,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let asked = Instant::now();
        let verdict = self.ask(credential, token).await?;
        let accounts = self.checks.service_accounts.as_ref();
        let known = accounts.zip(signed);
        let Some(user) = &verdict else {
            self.tokens.note_refused(credential).await;
            if let Some((accounts, signed)) = known {
                accounts.note_refused(signed);
            }
            return Ok(None);
        };
        let noted = self
            .tokens
            .note_accepted(credential, user, asked, accounts.is_some());
        if noted.await
            && let Some((accounts, signed)) = known
        {
            accounts.note_accepted(signed, user, asked);
        }
        Ok(verdict)
    }

    /// Asks upstream for the user of a token.
    ///
    /// A proxy that validates tokens itself wants upstream's own word, so that the times for which a review
    /// counts do not add up from proxy to proxy.
    async fn ask(
        &self,
        credential: Credential,
        token: &str,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let audiences = Some(&self.config.audiences).filter(|audiences| !audiences.is_empty());
        let review = token_review(token.to_owned(), audiences.cloned());
        let takes_short_form = self.checks.service_accounts.is_none()
            && audiences.is_none()
            && service_account::is_bound(token)
            && !self.tokens.was_refused(&credential);
        let review: TokenReview = if takes_short_form {
            verdict_form::ask_for_user(&self.client, &review).await?
        } else {
            post(&self.client, ReviewType::Token.path(), &review, JSON).await?
        };
        let status = review.status.ok_or_else(ReviewError::without_status)?;
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        // An authenticator that does not know audiences returns none. Then the token is valid for
        // upstream only.
        // Source: `authentication/v1/types.go` (TokenReviewStatus).
        if let Some(wanted) = audiences {
            let given = status.audiences.unwrap_or_default();
            if !given.iter().any(|audience| wanted.contains(audience)) {
                tracing::debug!(?given, "a token is for other audiences (--api-audiences)");
                return Ok(None);
            }
        }
        Ok(identity(status.user.unwrap_or_default()).map(Arc::new))
    }
}

impl CachedVerdict {
    fn user(self) -> Option<Arc<Identity>> {
        match self {
            Self::Refused => None,
            Self::Reviewed(user) | Self::Checked(user) => Some(user),
        }
    }
}

/// The lifetimes of verdicts.
struct TokenExpiry {
    reviewed: Duration,
}

impl Expiry<Credential, CachedVerdict> for TokenExpiry {
    fn expire_after_create(
        &self,
        _: &Credential,
        verdict: &CachedVerdict,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(match verdict {
            CachedVerdict::Refused => REFUSED_TTL,
            CachedVerdict::Reviewed(_) => self.reviewed,
            CachedVerdict::Checked(_) => self.reviewed.min(CHECKED_TTL),
        })
    }
}

#[cfg(test)]
mod tests;
