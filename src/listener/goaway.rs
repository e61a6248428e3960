//! Asks clients to take a new connection now and then, so that replicas share them.
//!
//! Clients keep their connections for as long as they can, so a new replica behind a load balancer
//! would have none. Source: `apiserver/pkg/server/filters/goaway.go`.

use http::{Request, Version};

use super::limits::ConnectionLimits;
use super::metrics::Listener;

/// The chance of each HTTP/2 request to be the last new one on its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoawayChance(f64);

impl GoawayChance {
    /// Returns the chance on this listener. Whoever reads metrics has no replica to change to.
    pub(super) fn new(limits: &ConnectionLimits, listener: Listener) -> Self {
        match listener {
            Listener::Proxy => Self(limits.goaway_chance),
            Listener::Admin => Self(0.0),
        }
    }

    /// Decides about one request. HTTP/1.1 has no end that leaves running requests alone.
    pub(super) fn decides<B>(self, request: &Request<B>) -> bool {
        self.0 > 0.0 && request.version() == Version::HTTP_2 && fastrand::f64() < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(chance: f64, listener: Listener, version: Version) -> usize {
        let limits = ConnectionLimits {
            goaway_chance: chance,
            ..ConnectionLimits::default()
        };
        let mut request = Request::new(());
        *request.version_mut() = version;
        let chance = GoawayChance::new(&limits, listener);
        (0..10_000).filter(|_| chance.decides(&request)).count()
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
}
