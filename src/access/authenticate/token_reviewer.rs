//! Finds out the users of tokens: by validation here where that is possible, and by TokenReview at upstream.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::authentication::v1::TokenReview;

use super::known_tokens::{Credential, KnownTokens};
use super::refused_tokens::RefusedTokens;
use super::service_account::{self, ServiceAccounts, SignedToken};
use super::token_inspection::TokenInspection;
use crate::access::config::AuthenticationConfig;
use crate::access::error::ReviewError;
use crate::access::identity::Identity;
use crate::access::metrics;
use crate::access::reviews::queues::{ReviewQueues, ReviewTurn};
use crate::access::reviews::sending::{JSON, identity, post, token_review};
use crate::access::reviews::verdict_form::{self, ReviewType};
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;

/// Finds out the users of tokens. Caches no verdicts, but remembers what upstream said of tokens.
pub(super) struct TokenReviewer {
    pub(super) client: UpstreamClient,
    pub(super) config: AuthenticationConfig,
    /// The number of a timeline is part of the kind of a token.
    pub(super) timeline: Timeline,
    pub(super) checks: LocalChecks,
    pub(super) tokens: KnownTokens,
    pub(super) queues: ReviewQueues,
    pub(super) refusals: RefusedTokens,
}

impl TokenReviewer {
    /// Finds out the user of a token.
    pub(super) async fn find_out(
        &self,
        mut token: PresentedToken<'_>,
    ) -> Result<CachedVerdict, ReviewError> {
        token.signed = self.read(&token).await;
        let user = self.validate_or_review(&token).await?;
        if let Some(identity) = &user {
            self.tokens.note_user(token.credential, identity).await;
        }
        Ok(match (user, &token.signed) {
            (None, _) => CachedVerdict::Refused,
            (Some(user), None) => CachedVerdict::Reviewed(user),
            (Some(user), Some(_)) => CachedVerdict::Checked(user),
        })
    }

    async fn validate_or_review(
        &self,
        token: &PresentedToken<'_>,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        if let Some(user) = self.known_user(token).await {
            return Ok(Some(user));
        }
        if token.signed.is_none() && matches!(token.asker, Asker::Proxy(_)) {
            return Err(ReviewError::LeftToUpstream);
        }
        if self.is_invalid(token.text).await {
            self.tokens.note_refused(token.credential).await;
            return Ok(None);
        }
        // Thousands of tokens of a kind may arrive together.
        let _first = match (&self.checks.service_accounts, &token.signed) {
            (Some(accounts), Some(signed)) => accounts.begin_review(signed).await,
            _ => None,
        };
        self.review_in_turn(token).await
    }

    /// Reads a token and checks its signature, unless it was refused or its bearer has presented too many bad
    /// ones.
    async fn read(&self, token: &PresentedToken<'_>) -> Option<SignedToken> {
        let accounts = self.checks.service_accounts.as_ref()?;
        if self.tokens.was_refused(&token.credential) {
            return None;
        }
        if let Asker::Bearer(address) = token.asker
            && !self.tokens.was_accepted(&token.credential)
            && !self.refusals.are_left(address)
        {
            return None;
        }
        let signed = accounts.read(token.text, self.timeline.number()).await;
        let kind = signed.as_ref().map(|signed| signed.kind);
        self.tokens.note_kind(token.credential, kind);
        signed
    }

    /// Returns the user of a token that is valid, if that is known from an earlier review: of the same token,
    /// or of another one of its kind.
    async fn known_user(&self, token: &PresentedToken<'_>) -> Option<Arc<Identity>> {
        let accounts = self.checks.service_accounts.as_ref()?;
        let signed = token.signed.as_ref()?;
        // It may have been refused since it was read.
        if self.tokens.was_refused(&token.credential) {
            return None;
        }
        match self.tokens.accepted(&token.credential).await {
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
        token: &PresentedToken<'_>,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let review = async |turn: ReviewTurn| match self.known_user(token).await {
            Some(user) => Ok(Some(user)),
            None => turn.run(self.review(token)).await,
        };
        let counted = |turn: Result<ReviewTurn, ReviewError>| {
            turn.inspect_err(|error| metrics::not_sent(ReviewType::Token.endpoint().kind, error))
        };
        let address = match token.asker {
            Asker::Proxy(proxy) => {
                return review(counted(self.queues.of_users_token(proxy).await)?).await;
            }
            Asker::Bearer(address) => address,
        };
        if let Some(identity) = self.tokens.counted(&token.credential).await {
            return review(counted(self.queues.of_users_token(&identity).await)?).await;
        }
        if self.tokens.was_answered(&token.credential) {
            return review(counted(self.queues.of_known_token(address).await)?).await;
        }
        // Looked at before the turn as well: whoever has no refusal left need not wait for it.
        if !self.refusals.are_left(address) {
            return self.without_review(token.credential);
        }
        let turn = self.queues.of_unknown_token(address).await;
        let Some(charge) = self.refusals.take(address) else {
            return self.without_review(token.credential);
        };
        let was_refused = self.tokens.was_refused(&token.credential);
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
        token: &PresentedToken<'_>,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let asked = Instant::now();
        let verdict = self.ask(token).await?;
        let accounts = self.checks.service_accounts.as_ref();
        let known = accounts.zip(token.signed.as_ref());
        let Some(user) = &verdict else {
            self.tokens.note_refused(token.credential).await;
            if let Some((accounts, signed)) = known {
                accounts.note_refused(signed);
            }
            return Ok(None);
        };
        let noted = self
            .tokens
            .note_accepted(token.credential, user, asked, accounts.is_some());
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
    async fn ask(&self, token: &PresentedToken<'_>) -> Result<Option<Arc<Identity>>, ReviewError> {
        let audiences = Some(&self.config.audiences).filter(|audiences| !audiences.is_empty());
        let review = token_review(token.text.to_owned(), audiences.cloned());
        let takes_short_form = self.checks.service_accounts.is_none()
            && audiences.is_none()
            && service_account::is_bound(token.text)
            && !self.tokens.was_refused(&token.credential);
        let review: TokenReview = if takes_short_form {
            verdict_form::ask_for_user(&self.client, &review).await?
        } else {
            post(&self.client, ReviewType::Token.endpoint(), &review, JSON).await?
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

/// The checks of tokens that need no review.
pub(in crate::access) struct LocalChecks {
    /// Refuses tokens.
    pub(in crate::access) inspection: Option<TokenInspection>,
    /// Accepts tokens that upstream accepted before, or another one of their kind.
    pub(in crate::access) service_accounts: Option<ServiceAccounts>,
}

/// A token whose user is asked for.
pub(super) struct PresentedToken<'a> {
    credential: Credential,
    text: &'a str,
    /// The token as it was read; `None` if only upstream can tell whether it is valid.
    signed: Option<SignedToken>,
    asker: Asker<'a>,
}

impl<'a> PresentedToken<'a> {
    /// Creates a token that was not read yet.
    pub(super) fn new(credential: Credential, text: &'a str, asker: Asker<'a>) -> Self {
        Self {
            credential,
            text,
            signed: None,
            asker,
        }
    }
}

/// The one that wants to know the user of a token.
#[derive(Clone, Copy)]
pub(super) enum Asker<'a> {
    /// Its bearer, at this address.
    Bearer(IpAddr),
    /// Another proxy. Upstream lets it review tokens.
    Proxy(&'a Identity),
}

/// A verdict on a token, as it is cached.
#[derive(Clone, Debug)]
pub(super) enum CachedVerdict {
    Refused,
    /// Only a review tells more.
    Reviewed(Arc<Identity>),
    /// The end of the token is noticed here.
    Checked(Arc<Identity>),
}

impl CachedVerdict {
    /// Returns the user of the token, or `None` if it is refused.
    pub(super) fn user(self) -> Option<Arc<Identity>> {
        match self {
            Self::Refused => None,
            Self::Reviewed(user) | Self::Checked(user) => Some(user),
        }
    }
}
