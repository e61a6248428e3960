//! Limits the requests of each caller, at a time and per second.
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use moka::sync::Cache;
use tokio::time::timeout;

use super::exceeded::LimitExceeded;
use super::limit::Limit;
use super::request_rate::RequestRate;
use crate::access::{Authenticated, Caller, Credential, Identity, ReviewError};
use crate::body::{Body, holding};
use crate::fairness::{CallerKey, Share};
use crate::serve::exchange::Exchange;
use crate::serve::policy::UserLimits;
use watershed_protocol::Verb;

/// Longest wait for a review by which a request would count for its user. It may have to wait for another
/// one, until it is known if it may be answered.
const REVIEW_PATIENCE: Duration = Duration::from_millis(500);
/// Pause after a review failed by which a request would have counted for its user. Meanwhile requests
/// with the token do not wait for one.
const REVIEW_PAUSE: Duration = Duration::from_secs(10);
/// Limit of these tokens.
const MAX_UNDECIDED: u64 = 10_000;

/// Counts the requests of each caller.
pub(in crate::serve) struct Limiter {
    /// Requests that run; `None` without a limit of these.
    running: Option<Limit>,
    /// Requests that start; `None` without a limit of these.
    rate: Option<RequestRate>,
    /// Tokens whose reviews failed or took long a moment ago.
    undecided: Cache<Credential, ()>,
}

/// The span in which a request counts as running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedSpan {
    /// Until its answer is sent.
    Whole,
    /// Until its answer begins.
    Start,
    /// Not at all: followed logs, exec and the like. kube-apiserver does not count them either.
    Never,
}

/// A request that may run, and its shares.
#[derive(Default)]
pub(in crate::serve) struct Admission {
    /// The share of a request that runs. Boxed: few requests need it.
    running: Option<Box<Share>>,
    to_the_end: bool,
    /// The memory of the request, until it is answered.
    pub(in crate::serve) memory: Option<Share>,
}

/// Returns the user of the request's credentials; `None` if upstream knows none.
async fn token_user(exchange: &Exchange<'_>) -> Result<Option<Arc<Identity>>, Arc<ReviewError>> {
    match exchange.identify().await? {
        Authenticated::Known(identity) => Ok(Some(identity)),
        // A caller that upstream knows does not become another by the rest of the request.
        Authenticated::Unknown | Authenticated::Refused
            if matches!(exchange.caller, Caller::WithCredentials) =>
        {
            let (headers, address) = (exchange.headers(), exchange.address());
            let authenticator = &exchange.access.authenticator;
            authenticator.user_of_bearer_token(headers, address).await
        }
        Authenticated::Unknown | Authenticated::Refused => Ok(None),
    }
}

impl Limiter {
    pub(in crate::serve) fn new(limits: UserLimits) -> Self {
        let undecided = Cache::builder()
            .max_capacity(MAX_UNDECIDED)
            .time_to_live(REVIEW_PAUSE)
            .build();
        let running = || Limit::new(LimitExceeded::InFlight, 0, limits.in_flight.into());
        let rate = || RequestRate::new(limits.per_second, limits.burst());
        Self {
            running: (limits.in_flight > 0).then(running),
            rate: (limits.per_second > 0).then(rate),
            undecided,
        }
    }

    /// Admits a request, or returns the limit that it exceeds. `user` is the caller, if it was
    /// reviewed lately. Callers that cannot be identified here count by their address.
    pub(in crate::serve) async fn admit(
        &self,
        exchange: &Exchange<'_>,
        user: Option<Arc<Identity>>,
    ) -> Result<Admission, LimitExceeded> {
        if self.running.is_none() && self.rate.is_none() {
            return Ok(Admission::default());
        }
        // Boxed, because the future is large, and few proxies have such limits.
        let payer = Box::pin(self.payer(exchange, user.clone())).await;
        let counts = match (exchange.plan.verb, exchange.plan.stays_open()) {
            (Verb::Watch, true) => CountedSpan::Start,
            (_, true) => CountedSpan::Never,
            (_, false) => CountedSpan::Whole,
        };
        let running = self.enter(payer, counts, Instant::now());
        let running = running.inspect_err(|_| exchange.record_refused(user.as_ref()))?;
        Ok(Admission {
            running: running.map(Box::new),
            to_the_end: counts == CountedSpan::Whole,
            memory: None,
        })
    }

    /// Returns whom a request counts for: the user whose token was reviewed within the last hour, or
    /// is now. Otherwise, and without credentials, it is the address. After a review that failed or took
    /// long, requests with the token do not wait for another one for a while.
    async fn payer(&self, exchange: &Exchange<'_>, user: Option<Arc<Identity>>) -> CallerKey {
        if let Some(remembered) = user {
            // Not recorded: upstream may refuse the token by now.
            return remembered.caller_key(exchange.address());
        }
        let credential = exchange.credential.as_ref();
        let is_undecided = credential.is_some_and(|token| self.undecided.contains_key(token));
        if !is_undecided {
            match timeout(REVIEW_PATIENCE, token_user(exchange)).await {
                Ok(Ok(Some(identity))) => {
                    exchange.record_identified(&identity);
                    return identity.caller_key(exchange.address());
                }
                Ok(Ok(None)) => {}
                Ok(Err(_)) | Err(_) => {
                    if let Some(token) = credential {
                        self.undecided.insert(*token, ());
                    }
                }
            }
        }
        CallerKey::Address(exchange.address())
    }

    /// Counts a request, and returns its share of those that run.
    fn enter(
        &self,
        caller: CallerKey,
        counts: CountedSpan,
        now: Instant,
    ) -> Result<Option<Share>, LimitExceeded> {
        let limit = self.running.as_ref();
        let limit = limit.filter(|_| counts != CountedSpan::Never);
        let running = limit.map(|limit| limit.take(caller.clone(), 1));
        // First, as a request that may not run does not count as one that starts.
        let running = running.transpose()?;
        if let Some(rate) = &self.rate {
            rate.start(caller, now)?;
        }
        Ok(running)
    }
}

impl Admission {
    /// Ends the share, or ties it to the body if the request counts until its answer is sent.
    pub(in crate::serve) fn answered(self, response: Response<Body>) -> Response<Body> {
        match self.running {
            Some(share) if self.to_the_end => response.map(|body| holding(body, share)),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_at_its_limit_does_not_affect_others() {
        let limiter = Limiter::new(UserLimits {
            in_flight: 2,
            ..UserLimits::default()
        });
        let now = Instant::now();
        let enter = |name: &str, counts| limiter.enter(CallerKey::user(name), counts, now);
        let first = enter("a", CountedSpan::Whole).unwrap();
        let _second = enter("a", CountedSpan::Start).unwrap();
        assert_eq!(
            enter("a", CountedSpan::Whole).err(),
            Some(LimitExceeded::InFlight)
        );
        assert!(
            enter("a", CountedSpan::Never).unwrap().is_none(),
            "logs are not counted"
        );
        assert!(enter("b", CountedSpan::Whole).is_ok());
        drop(first);
        assert!(enter("a", CountedSpan::Whole).is_ok());
    }
}
