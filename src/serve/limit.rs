//! What one caller may ask for at a time and in a second.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response, StatusCode, header};
use parking_lot::Mutex;

use super::decide::Planned;
use super::metrics;
use crate::access::{self, Access, Authenticated};
use crate::body::{Body, full, holding};
use crate::listener::{Peer, client_network};
use watershed_protocol::Verb;

/// Callers remembered at a time. Those who come when it is full share one place.
const MAX_CALLERS: usize = 100_000;
/// How often those are forgotten who do nothing.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What each caller may use; zero stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Requests at a time. A watch counts until it begins, as in kube-apiserver's priority and
    /// fairness.
    pub in_flight: u32,
    /// Requests a second.
    pub per_second: u32,
    /// Requests that may come at once; zero stands for twice as many as come in a second.
    pub burst: u32,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    InFlight,
    Rate,
}

/// Counts the requests of each caller.
pub(super) struct Limiter {
    limits: UserLimits,
    callers: Arc<Mutex<Callers>>,
}

struct Callers {
    known: HashMap<Caller, Usage>,
    most: usize,
    swept: Instant,
}

/// Who is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Caller {
    User(String),
    /// Without credentials that are checked here.
    Address(IpAddr),
    /// All for whom there is no place.
    Others,
}

struct Usage {
    running: u32,
    /// Requests that may come now.
    left: f64,
    at: Instant,
}

/// A request that counts as running.
pub(super) struct Seat {
    callers: Arc<Mutex<Callers>>,
    caller: Caller,
}

/// How long a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// Until its answer is sent.
    Whole,
    /// Until its answer begins.
    Start,
    /// Not at all: logs, exec and the like, which kube-apiserver does not count either.
    Never,
}

/// What a request that is let in holds.
#[derive(Default)]
pub(super) struct Admitted {
    seat: Option<Seat>,
    to_the_end: bool,
}

impl UserLimits {
    fn is_off(self) -> bool {
        self.in_flight == 0 && self.per_second == 0
    }

    fn burst(self) -> f64 {
        let burst = if self.burst == 0 {
            self.per_second.saturating_mul(2)
        } else {
            self.burst
        };
        f64::from(burst.max(1))
    }
}

impl Refused {
    fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in-flight",
            Self::Rate => "rate",
        }
    }

    /// Source: `apiserver/pkg/server/filters/priority-and-fairness.go` (tooManyRequests): plain
    /// text, not a Status.
    pub(super) fn response(self) -> Response<Body> {
        metrics::limited(self.as_str());
        let mut response = Response::new(full("Too many requests, please try again later.\n"));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }
}

impl Limiter {
    pub(super) fn new(limits: UserLimits) -> Self {
        let callers = Callers {
            known: HashMap::new(),
            most: MAX_CALLERS,
            swept: Instant::now(),
        };
        Self {
            limits,
            callers: Arc::new(Mutex::new(callers)),
        }
    }

    /// Lets a request in, or says why not. Who cannot be known here counts by the address they come
    /// from.
    pub(super) async fn admit<B>(
        &self,
        access: &Access,
        caller: &access::Caller,
        request: &Request<B>,
        peer: &Peer,
        plan: &Planned,
    ) -> Result<Admitted, Refused> {
        if self.limits.is_off() {
            return Ok(Admitted::default());
        }
        let caller = match access.identify(caller, request.headers()).await {
            Ok(Authenticated::Known(identity)) => Caller::User(identity.user.clone()),
            // One whom upstream knows does not become another by what else stands in the request.
            _ => match access.authenticator.bearer(request.headers()).await {
                Some(identity) => Caller::User(identity.user.clone()),
                None => Caller::Address(client_network(peer.address.ip())),
            },
        };
        let counts = match (plan.verb, plan.long_running) {
            (Verb::Watch, _) => Counts::Start,
            (_, true) => Counts::Never,
            (_, false) => Counts::Whole,
        };
        let seat = self.enter(caller, counts, Instant::now())?;
        Ok(Admitted {
            seat,
            to_the_end: counts == Counts::Whole,
        })
    }

    fn enter(&self, caller: Caller, counts: Counts, now: Instant) -> Result<Option<Seat>, Refused> {
        let limits = self.limits;
        let mut callers = self.callers.lock();
        let caller = callers.place(caller, limits, now);
        let usage = callers
            .known
            .entry(caller.clone())
            .or_insert_with(|| Usage {
                running: 0,
                left: limits.burst(),
                at: now,
            });
        let seated = limits.in_flight > 0 && counts != Counts::Never;
        if seated && usage.running >= limits.in_flight {
            return Err(Refused::InFlight);
        }
        if limits.per_second > 0 {
            usage.refill(limits, now);
            if usage.left < 1.0 {
                return Err(Refused::Rate);
            }
            usage.left -= 1.0;
        }
        if !seated {
            return Ok(None);
        }
        usage.running += 1;
        Ok(Some(Seat {
            callers: Arc::clone(&self.callers),
            caller,
        }))
    }
}

impl Callers {
    /// Where a caller is counted: alone while there is room.
    fn place(&mut self, caller: Caller, limits: UserLimits, now: Instant) -> Caller {
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
            Caller::Others
        }
    }
}

impl Usage {
    fn refill(&mut self, limits: UserLimits, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * f64::from(limits.per_second)).min(limits.burst());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(usage) = self.callers.lock().known.get_mut(&self.caller) {
            usage.running = usage.running.saturating_sub(1);
        }
    }
}

impl Admitted {
    /// The answer begins.
    pub(super) fn answered(self, response: Response<Body>) -> Response<Body> {
        match self.seat {
            Some(seat) if self.to_the_end => response.map(|body| holding(body, seat)),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Caller {
        Caller::User(name.to_owned())
    }

    #[test]
    fn one_caller_at_its_limit_leaves_the_others_alone() {
        let limiter = Limiter::new(UserLimits {
            in_flight: 2,
            ..UserLimits::default()
        });
        let now = Instant::now();
        let enter = |name: &str, counts| limiter.enter(user(name), counts, now);
        let first = enter("a", Counts::Whole).unwrap();
        let _second = enter("a", Counts::Start).unwrap();
        assert_eq!(enter("a", Counts::Whole).err(), Some(Refused::InFlight));
        assert!(
            enter("a", Counts::Never).unwrap().is_none(),
            "logs are not counted"
        );
        assert!(enter("b", Counts::Whole).is_ok());
        drop(first);
        assert!(enter("a", Counts::Whole).is_ok());
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
                    Counts::Whole,
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
        limiter.callers.lock().most = 2;
        let now = Instant::now();
        let enter = |name: &str, at| limiter.enter(user(name), Counts::Whole, at);
        let (a, _b) = (enter("a", now).unwrap(), enter("b", now).unwrap());
        let c = enter("c", now).unwrap();
        assert_eq!(c.as_ref().unwrap().caller, Caller::Others);
        assert_eq!(
            enter("d", now).err(),
            Some(Refused::InFlight),
            "all the others share one place"
        );
        drop((a, c));
        let later = now + SWEEP_INTERVAL;
        assert_eq!(
            enter("d", later).unwrap().unwrap().caller,
            user("d"),
            "who does nothing is forgotten"
        );
        assert!(limiter.callers.lock().known.len() <= 3);
    }
}
