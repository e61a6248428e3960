//! Callers with credentials of their own: bearer tokens, by TokenReview, and those without any.
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use moka::Expiry;
use moka::future::Cache;

use super::review::{ReviewError, identity, post};
use super::service_account::ServiceAccounts;
use super::{Identity, impersonate};
use crate::upstream::UpstreamClient;

/// How long a refused one is refused without asking: keeps a client in a retry loop off upstream.
const REFUSED: Duration = Duration::from_secs(2);
/// A token that is good for longer is reviewed again after this, whatever can be seen here.
const LOOKED_AT_HERE: Duration = Duration::from_hours(1);
const MAX_TOKENS: u64 = 100_000;
/// Tokens whose users are known for counting.
const MAX_COUNTED: u64 = 20_000;
/// A token longer than this is not reviewed here but forwarded.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// How callers are known.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a token that was accepted is not reviewed again
    /// (`--authentication-token-webhook-cache-ttl`).
    pub token_ttl: Duration,
    /// The audiences of which a token must be for one (`--api-audiences`); upstream's own if there
    /// are none.
    pub audiences: Vec<String>,
    /// Tokens of service accounts that were accepted once are not reviewed again while they can be
    /// seen to be good (`--validate-service-account-tokens-locally`).
    pub validate_locally: bool,
    /// Whoever shows no credentials is `system:anonymous` (`--anonymous-auth`); else upstream
    /// decides.
    pub anonymous: bool,
}

impl Default for Config {
    fn default() -> Self {
        // Source: kube-apiserver's own token cache (kubeapiserver/options/authentication.go).
        Self {
            token_ttl: Duration::from_secs(10),
            audiences: Vec::new(),
            validate_locally: false,
            anonymous: false,
        }
    }
}

/// What is known of a caller.
#[derive(Clone, Debug)]
pub enum Authenticated {
    /// Upstream knows them.
    As(Arc<Identity>),
    /// Upstream does not accept the token.
    Refused,
    /// There are no credentials this proxy can check: upstream decides.
    Unknown,
}

/// Reviews tokens and remembers the verdicts for a short time.
pub struct Authenticator {
    client: UpstreamClient,
    config: Config,
    anonymous: Arc<Identity>,
    /// Tokens are never kept: only a hash of them, keyed anew in each process.
    key: [u8; 32],
    verdicts: Cache<[u8; 32], Option<Arc<Identity>>>,
    locally: Option<ServiceAccounts>,
    /// Whose tokens were that upstream accepted, for as long as they may be looked at here.
    accepted: Cache<[u8; 32], Arc<Identity>>,
    /// Whose tokens were that upstream accepted of late. For counting alone: they may be good no
    /// more.
    counted: Cache<[u8; 32], Arc<Identity>>,
}

struct Lifetime {
    accepted: Duration,
}

impl Expiry<[u8; 32], Option<Arc<Identity>>> for Lifetime {
    fn expire_after_create(
        &self,
        _: &[u8; 32],
        verdict: &Option<Arc<Identity>>,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(if verdict.is_some() {
            self.accepted
        } else {
            REFUSED
        })
    }
}

impl Authenticator {
    pub(super) fn new(
        client: UpstreamClient,
        config: Config,
        locally: Option<ServiceAccounts>,
    ) -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the operating system gives random bytes");
        let lifetime = Lifetime {
            accepted: config.token_ttl,
        };
        let verdicts = Cache::builder()
            .max_capacity(MAX_TOKENS)
            .expire_after(lifetime)
            .build();
        let accepted = Cache::builder()
            .max_capacity(MAX_TOKENS)
            .time_to_live(LOOKED_AT_HERE)
            .build();
        let counted = Cache::builder()
            .max_capacity(MAX_COUNTED)
            .time_to_live(LOOKED_AT_HERE)
            .build();
        let anonymous = Arc::new(impersonate::anonymous());
        Self {
            client,
            config,
            anonymous,
            key,
            verdicts,
            locally,
            accepted,
            counted,
        }
    }

    /// Whose token upstream would take a request with these headers for, whatever else stands in
    /// them; `None` if it has none, or nobody's. For counting: what else stands there may matter
    /// for everything else.
    pub async fn bearer(&self, headers: &HeaderMap) -> Option<Arc<Identity>> {
        self.verdict(shown_token(headers)?).await.ok()?
    }

    /// The same, as far as it was known within the hour: nobody is asked. For counting alone.
    pub async fn remembered(&self, headers: &HeaderMap) -> Option<Arc<Identity>> {
        let Some(token) = shown_token(headers) else {
            return (self.config.anonymous && shows_nothing(headers))
                .then(|| Arc::clone(&self.anonymous));
        };
        self.counted.get(&self.hash(token)).await
    }

    fn hash(&self, token: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.key, token.as_bytes()).as_bytes()
    }

    /// Who sent a request with these headers.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        if self.config.anonymous && shows_nothing(headers) {
            return Ok(Authenticated::As(Arc::clone(&self.anonymous)));
        }
        let Some(token) = bearer_token(headers) else {
            return Ok(Authenticated::Unknown);
        };
        Ok(self
            .verdict(token)
            .await?
            .map_or(Authenticated::Refused, Authenticated::As))
    }

    async fn verdict(&self, token: &str) -> Result<Option<Arc<Identity>>, Arc<ReviewError>> {
        let hash = self.hash(token);
        let verdict = match self.verdicts.get(&hash).await {
            Some(verdict) => verdict,
            // Concurrent reviews of one token share one question. Boxed: it is large and rare.
            None => {
                Box::pin(
                    self.verdicts
                        .try_get_with(hash, Box::pin(self.find_out(hash, token))),
                )
                .await?
            }
        };
        Ok(verdict)
    }

    async fn find_out(
        &self,
        hash: [u8; 32],
        token: &str,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let verdict = self.known_or_reviewed(hash, token).await?;
        if let Some(identity) = &verdict {
            self.counted.insert(hash, Arc::clone(identity)).await;
        }
        Ok(verdict)
    }

    async fn known_or_reviewed(
        &self,
        hash: [u8; 32],
        token: &str,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        let Some(locally) = &self.locally else {
            return self.review(token).await;
        };
        if let Some(identity) = self.accepted.get(&hash).await
            && locally.is_still_good(token, &identity).await
        {
            return Ok(Some(identity));
        }
        let verdict = self.review(token).await?;
        match &verdict {
            Some(identity) => self.accepted.insert(hash, Arc::clone(identity)).await,
            None => self.accepted.invalidate(&hash).await,
        }
        Ok(verdict)
    }

    async fn review(&self, token: &str) -> Result<Option<Arc<Identity>>, ReviewError> {
        let wanted = Some(self.config.audiences.clone()).filter(|audiences| !audiences.is_empty());
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: wanted.clone(),
            },
            ..TokenReview::default()
        };
        let review: TokenReview = post(
            &self.client,
            "/apis/authentication.k8s.io/v1/tokenreviews",
            &review,
        )
        .await?;
        let status = review.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        // An authenticator that knows no audiences says so by naming none, and then the token is
        // upstream's only.
        // Source: `authentication/v1/types.go` (TokenReviewStatus).
        if let Some(wanted) = wanted {
            let given = status.audiences.unwrap_or_default();
            if !given.iter().any(|audience| wanted.contains(audience)) {
                tracing::debug!(?given, "a token is for other audiences (--api-audiences)");
                return Ok(None);
            }
        }
        Ok(identity(status.user.unwrap_or_default()).map(Arc::new))
    }
}

/// As upstream reads it, whatever else stands in the request.
/// Source: `apiserver/pkg/authentication/request/bearertoken/bearertoken.go`.
fn shown_token(headers: &HeaderMap) -> Option<&str> {
    let mut words = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split(' ');
    let (scheme, token) = (words.next()?, words.next()?);
    let usable = scheme.eq_ignore_ascii_case("bearer")
        && !token.is_empty()
        && token.len() <= MAX_TOKEN_BYTES;
    usable.then_some(token)
}

/// The token, when it is the only credential and says so plainly. Whatever else identifies a caller
/// (impersonation, several headers) is upstream's to judge.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    if impersonate::is_asked_for(headers) {
        return None;
    }
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    // Upstream makes something of further spaces; what exactly is not for us to repeat.
    let plain = !token.is_empty() && token.len() <= MAX_TOKEN_BYTES && !token.contains([' ', '\t']);
    (scheme.eq_ignore_ascii_case("bearer") && plain).then_some(token)
}

/// Whether upstream would take a request for an anonymous one.
fn shows_nothing(headers: &HeaderMap) -> bool {
    !headers.contains_key(header::AUTHORIZATION) && !impersonate::is_asked_for(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_a_lone_bearer_token() {
        let token = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(
            token(&[("authorization", "Bearer abc")]),
            Some("abc".into())
        );
        assert_eq!(
            token(&[("authorization", "bearer abc")]),
            Some("abc".into())
        );
        assert_eq!(token(&[("authorization", "Bearer  abc")]), None);
        assert_eq!(token(&[("authorization", "Bearer\tabc")]), None);
        assert_eq!(token(&[("authorization", "Bearer abc\t")]), None);
        assert_eq!(token(&[("authorization", "Basic abc")]), None);
        assert_eq!(token(&[("authorization", "Bearer")]), None);
        assert_eq!(token(&[("authorization", "Bearer a b")]), None);
        assert_eq!(
            token(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]),
            None
        );
        assert_eq!(
            token(&[("authorization", "Bearer a"), ("impersonate-user", "b")]),
            None
        );
        assert_eq!(
            token(&[("authorization", "Bearer a"), ("Impersonate-Extra-X", "b")]),
            None
        );
    }
}
