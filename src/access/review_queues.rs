//! The order in which callers' credentials and accesses are reviewed.
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Uri};
use tokio::time::timeout;

use super::error::ReviewError;
use super::identity::Identity;
use crate::fairness::{CallerKey, FairQueue, QueueTurn, Share, ShareLimits, Shares};
use crate::headers::{field_memory, target_memory};
use crate::metric::Gauge;

/// Concurrent reviews of callers that upstream has accepted lately, of all and of each.
///
/// With two milliseconds for a review, a user gets 32,000 a second: the nodes of a fleet are often
/// one user.
const KNOWN: [usize; 2] = [128, 64];
/// Concurrent reviews of unknown tokens, of all addresses and of each.
const UNKNOWN: [usize; 2] = [64, 16];
/// Time after which a review leaves its place in these queues to the next one. A verdict takes
/// milliseconds. Where a webhook of upstream hangs, which may concern some callers alone, the reviews of
/// others go on.
const SLOW: Duration = Duration::from_secs(1);
/// Time after which a review is given up that has no place among the hanging ones. It has been sent once
/// more by then, over a connection that may be better.
const GIVEN_UP: Duration = Duration::from_secs(4);
/// Concurrent reviews that take longer, of known callers and of each. Each has a seat at upstream, and the
/// flow control that comes with the proxy leaves it some 60.
const HANGING_KNOWN: [usize; 2] = [48, 16];
/// The same of unknown tokens, of all addresses and of each.
const HANGING_UNKNOWN: [usize; 2] = [16, 4];
/// Longest wait of a known caller's request for a place.
const KNOWN_WAIT: Duration = Duration::from_secs(10);

/// Memory that may be taken by requests that wait for a review of an unknown token. One address
/// alone may take half of it: of requests with a short head some 3,000, which takes upstream less
/// than a second. Where upstream does not answer, there may be any number of them.
const UNKNOWN_BYTES: u64 = 32 << 20;
/// Memory that may be taken by requests that wait for reviews of impersonation. The limits of the service
/// count a request only once its user is known. One user may take half of it.
const IMPERSONATION_BYTES: u64 = 32 << 20;
/// Memory that a waiting request takes besides its head.
const REQUEST_BYTES: usize = 4 << 10;
/// Memory that the check of a group takes, which a header field may name.
const CHECK_BYTES: usize = 176;
/// Longest wait of a request with an unknown token.
pub(super) const UNKNOWN_WAIT: Duration = Duration::from_secs(15);

/// A caller's place for one review.
pub(super) struct ReviewTurn {
    caller: CallerKey,
    turn: QueueTurn,
    hanging: Arc<FairQueue>,
}

impl ReviewTurn {
    /// Runs the review.
    pub(super) async fn run<T>(
        self,
        review: impl Future<Output = Result<T, ReviewError>>,
    ) -> Result<T, ReviewError> {
        let Self {
            caller,
            turn,
            hanging,
        } = self;
        let mut review = pin!(review);
        if let Ok(verdict) = timeout(SLOW, &mut review).await {
            return verdict;
        }
        drop(turn);
        if let Ok(verdict) = timeout(GIVEN_UP.saturating_sub(SLOW), &mut review).await {
            return verdict;
        }
        let _place = hanging
            .turn_within(caller, Duration::ZERO)
            .await
            .ok_or(ReviewError::GivenUp(GIVEN_UP))?;
        review.await
    }
}

/// Queues of reviews. Those of unknown callers delay none of known ones.
#[derive(Clone, Debug)]
pub(super) struct ReviewQueues {
    known: Arc<FairQueue>,
    unknown: Arc<FairQueue>,
    hanging_known: Arc<FairQueue>,
    hanging_unknown: Arc<FairQueue>,
    unknown_waiting: Shares,
    impersonation_waiting: Shares,
}

impl Default for ReviewQueues {
    fn default() -> Self {
        let queue = |[all, each]: [usize; 2]| Arc::new(FairQueue::new(all, each));
        let waiting = |all| Shares::new(ShareLimits { all, each: 0 }, Gauge::noop());
        Self {
            known: queue(KNOWN),
            unknown: queue(UNKNOWN),
            hanging_known: queue(HANGING_KNOWN),
            hanging_unknown: queue(HANGING_UNKNOWN),
            unknown_waiting: waiting(UNKNOWN_BYTES),
            impersonation_waiting: waiting(IMPERSONATION_BYTES),
        }
    }
}

impl ReviewQueues {
    /// Waits until a review for a user may be sent.
    pub(super) async fn of_user(&self, identity: &Identity) -> Result<ReviewTurn, ReviewError> {
        self.of_known(CallerKey::user(&identity.user)).await
    }

    /// Waits until a review of a token may be sent that was accepted lately, from this address.
    pub(super) async fn of_known_token(&self, address: IpAddr) -> Result<ReviewTurn, ReviewError> {
        self.of_known(CallerKey::Address(address)).await
    }

    async fn of_known(&self, caller: CallerKey) -> Result<ReviewTurn, ReviewError> {
        let turn = self.known.turn_within(caller.clone(), KNOWN_WAIT).await;
        Ok(ReviewTurn {
            turn: turn.ok_or(ReviewError::GivenUp(KNOWN_WAIT))?,
            caller,
            hanging: Arc::clone(&self.hanging_known),
        })
    }

    /// Waits until a review of an unknown token may be sent, from this address.
    pub(super) async fn of_unknown_token(&self, address: IpAddr) -> ReviewTurn {
        let caller = CallerKey::Address(address);
        let turn = self.unknown.turn(caller.clone()).await;
        ReviewTurn {
            caller,
            turn,
            hanging: Arc::clone(&self.hanging_unknown),
        }
    }

    /// Returns the share of a request with this head and an unknown token, which is about to wait
    /// for its review; `None` if too much waits already.
    pub(super) fn begin_unknown(&self, address: IpAddr, headers: &HeaderMap) -> Option<Share> {
        self.unknown_waiting
            .take(CallerKey::Address(address), waiting_bytes(headers))
    }

    /// Returns the share of a request by which a user wants to act as another one; `None` if too many
    /// of the user wait for reviews of that already. It takes so many bytes more than its head.
    pub(super) fn begin_impersonation(
        &self,
        impersonator: &Identity,
        target: &Uri,
        headers: &HeaderMap,
        more_bytes: usize,
    ) -> Option<Share> {
        let user = CallerKey::user(&impersonator.user);
        let more = (target_memory(target) + more_bytes) as u64;
        self.impersonation_waiting
            .take(user, waiting_bytes(headers) + more)
    }
}

/// Returns the memory that a request with these headers takes while it waits.
fn waiting_bytes(headers: &HeaderMap) -> u64 {
    (REQUEST_BYTES + field_memory(headers) + CHECK_BYTES * headers.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    struct CallOnDrop<F: Fn()>(F);

    impl<F: Fn()> Drop for CallOnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    #[test]
    fn requests_with_unknown_tokens_wait_within_their_share_of_memory() {
        let queues = ReviewQueues::default();
        let mut long = HeaderMap::new();
        long.insert("x-filler", "x".repeat(60_000).parse().unwrap());
        let waiting = |host, headers: &HeaderMap| {
            let address = IpAddr::from([192, 0, 2, host]);
            let shares = std::iter::from_fn(|| queues.begin_unknown(address, headers));
            shares.collect::<Vec<_>>()
        };
        let one = waiting(1, &long);
        assert!((100..200).contains(&one.len()), "{}", one.len());
        let other = waiting(2, &long);
        assert!(other.len() > one.len() / 3, "something is left for others");
        drop((one, other));
        let short = waiting(3, &HeaderMap::new());
        assert!(short.len() > 3_000, "as after a start of the proxy");
    }

    #[test]
    fn requests_that_impersonate_wait_within_the_share_of_their_user() {
        let queues = ReviewQueues::default();
        let named = |user: &str| Identity {
            user: user.to_owned(),
            uid: None,
            groups: Vec::new(),
            extra: Vec::new(),
        };
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", "x".repeat(60_000).parse().unwrap());
        let waiting = |user: &str, access_bytes| {
            let (user, target) = (named(user), Uri::default());
            let begin = || queues.begin_impersonation(&user, &target, &headers, access_bytes);
            let shares = std::iter::from_fn(begin);
            shares.collect::<Vec<_>>()
        };
        let one = waiting("one", 0);
        assert!((100..200).contains(&one.len()), "{}", one.len());
        let other = waiting("other", 0);
        assert!(other.len() > one.len() / 3, "something is left for others");
        drop((one, other));
        let long = waiting("one", 1 << 20);
        assert!(long.len() < 20, "{} with long selectors", long.len());
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_that_hang_leave_their_places_and_most_are_given_up() {
        let queues = ReviewQueues::default();
        let user = Identity {
            user: "stuck".to_owned(),
            uid: None,
            groups: Vec::new(),
            extra: Vec::new(),
        };
        let (begun, limit) = (Instant::now(), Duration::from_secs(10));
        let (running, most) = (Cell::new(0), Cell::new(0));
        let hanging = async || {
            let turn = queues.of_user(&user).await?;
            let review = async {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                let _ends = CallOnDrop(|| running.set(running.get() - 1));
                sleep(limit).await;
                Err::<(), _>(ReviewError::Late(limit))
            };
            turn.run(review).await
        };
        let ends = join_all((0..1_000).map(|_| hanging())).await;
        assert!(begun.elapsed() <= KNOWN_WAIT + limit);
        let late = |end: &&Result<(), _>| matches!(end, Err(ReviewError::Late(_)));
        // Those that had a place, at first and once these had ended.
        assert_eq!(ends.iter().filter(late).count(), 2 * HANGING_KNOWN[1]);
        let seconds = usize::try_from(GIVEN_UP.as_secs()).unwrap();
        assert!(most.get() <= (seconds + 1) * KNOWN[1] + HANGING_KNOWN[1]);
    }
}
