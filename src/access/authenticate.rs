//! Identifies callers: here those with a bearer token, by TokenReview, and anonymous ones.
//! `certificate` and `front_proxy` identify the others.
pub(super) mod bearer_token;
pub(super) mod certificate;
pub(super) mod front_proxy;
pub(super) mod refused_tokens;
pub(super) mod service_account;
pub(super) mod token_inspection;
pub(super) mod token_issuer;
pub(super) mod websocket_token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use moka::Expiry;
use moka::future::Cache;
use tokio::time::timeout;

use super::config::AuthenticationConfig;
use super::error::ReviewError;
use super::identity::Identity;
use super::metrics;
use super::review::{JSON, identity, post};
use super::review_queues::{ReviewQueues, UNKNOWN_WAIT};
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;
use bearer_token::{any_bearer_token, has_no_credentials, only_bearer_token};
use refused_tokens::RefusedTokens;
use service_account::ServiceAccounts;
use token_inspection::TokenInspection;

/// Time for which a refused token stays refused. It keeps a client in a retry loop off upstream.
const REFUSED_TTL: Duration = Duration::from_secs(2);
/// Time after which an accepted token is reviewed again, even if it can be validated locally.
const ACCEPTED_TTL: Duration = Duration::from_hours(1);
/// Limit of cached tokens.
const MAX_TOKENS: u64 = 100_000;
/// Limit of tokens whose users are remembered for counting.
const MAX_COUNTED: u64 = MAX_TOKENS;
/// Time for which another refusal of the same token counts as a repetition.
const REFUSED_LATELY: Duration = Duration::from_mins(10);

/// Limit of tokens that are known from answers of upstream.
const MAX_ACCEPTED_FORWARDS: u64 = 100_000;

/// The bearer token of a request, for looking up what is known of it. Not the token itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credential(TokenHash);

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

/// Reviews tokens and caches the verdicts for a short time.
pub struct Authenticator {
    client: UpstreamClient,
    config: AuthenticationConfig,
    anonymous: Arc<Identity>,
    /// Verdicts of an earlier timeline of upstream's versions are not used.
    timeline: Timeline,
    /// The key of the token hashes, random in each process. Tokens themselves are never stored.
    key: [u8; 32],
    verdicts: Cache<TokenHash, Option<Arc<Identity>>>,
    checks: LocalChecks,
    /// The users of accepted tokens, for as long as the tokens may be validated locally.
    accepted: Cache<TokenHash, Arc<Identity>>,
    /// The users of tokens accepted lately. For counting only: the tokens may have expired.
    counted: Cache<TokenHash, Arc<Identity>>,
    /// Tokens with which upstream lately answered forwarded requests. Nothing is granted by them.
    answered: moka::sync::Cache<TokenHash, ()>,
    queues: ReviewQueues,
    refusals: RefusedTokens,
    /// Tokens that were refused lately. For counting only.
    refused: moka::sync::Cache<TokenHash, ()>,
}

/// The checks of tokens that need no review.
pub(super) struct LocalChecks {
    /// Refuses tokens.
    pub(super) inspection: Option<TokenInspection>,
    /// Accepts tokens that upstream accepted before.
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
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the operating system gives random bytes");
        let expiry = TokenExpiry {
            accepted: config.token_ttl,
        };
        let verdicts = Cache::builder()
            .max_capacity(MAX_TOKENS)
            .expire_after(expiry)
            .build();
        let accepted = Cache::builder()
            .max_capacity(MAX_TOKENS)
            .time_to_live(ACCEPTED_TTL)
            .build();
        let counted = Cache::builder()
            .max_capacity(MAX_COUNTED)
            .time_to_live(ACCEPTED_TTL)
            .build();
        let answered = moka::sync::Cache::builder()
            .max_capacity(MAX_ACCEPTED_FORWARDS)
            .time_to_live(ACCEPTED_TTL)
            .build();
        let refused = moka::sync::Cache::builder()
            .max_capacity(MAX_TOKENS)
            .time_to_live(REFUSED_LATELY)
            .build();
        Self {
            client,
            config,
            anonymous: Arc::new(Identity::anonymous()),
            timeline,
            key,
            verdicts,
            checks,
            accepted,
            counted,
            answered,
            queues,
            refusals: RefusedTokens::default(),
            refused,
        }
    }

    /// Returns the user of the token in these headers, whatever else they contain; `None` if upstream
    /// knows none.
    ///
    /// For counting only: other headers can give the request another identity.
    pub async fn bearer(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Option<Arc<Identity>>, Arc<ReviewError>> {
        match any_bearer_token(headers) {
            Some(token) => self.verdict(token, headers, address).await,
            None => Ok(None),
        }
    }

    /// Returns whose the token in these headers is, whatever else they contain.
    pub(super) async fn by_token(
        &self,
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
        any_bearer_token(headers).map(|token| Credential(self.hash(token)))
    }

    /// Returns `true` if upstream accepted a token within the last hour. Grants nothing: it may
    /// have ended since.
    pub(super) fn was_accepted(&self, credential: &Credential) -> bool {
        self.counted.contains_key(&credential.0) || self.answered.contains_key(&credential.0)
    }

    /// Notes that upstream accepted a token with a forwarded request.
    pub(super) fn note_accepted(&self, credential: &Credential) {
        if !self.was_accepted(credential) {
            self.answered.insert(credential.0, ());
        }
    }

    /// Notes that upstream refused a token of a forwarded request from this address.
    pub(super) async fn note_refused(&self, credential: &Credential, address: IpAddr) {
        if self.was_accepted(credential) {
            self.forget(&credential.0).await;
            // What is checked locally may not be why it was refused.
            self.accepted.invalidate(&credential.0).await;
            self.verdicts.invalidate(&credential.0).await;
        } else {
            let is_repeated = self.remember_refusal(credential.0);
            self.refusals.count(address, is_repeated);
        }
    }

    /// Returns `true` if upstream refused a token lately, and has not accepted it since.
    pub(super) fn was_refused(&self, credential: &Credential) -> bool {
        self.refused.contains_key(&credential.0) && !self.was_accepted(credential)
    }

    /// Remembers that a token was refused. Returns `true` if it was lately.
    fn remember_refusal(&self, hash: TokenHash) -> bool {
        let was_refused = self.refused.contains_key(&hash);
        self.refused.insert(hash, ());
        was_refused
    }

    async fn forget(&self, hash: &TokenHash) {
        self.answered.invalidate(hash);
        self.counted.invalidate(hash).await;
    }

    /// Returns the user of a token that was reviewed within the last hour. Asks nobody.
    pub(super) async fn reviewed_lately(&self, credential: &Credential) -> Option<Arc<Identity>> {
        self.counted.get(&credential.0).await
    }

    /// Returns the identity of a request without credentials, if this proxy gives it one.
    pub(super) fn without_credentials(&self, headers: &HeaderMap) -> Option<Arc<Identity>> {
        (self.config.anonymous && has_no_credentials(headers)).then(|| Arc::clone(&self.anonymous))
    }

    /// Identifies the caller of a request with these headers.
    pub async fn authenticate(
        &self,
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

    /// Returns the hash of a token, which is another one in each timeline. So nothing that was
    /// found out in an earlier one is found again, not even by a review that is under way.
    fn hash(&self, token: &str) -> TokenHash {
        let mut key = self.key;
        for (byte, part) in key.iter_mut().zip(self.timeline.number().to_le_bytes()) {
            *byte ^= part;
        }
        *blake3::keyed_hash(&key, token.as_bytes()).as_bytes()
    }

    /// Returns the user of a token, or `None` if upstream refuses it. The request with these
    /// headers waits for that.
    async fn verdict(
        &self,
        token: &str,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Option<Arc<Identity>>, Arc<ReviewError>> {
        let hash = self.hash(token);
        if let Some(verdict) = self.verdicts.get(&hash).await {
            return Ok(verdict);
        }
        // Concurrent requests with one token share one review. Boxed, because the future is large
        // and rare.
        let review = Box::pin(self.find_out(hash, token, address));
        let reviewed = Box::pin(self.verdicts.try_get_with(hash, review));
        if self.was_accepted(&Credential(hash)) {
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

    async fn find_out(
        &self,
        hash: TokenHash,
        token: &str,
        address: IpAddr,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let verdict = self.validate_or_review(hash, token, address).await?;
        match &verdict {
            Some(identity) => self.counted.insert(hash, Arc::clone(identity)).await,
            None => self.forget(&hash).await,
        }
        Ok(verdict)
    }

    async fn validate_or_review(
        &self,
        hash: TokenHash,
        token: &str,
        address: IpAddr,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        if let Some(service_accounts) = &self.checks.service_accounts
            && let Some(identity) = self.accepted.get(&hash).await
            && service_accounts.is_still_valid(token, &identity).await
        {
            return Ok(Some(identity));
        }
        let verdict = if self.is_invalid(token).await {
            self.remember_refusal(hash);
            None
        } else {
            let reviewed = self.review_in_turn(hash, token, address).await;
            reviewed.inspect_err(|error| metrics::given_up("tokenreview", error))?
        };
        if self.checks.service_accounts.is_some() {
            match &verdict {
                Some(identity) => self.accepted.insert(hash, Arc::clone(identity)).await,
                None => self.accepted.invalidate(&hash).await,
            }
        }
        Ok(verdict)
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

    /// Reviews a token when it is its caller's turn.
    async fn review_in_turn(
        &self,
        hash: TokenHash,
        token: &str,
        address: IpAddr,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        if let Some(identity) = self.counted.get(&hash).await {
            let turn = self.queues.of_users_token(&identity).await?;
            return turn.run(self.review(token)).await;
        }
        if self.answered.contains_key(&hash) {
            let turn = self.queues.of_known_token(address).await?;
            return turn.run(self.review(token)).await;
        }
        // Looked at before the turn as well: whoever has no refusal left need not wait for it.
        if !self.refusals.are_left(address) {
            return self.without_review(hash);
        }
        let turn = self.queues.of_unknown_token(address).await;
        let Some(charge) = self.refusals.take(address) else {
            return self.without_review(hash);
        };
        let verdict = turn.run(self.review(token)).await;
        if matches!(verdict, Ok(None)) {
            charge.refused(self.remember_refusal(hash));
        } else {
            charge.give_back();
        }
        verdict
    }

    /// Returns the verdict on a token that may not be reviewed now. One that upstream refused
    /// lately is still refused, in upstream's words.
    fn without_review(&self, hash: TokenHash) -> Result<Option<Arc<Identity>>, ReviewError> {
        if self.refused.contains_key(&hash) {
            Ok(None)
        } else {
            Err(ReviewError::TooManyRefusals)
        }
    }

    async fn review(&self, token: &str) -> Result<Option<Arc<Identity>>, ReviewError> {
        let audiences = Some(&self.config.audiences).filter(|audiences| !audiences.is_empty());
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: audiences.cloned(),
            },
            ..TokenReview::default()
        };
        let review: TokenReview = post(
            &self.client,
            "/apis/authentication.k8s.io/v1/tokenreviews",
            &review,
            JSON,
        )
        .await?;
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

type TokenHash = [u8; 32];

struct TokenExpiry {
    accepted: Duration,
}

impl Expiry<TokenHash, Option<Arc<Identity>>> for TokenExpiry {
    fn expire_after_create(
        &self,
        _: &TokenHash,
        verdict: &Option<Arc<Identity>>,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(if verdict.is_some() {
            self.accepted
        } else {
            REFUSED_TTL
        })
    }
}
