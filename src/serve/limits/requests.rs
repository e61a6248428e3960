//! Limits the requests of each caller, at a time and per second.
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use moka::sync::Cache;
use parking_lot::Mutex;

use super::exceeded::LimitExceeded;
use crate::access::{Authenticated, Caller, Credential, Identity, ReviewError};
use crate::body::{Body, holding};
use crate::fairness::Share;
use crate::serve::exchange::Exchange;
use crate::serve::policy::UserLimits;
use watershed_protocol::Verb;

/// Callers counted at a time. When the table is full, all others share one entry.
const MAX_CALLERS: usize = 100_000;
/// Interval between sweeps for callers that do nothing.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a review failed by which a request would have counted for its user. Meanwhile requests
/// with the token do not wait for one.
const REVIEW_PAUSE: Duration = Duration::from_secs(10);
/// Limit of the tokens whose reviews failed.
const MAX_UNDECIDED: u64 = 10_000;

/// Counts the requests of each caller.
pub(in crate::serve) struct Limiter {
    limits: UserLimits,
    /// Tokens whose reviews failed a moment ago.
    undecided: Cache<Credential, ()>,
    table: Arc<Mutex<LimitTable>>,
}

struct LimitTable {
    known: HashMap<LimitKey, CallerBudget>,
    most: usize,
    swept: Instant,
}

/// The caller that a request counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LimitKey {
    User(String),
    /// A caller without credentials that are checked here.
    Address(IpAddr),
    /// All callers beyond the size of the table.
    Others,
}

struct CallerBudget {
    running: u32,
    /// Requests that may start now.
    left: f64,
    at: Instant,
}

/// Permission of a request to run. Counts until it is dropped.
pub(in crate::serve) struct RequestPermit {
    table: Arc<Mutex<LimitTable>>,
    caller: LimitKey,
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

/// A request that may run, and its permit.
#[derive(Default)]
pub(in crate::serve) struct Admission {
    /// Boxed: few requests need it.
    permit: Option<Box<RequestPermit>>,
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
        let table = LimitTable {
            known: HashMap::new(),
            most: MAX_CALLERS,
            swept: Instant::now(),
        };
        let undecided = Cache::builder()
            .max_capacity(MAX_UNDECIDED)
            .time_to_live(REVIEW_PAUSE)
            .build();
        Self {
            limits,
            undecided,
            table: Arc::new(Mutex::new(table)),
        }
    }

    /// Admits a request, or returns the limit that it exceeds. `user` is the caller, if it was
    /// reviewed lately. Callers that cannot be identified here count by their address.
    pub(in crate::serve) async fn admit(
        &self,
        exchange: &Exchange<'_>,
        user: Option<Arc<Identity>>,
    ) -> Result<Admission, LimitExceeded> {
        if self.limits.is_off() {
            return Ok(Admission::default());
        }
        // Boxed, because the future is large, and few proxies have such limits.
        let payer = Box::pin(self.payer(exchange, user.clone())).await;
        let counts = match (exchange.plan.verb, exchange.plan.stays_open()) {
            (Verb::Watch, true) => CountedSpan::Start,
            (_, true) => CountedSpan::Never,
            (_, false) => CountedSpan::Whole,
        };
        let permit = self.enter(payer, counts, Instant::now());
        let permit = permit.inspect_err(|_| exchange.record_refused(user.as_ref()))?;
        Ok(Admission {
            permit: permit.map(Box::new),
            to_the_end: counts == CountedSpan::Whole,
            memory: None,
        })
    }

    /// Returns whom a request counts for: the user whose token was reviewed within the last hour, or
    /// is now. Otherwise it is the address. After a review that failed, requests with the token do
    /// not wait for another one for a while.
    async fn payer(&self, exchange: &Exchange<'_>, user: Option<Arc<Identity>>) -> LimitKey {
        if let Some(remembered) = user {
            // Not recorded: upstream may refuse the token by now.
            return LimitKey::User(remembered.user.clone());
        }
        let credential = exchange.credential.as_ref();
        let is_undecided = credential.is_some_and(|token| self.undecided.contains_key(token));
        if !is_undecided {
            match token_user(exchange).await {
                Ok(Some(identity)) => {
                    exchange.record_identified(&identity);
                    return LimitKey::User(identity.user.clone());
                }
                Ok(None) => {}
                Err(_) => {
                    if let Some(token) = credential {
                        self.undecided.insert(*token, ());
                    }
                }
            }
        }
        LimitKey::Address(exchange.address())
    }

    fn enter(
        &self,
        caller: LimitKey,
        counts: CountedSpan,
        now: Instant,
    ) -> Result<Option<RequestPermit>, LimitExceeded> {
        let limits = self.limits;
        let mut table = self.table.lock();
        let caller = table.key_of(caller, limits, now);
        let usage = table
            .known
            .entry(caller.clone())
            .or_insert_with(|| CallerBudget {
                running: 0,
                left: limits.burst(),
                at: now,
            });
        let is_counted = limits.in_flight > 0 && counts != CountedSpan::Never;
        if is_counted && usage.running >= limits.in_flight {
            return Err(LimitExceeded::InFlight);
        }
        if limits.per_second > 0 {
            usage.refill(limits, now);
            if usage.left < 1.0 {
                return Err(LimitExceeded::Rate);
            }
            usage.left -= 1.0;
        }
        if !is_counted {
            return Ok(None);
        }
        usage.running += 1;
        Ok(Some(RequestPermit {
            table: Arc::clone(&self.table),
            caller,
        }))
    }
}

impl LimitTable {
    /// Returns the key that a caller counts under: its own while the table has room.
    fn key_of(&mut self, caller: LimitKey, limits: UserLimits, now: Instant) -> LimitKey {
        if self.known.len() < self.most || self.known.contains_key(&caller) {
            return caller;
        }
        if now.saturating_duration_since(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.known.retain(|_, usage| {
                usage.refill(limits, now);
                usage.running > 0 || usage.left < limits.burst()
            });
        }
        if self.known.len() < self.most {
            caller
        } else {
            LimitKey::Others
        }
    }
}

impl CallerBudget {
    fn refill(&mut self, limits: UserLimits, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * f64::from(limits.per_second)).min(limits.burst());
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        if let Some(usage) = self.table.lock().known.get_mut(&self.caller) {
            usage.running = usage.running.saturating_sub(1);
        }
    }
}

impl Admission {
    /// Ends the permit, or ties it to the body if the request counts until its answer is sent.
    pub(in crate::serve) fn answered(self, response: Response<Body>) -> Response<Body> {
        match self.permit {
            Some(permit) if self.to_the_end => response.map(|body| holding(body, permit)),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> LimitKey {
        LimitKey::User(name.to_owned())
    }

    #[test]
    fn a_caller_at_its_limit_does_not_affect_others() {
        let limiter = Limiter::new(UserLimits {
            in_flight: 2,
            ..UserLimits::default()
        });
        let now = Instant::now();
        let enter = |name: &str, counts| limiter.enter(user(name), counts, now);
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

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let limiter = Limiter::new(UserLimits {
            per_second: 10,
            burst: 3,
            ..UserLimits::default()
        });
        let begun = Instant::now();
        let at = |millis| {
            limiter
                .enter(
                    user("a"),
                    CountedSpan::Whole,
                    begun + Duration::from_millis(millis),
                )
                .is_ok()
        };
        assert_eq!([at(0), at(0), at(0), at(0)], [true, true, true, false]);
        assert_eq!([at(99), at(101), at(102)], [false, true, false]);
        assert_eq!(
            [at(60_000), at(60_000), at(60_000), at(60_000)],
            [true, true, true, false]
        );
    }

    #[test]
    fn the_table_of_callers_is_bounded() {
        let limiter = Limiter::new(UserLimits {
            in_flight: 1,
            ..UserLimits::default()
        });
        limiter.table.lock().most = 2;
        let now = Instant::now();
        let enter = |name: &str, at| limiter.enter(user(name), CountedSpan::Whole, at);
        let (a, _b) = (enter("a", now).unwrap(), enter("b", now).unwrap());
        let c = enter("c", now).unwrap();
        assert_eq!(c.as_ref().unwrap().caller, LimitKey::Others);
        assert_eq!(
            enter("d", now).err(),
            Some(LimitExceeded::InFlight),
            "all others share one entry"
        );
        drop((a, c));
        let later = now + SWEEP_INTERVAL;
        assert_eq!(
            enter("d", later).unwrap().unwrap().caller,
            user("d"),
            "idle callers are forgotten"
        );
        assert!(limiter.table.lock().known.len() <= 3);
    }
}
