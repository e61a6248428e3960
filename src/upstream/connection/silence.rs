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
/// Waiting requests that are several, with those that were given up after a while.
const SEVERAL: usize = 3;

/// The answer that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum AwaitedBy {
    /// The proxy itself, to which upstream answers soon.
    Proxy,
    /// A client.
    Client,
    /// A client that may wait for any time until upstream has something to tell, such as the next line of
    /// a log. That says nothing about the connection.
    Reader,
}

/// The requests of a connection since its last answer.
#[derive(Debug, Default)]
pub(super) struct UnansweredRequests(Mutex<RequestsSinceAnswer>);

#[derive(Debug, Default)]
struct RequestsSinceAnswer {
    /// The moment from which the first of them waits.
    first: Option<Instant>,
    /// Those that wait, or were given up after [`SILENCE`].
    waited: usize,
    /// Those of the proxy's own among the latter.
    given_up: usize,
}

/// A request that waits for its answer. Dropping it gives the request up.
pub(super) struct AwaitedAnswer<'a> {
    requests: &'a UnansweredRequests,
    by: AwaitedBy,
    since: Instant,
    is_answered: bool,
}

impl UnansweredRequests {
    /// Notes that a request is sent.
    pub(super) fn begin(&self, by: AwaitedBy) -> AwaitedAnswer<'_> {
        let since = Instant::now();
        if by != AwaitedBy::Reader {
            let mut requests = self.0.lock();
            requests.first.get_or_insert(since);
            requests.waited += 1;
        }
        AwaitedAnswer {
            requests: self,
            by,
            since,
            is_answered: false,
        }
    }

    /// Returns `true` if so many got no answer that the next one should be sent elsewhere.
    pub(super) fn are_many(&self) -> bool {
        let requests = self.0.lock();
        let is_silent = requests
            .first
            .is_some_and(|first| first.elapsed() >= LONG_SILENCE);
        requests.given_up >= GIVEN_UP || (is_silent && requests.waited >= SEVERAL)
    }
}

impl AwaitedAnswer<'_> {
    /// Notes that the answer is there.
    pub(super) fn answered(mut self) {
        *self.requests.0.lock() = RequestsSinceAnswer::default();
        self.is_answered = true;
    }
}

impl Drop for AwaitedAnswer<'_> {
    fn drop(&mut self) {
        if self.is_answered || self.by == AwaitedBy::Reader {
            return;
        }
        let mut requests = self.requests.0.lock();
        // An answer since then has reset the counts: this one is not among them.
        if requests.first.is_none_or(|first| self.since < first) {
            return;
        }
        if self.since.elapsed() < SILENCE {
            requests.waited = requests.waited.saturating_sub(1);
            if requests.waited == 0 {
                requests.first = None;
            }
        } else if self.by == AwaitedBy::Proxy {
            requests.given_up += 1;
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
            let request = requests.begin(AwaitedBy::Proxy);
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
        requests.begin(AwaitedBy::Client).answered();
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
        let one = requests.begin(AwaitedBy::Client);
        let _other = requests.begin(AwaitedBy::Client);
        tokio::time::advance(2 * LONG_SILENCE).await;
        for _ in 0..SEVERAL {
            drop(requests.begin(AwaitedBy::Client));
        }
        let _readers: Vec<_> = (0..SEVERAL)
            .map(|_| requests.begin(AwaitedBy::Reader))
            .collect();
        assert!(!requests.are_many(), "two may wait for the same program");
        let _third = requests.begin(AwaitedBy::Client);
        assert!(requests.are_many());
        one.answered();
        let _waiting: Vec<_> = (0..2 * SEVERAL)
            .map(|_| requests.begin(AwaitedBy::Client))
            .collect();
        tokio::time::advance(LONG_SILENCE / 2).await;
        assert!(!requests.are_many(), "there was an answer");
        tokio::time::advance(LONG_SILENCE / 2).await;
        assert!(requests.are_many());
    }
}
