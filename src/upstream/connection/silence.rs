//! Notices a shared connection whose requests get no answers.
//!
//! A server, or a load balancer before it, may answer pings and nothing else. Requests would go to
//! such a connection for as long as it is open, while a new one leads to a server that answers.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Time without an answer after which a request that is given up counts.
const SILENCE: Duration = Duration::from_secs(2);
/// Such requests in a row after which the connection gets no others.
const GIVEN_UP: usize = 3;

/// The proxy's own requests of a connection that were given up without an answer, since its last
/// answer. Those of clients say nothing: some wait for a program in the cluster.
#[derive(Debug, Default)]
pub(super) struct UnansweredRequests(AtomicUsize);

/// A request that waits for its answer. Dropping it gives the request up.
pub(super) struct AwaitedAnswer<'a> {
    requests: &'a UnansweredRequests,
    /// The moment from which it waits; `None` if it does not count, or not any more.
    since: Option<Instant>,
}

impl UnansweredRequests {
    /// Notes that a request is sent: one of the proxy's own, or a client's.
    pub(super) fn begin(&self, is_own: bool) -> AwaitedAnswer<'_> {
        AwaitedAnswer {
            requests: self,
            since: is_own.then(Instant::now),
        }
    }

    /// Returns `true` if so many were given up that the next one should be sent elsewhere.
    pub(super) fn are_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= GIVEN_UP
    }
}

impl AwaitedAnswer<'_> {
    /// Notes that the answer is there.
    pub(super) fn answered(mut self) {
        self.requests.0.store(0, Ordering::Relaxed);
        self.since = None;
    }
}

impl Drop for AwaitedAnswer<'_> {
    fn drop(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= SILENCE) {
            self.requests.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_count_if_they_waited_and_no_answer_came_since() {
        let requests = UnansweredRequests::default();
        let give_up_after = async |wait, is_own| {
            let request = requests.begin(is_own);
            tokio::time::advance(wait).await;
            drop(request);
        };
        for _ in 0..2 * GIVEN_UP {
            give_up_after(SILENCE / 2, true).await;
            give_up_after(SILENCE, false).await;
        }
        assert!(!requests.are_many());
        for _ in 1..GIVEN_UP {
            give_up_after(SILENCE, true).await;
        }
        requests.begin(false).answered();
        for _ in 1..GIVEN_UP {
            give_up_after(SILENCE, true).await;
        }
        assert!(!requests.are_many());
        give_up_after(SILENCE, true).await;
        assert!(requests.are_many());
    }
}
