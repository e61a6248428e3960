//! Asks clients to take a new connection now and then, so that replicas share them.
//!
//! Clients keep their connections for as long as they can, so a new replica behind a load balancer
//! would have none. Source of the chance: `apiserver/pkg/server/filters/goaway.go`.

use std::time::Duration;

use http::{Request, Version};
use tokio::time::Instant;

use super::limits::ConnectionLimits;
use super::metrics::Listener;

/// Share of the highest age by which connections differ, so that those that were opened together
/// do not end together.
const AGE_SPREAD: f64 = 0.25;

/// Marks a response after which the client is to take another connection, over HTTP/2.
///
/// An API server ends connections of callers that it does not know: they cannot make it work for long
/// by one connection.
/// Source: `apiserver/pkg/endpoints/filters/authentication.go` (UnauthenticatedHTTP2DOSMitigation).
#[derive(Clone, Copy, Debug)]
pub struct LastOfConnection;

/// Decides which HTTP/2 request is the last new one on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoawayRule {
    chance: f64,
    /// The first request from this moment on is the last one.
    from: Option<Instant>,
}

impl GoawayRule {
    /// Returns the rule of a new connection on this listener. Whoever reads metrics has no replica
    /// to change to.
    pub(super) fn new(limits: &ConnectionLimits, listener: Listener) -> Self {
        match listener {
            Listener::Proxy => Self {
                chance: limits.goaway_chance,
                from: lifetime(limits.max_age).map(|lifetime| Instant::now() + lifetime),
            },
            Listener::Admin => Self {
                chance: 0.0,
                from: None,
            },
        }
    }

    /// Decides about one request. HTTP/1.1 has no end that leaves running requests alone.
    pub(super) fn decides<B>(self, request: &Request<B>) -> bool {
        request.version() == Version::HTTP_2
            && (self.from.is_some_and(|from| from <= Instant::now())
                || self.chance > 0.0 && fastrand::f64() < self.chance)
    }
}

/// Returns the lifetime of one connection.
fn lifetime(max_age: Duration) -> Option<Duration> {
    let part = 1.0 - AGE_SPREAD * fastrand::f64();
    (!max_age.is_zero()).then(|| max_age.mul_f64(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version) -> Request<()> {
        let mut request = Request::new(());
        *request.version_mut() = version;
        request
    }

    fn decided(chance: f64, listener: Listener, version: Version) -> usize {
        let limits = ConnectionLimits {
            goaway_chance: chance,
            ..ConnectionLimits::default()
        };
        let (rule, request) = (GoawayRule::new(&limits, listener), request(version));
        (0..10_000).filter(|_| rule.decides(&request)).count()
    }

    #[test]
    fn the_chance_is_that_of_each_http2_request() {
        let some = decided(0.02, Listener::Proxy, Version::HTTP_2);
        // Twelve standard deviations around 200.
        assert!((30..370).contains(&some), "{some} of 10,000");
        assert_eq!(decided(0.0, Listener::Proxy, Version::HTTP_2), 0);
        assert_eq!(decided(1.0, Listener::Proxy, Version::HTTP_11), 0);
        assert_eq!(decided(1.0, Listener::Admin, Version::HTTP_2), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_full_age_takes_one_more_request() {
        let max_age = Duration::from_mins(10);
        let limits = ConnectionLimits {
            max_age,
            ..ConnectionLimits::default()
        };
        let rules: Vec<_> = (0..1000)
            .map(|_| GoawayRule::new(&limits, Listener::Proxy))
            .collect();
        let old = || {
            let request = request(Version::HTTP_2);
            rules.iter().filter(|rule| rule.decides(&request)).count()
        };
        assert_eq!(old(), 0);
        tokio::time::advance(max_age.mul_f64(1.0 - AGE_SPREAD)).await;
        assert!(old() <= 1);
        tokio::time::advance(max_age.mul_f64(AGE_SPREAD / 2.0)).await;
        let half = old();
        assert!(
            (300..700).contains(&half),
            "{half} of 1,000 at half the spread"
        );
        tokio::time::advance(max_age.mul_f64(AGE_SPREAD / 2.0)).await;
        assert_eq!(old(), 1000);
        assert!(!rules[0].decides(&request(Version::HTTP_11)));
    }
}
