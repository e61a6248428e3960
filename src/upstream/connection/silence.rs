//! Notices a shared connection whose requests get no answers.
//!
//! A server, or a load balancer before it, may answer pings and nothing else. Requests would go to
//! such a connection for as long as it is open, while a new one leads to a server that answers.
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time without an answer after which a request of the proxy's own that is given up counts.
const SILENCE: Duration = Duration::from_secs(2);
/// Such requests in a row after which the connection gets no others.
const GIVEN_UP: usize = 3;
/// Time without any answer after which a connection on which several requests wait gets no others. A
/// client's request may wait for long, for a program in the cluster, and its client may never give it
/// up. Where that is all, another connection is all that it costs.
const LONG_SILENCE: Duration = Duration::from_secs(10);
/// Requests that were sent in that time.
const WAITED_FOR: usize = 3;

/// The requests of a connection since its last answer.
#[derive(Debug, Default)]
pub(super) struct UnansweredRequests(Mutex<RequestsSinceAnswer>);

#[derive(Debug, Default)]
struct RequestsSinceAnswer {
    /// The moment at which the first was sent.
    first: Option<Instant>,
    sent: usize,
    /// The proxy's own that were given up.
    given_up: usize,
}

/// A request that waits for its answer. Dropping it gives the request up.
pub(super) struct AwaitedAnswer<'a> {
    requests: &'a UnansweredRequests,
    /// The moment from which it waits, if it counts when it is given up.
    since: Option<Instant>,
}

impl UnansweredRequests {
    /// Notes that a request is sent: one of the proxy's own, or a client's.
    pub(super) fn begin(&self, is_own: bool) -> AwaitedAnswer<'_> {
        let now = Instant::now();
        let mut requests = self.0.lock();
        requests.first.get_or_insert(now);
        requests.sent += 1;
        AwaitedAnswer {
            requests: self,
            since: is_own.then_some(now),
        }
    }

    /// Returns `true` if so many got no answer that the next one should be sent elsewhere.
    pub(super) fn are_many(&self) -> bool {
        let requests = self.0.lock();
        let is_silent = requests
            .first
            .is_some_and(|first| first.elapsed() >= LONG_SILENCE);
        requests.given_up >= GIVEN_UP || (is_silent && requests.sent >= WAITED_FOR)
    }
}

impl AwaitedAnswer<'_> {
    /// Notes that the answer is there.
    pub(super) fn answered(mut self) {
        *self.requests.0.lock() = RequestsSinceAnswer::default();
        self.since = None;
    }
}

impl Drop for AwaitedAnswer<'_> {
    fn drop(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= SILENCE) {
            self.requests.0.lock().given_up += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_count_if_they_waited_and_no_answer_came_since() {
        let requests = UnansweredRequests::default();
        let give_up_after = async |wait| {
            let request = requests.begin(true);
            tokio::time::advance(wait).await;
            drop(request);
        };
        for _ in 0..2 * GIVEN_UP {
            give_up_after(SILENCE / 2).await;
        }
        assert!(!requests.are_many());
        for _ in 1..GIVEN_UP {
            give_up_after(SILENCE).await;
        }
        requests.begin(false).answered();
        for _ in 1..GIVEN_UP {
            give_up_after(SILENCE).await;
        }
        assert!(!requests.are_many());
        give_up_after(SILENCE).await;
        assert!(requests.are_many());
    }

    #[tokio::test(start_paused = true)]
    async fn several_requests_of_clients_count_once_nothing_was_answered_for_long() {
        let requests = UnansweredRequests::default();
        let one = requests.begin(false);
        drop(requests.begin(false));
        tokio::time::advance(2 * LONG_SILENCE).await;
        assert!(!requests.are_many(), "two may wait for the same program");
        let _third = requests.begin(false);
        assert!(requests.are_many());
        one.answered();
        let _waiting: Vec<_> = (0..2 * WAITED_FOR).map(|_| requests.begin(false)).collect();
        tokio::time::advance(LONG_SILENCE / 2).await;
        assert!(!requests.are_many(), "there was an answer");
        tokio::time::advance(LONG_SILENCE / 2).await;
        assert!(requests.are_many());
    }
}
