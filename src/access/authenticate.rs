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
pub(super) mod token_reviewer;
pub(super) mod websocket_token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::HeaderMap;
use moka::Expiry;
use moka::future::Cache;
use tokio::time::timeout;

use super::config::AuthenticationConfig;
use super::error::ReviewError;
use super::identity::Identity;
use super::reviews::queues::{ReviewQueues, UNKNOWN_WAIT};
use crate::scope::Timeline;
use crate::shared_calls::JoinedCalls;
use crate::upstream::UpstreamClient;
use bearer_token::{any_bearer_token, has_no_credentials, only_bearer_token};
use known_tokens::{KnownTokens, MAX_TOKENS};
use refused_tokens::RefusedTokens;
use token_reviewer::{Asker, CachedVerdict, LocalChecks, PresentedToken, TokenReviewer};

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
    reviewer: TokenReviewer,
    anonymous: Arc<Identity>,
    verdicts: Cache<Credential, CachedVerdict>,
    /// The reviews that run, each with `true` if its token was known when it began. A known token does not wait
    /// among the unknown ones.
    reviews: JoinedCalls<(Credential, bool), TokenVerdict>,
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
            reviewer: TokenReviewer {
                client,
                config,
                tokens: KnownTokens::new(timeline.clone()),
                timeline,
                checks,
                queues,
                refusals: RefusedTokens::default(),
            },
            anonymous: Arc::new(Identity::anonymous()),
            verdicts,
            reviews: JoinedCalls::default(),
        }
    }

    /// Returns `true` if reviews of other proxies are answered here: most of them take no review by upstream.
    pub(super) fn answers_proxies(&self) -> bool {
        let TokenReviewer { checks, config, .. } = &self.reviewer;
        checks.service_accounts.is_some() && config.audiences.is_empty()
    }

    /// Returns the user of a token that another proxy asks about, or `None` if upstream refuses it.
    pub(super) async fn user_for_proxy(
        &self,
        token: &str,
        proxy: &Identity,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let credential = self.reviewer.tokens.credential(token);
        let token = PresentedToken::new(credential, token, Asker::Proxy(proxy));
        Ok(self.reviewer.find_out(token).await?.user())
    }

    /// Returns the user of the bearer token in these headers, whatever else they contain; `None` if upstream
    /// knows none.
    ///
    /// For counting only: other headers can give the request another identity.
    pub async fn user_of_bearer_token(
        self: &Arc<Self>,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> TokenVerdict {
        match any_bearer_token(headers) {
            Some(token) => self.verdict(token, headers, address).await,
            None => Ok(None),
        }
    }

    /// Identifies the caller by the token in these headers, a bearer token or that of a WebSocket, whatever else
    /// they contain.
    pub(super) async fn authenticate_by_any_token(
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
            None if !self.reviewer.config.audiences.is_empty() => Authenticated::Unknown,
            None => Authenticated::Refused,
        })
    }

    /// Returns `true` if an unknown token from this address may be tried at upstream.
    pub(super) fn may_try(&self, address: IpAddr) -> bool {
        self.reviewer.refusals.are_left(address)
    }

    /// Returns the bearer token that upstream would read in these headers.
    pub(super) fn credential(&self, headers: &HeaderMap) -> Option<Credential> {
        any_bearer_token(headers).map(|token| self.reviewer.tokens.credential(token))
    }

    /// Returns `true` if upstream accepted a token within the last hour. Grants nothing: it may
    /// have ended since.
    pub(super) fn was_accepted(&self, credential: &Credential) -> bool {
        self.reviewer.tokens.was_accepted(credential)
    }

    /// Notes that upstream accepted a token with a forwarded request.
    pub(super) fn note_accepted(&self, credential: &Credential) {
        self.reviewer.tokens.note_answered(credential);
    }

    /// Notes that upstream refused a token of a forwarded request from this address.
    pub(super) async fn note_refused(&self, credential: &Credential, address: IpAddr) {
        let TokenReviewer {
            checks,
            tokens,
            refusals,
            ..
        } = &self.reviewer;
        let was_accepted = tokens.was_accepted(credential);
        let is_repeated = tokens.note_refused(*credential).await;
        // What is checked locally may not be why it was refused.
        if let Some(accounts) = &checks.service_accounts
            && let Some(kind) = tokens.kind(credential)
            // Another refusal of this token says no more about others, unless it was accepted meanwhile.
            && (was_accepted || !is_repeated)
        {
            accounts.note_refused_kind(kind);
        }
        self.verdicts.invalidate(credential).await;
        if !was_accepted {
            refusals.count(address, is_repeated);
        }
    }

    /// Returns `true` if upstream refused a token lately, and has not accepted it since.
    pub(super) fn was_refused(&self, credential: &Credential) -> bool {
        let tokens = &self.reviewer.tokens;
        tokens.was_refused(credential) && !tokens.was_accepted(credential)
    }

    /// Returns the user of a token that was reviewed within the last hour. Asks nobody.
    pub(super) async fn reviewed_lately(&self, credential: &Credential) -> Option<Arc<Identity>> {
        self.reviewer.tokens.counted(credential).await
    }

    /// Returns the identity of a request without credentials, if this proxy gives it one.
    pub(super) fn without_credentials(&self, headers: &HeaderMap) -> Option<Arc<Identity>> {
        (self.reviewer.config.anonymous && has_no_credentials(headers))
            .then(|| Arc::clone(&self.anonymous))
    }

    /// Identifies the caller of a request with these headers.
    pub async fn authenticate(
        self: &Arc<Self>,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        if self.reviewer.config.anonymous && has_no_credentials(headers) {
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
        let TokenReviewer { tokens, queues, .. } = &self.reviewer;
        let credential = tokens.credential(token);
        if let Some(verdict) = self.verdicts.get(&credential).await {
            return Ok(verdict.user());
        }
        // Concurrent requests with one token share one review.
        let is_known = tokens.was_accepted(&credential);
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
        let Some(_share) = queues.begin_unknown(address, headers) else {
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
        let token = PresentedToken::new(credential, token, Asker::Bearer(address));
        let verdict = self.reviewer.find_out(token).await?;
        self.verdicts.insert(credential, verdict.clone()).await;
        // Upstream may have refused it with a forwarded request meanwhile. Then it is reviewed again. Looked at
        // last, so that a refusal that comes now finds what is cached.
        let user = verdict.user();
        if user.is_some() && self.reviewer.tokens.was_refused(&credential) {
            self.verdicts.invalidate(&credential).await;
        }
        Ok(user)
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
