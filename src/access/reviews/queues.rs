//! The order in which callers' credentials and accesses are reviewed.
//!
//! A review holds a place in a queue, and a seat of upstream's flow control. Where a webhook of upstream
//! hangs, which may concern some callers alone, the reviews of others have to go on. So a late review leaves
//! its place to others, and few of them may hang. While as many do, the next ones of their callers share a
//! few places and are given up early.
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Uri};
use tokio::time::timeout;

use crate::access::error::ReviewError;
use crate::access::identity::Identity;
use crate::fairness::{CallerKey, FairQueue, QueueTurn, Seats, Share, Shares};
use crate::headers::{field_memory, target_memory};
use hanging_callers::HangingCallers;

mod hanging_callers;

/// Concurrent reviews of callers that upstream has accepted lately, of all and of each.
///
/// With two milliseconds for a review, a user gets 32,000 a second: the nodes of a fleet are often
/// one user.
const KNOWN: Seats = Seats { all: 128, each: 64 };
/// Concurrent reviews of the tokens of such callers, of all and of each. They have places of their own: a
/// webhook that hangs when it is asked for accesses answers for tokens, or is not asked.
const KNOWN_TOKENS: Seats = Seats { all: 64, each: 32 };
/// Concurrent reviews of unknown tokens, and of what callers without credentials may do, of all addresses and
/// of each.
const UNKNOWN: Seats = Seats { all: 64, each: 16 };
/// Time after which a review is late: it leaves its place to the reviews of others. A verdict takes
/// milliseconds.
pub(in crate::access) const LATE: Duration = Duration::from_secs(1);
/// Time after which a review hangs: it is given up, unless it finds a place among those that do. It has been
/// sent once more by then, over a connection that may be better.
const HANGS: Duration = Duration::from_secs(4);
/// Concurrent reviews that hang, of known callers and of each. Each has two seats, as it was sent twice.
/// Together with those of limited callers they leave a part of the 66 seats that the flow control which comes
/// with the proxy has.
const HANGING_KNOWN: Seats = Seats { all: 12, each: 4 };
/// The same of tokens, known or unknown, and for callers without credentials, of all users or addresses and of
/// each.
const HANGING_TOKENS: Seats = Seats { all: 8, each: 4 };
/// Concurrent reviews of known callers that are limited as theirs hang, of all and of each. They are given up
/// when they are late, unless they find a place among those that hang.
const LIMITED_KNOWN: Seats = Seats { all: 20, each: 2 };
/// The same of tokens, known or unknown, and for callers without credentials, of all users or addresses and of
/// each.
const LIMITED_TOKENS: Seats = Seats { all: 8, each: 4 };
/// Interval at which the reviews that wait for a limited caller's turn see if the caller still is.
const LIMIT_CHECK: Duration = Duration::from_millis(250);
/// Longest wait of a request for a place, unless its token is unknown.
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
pub(in crate::access) const UNKNOWN_WAIT: Duration = Duration::from_secs(15);

/// A caller's place for one review.
pub(in crate::access) struct ReviewTurn {
    caller: CallerKey,
    turn: QueueTurn,
    lane: Arc<ReviewLane>,
    /// The caller is limited, as its reviews hang.
    is_limited: bool,
}

impl ReviewTurn {
    /// Runs the review.
    pub(in crate::access) async fn run<T>(
        self,
        review: impl Future<Output = Result<T, ReviewError>>,
    ) -> Result<T, ReviewError> {
        let Self {
            caller,
            mut turn,
            lane,
            is_limited,
        } = self;
        let mut review = pin!(review);
        // An error is no answer: upstream refuses reviews where too many hang.
        let note = |_: &T| lane.callers.answered(&caller);
        if let Ok(verdict) = timeout(LATE, &mut review).await {
            return verdict.inspect(note);
        }
        let mut given_up = LATE;
        if !is_limited {
            turn.leave_to_others();
            if let Ok(verdict) = timeout(HANGS.saturating_sub(LATE), &mut review).await {
                return verdict.inspect(note);
            }
            given_up = HANGS;
        }
        let place = lane.hanging.turn_within(caller.clone(), Duration::ZERO);
        let Some(_place) = place.await else {
            if is_limited {
                lane.callers.give_up_early(&caller);
            } else {
                lane.callers.give_up(&caller);
            }
            return Err(ReviewError::GivenUp(given_up));
        };
        let _hanging = lane.callers.begin(&caller);
        // From here on the next ones of the caller may be limited.
        drop(turn);
        review.await
    }
}

/// Numbers of places for reviews of one kind.
#[derive(Clone, Copy, Debug)]
struct LaneSeats {
    prompt: Seats,
    limited: Seats,
    hanging: Seats,
}

/// The places for reviews of one kind.
#[derive(Debug)]
struct ReviewLane {
    prompt: FairQueue,
    /// Those for callers who are limited.
    limited: FairQueue,
    /// Those for reviews that hang, whoever has them.
    hanging: FairQueue,
    callers: HangingCallers,
}

impl ReviewLane {
    fn new(seats: LaneSeats) -> Arc<Self> {
        let hanging = seats.hanging;
        Arc::new(Self {
            prompt: FairQueue::new(seats.prompt),
            limited: FairQueue::new(seats.limited),
            hanging: FairQueue::new(hanging),
            callers: HangingCallers::new(hanging.all * 2 / 3, hanging.each),
        })
    }

    /// Waits until a review for a caller may be sent.
    async fn turn(self: &Arc<Self>, caller: CallerKey) -> ReviewTurn {
        let is_limited = || self.callers.limits(&caller);
        let (turn, is_limited) = loop {
            if !is_limited() {
                let turn = self.prompt.turn(caller.clone()).await;
                // Those before it may have shown meanwhile that the caller's hang.
                if !is_limited() {
                    break (turn, false);
                }
            }
            if let Some(turn) = self.limited_turn(&caller).await {
                break (turn, true);
            }
        };
        ReviewTurn {
            turn,
            caller,
            lane: Arc::clone(self),
            is_limited,
        }
    }

    /// Waits for the turn of a limited caller. Returns `None` once it is not limited any more.
    async fn limited_turn(&self, caller: &CallerKey) -> Option<QueueTurn> {
        let mut turn = pin!(self.limited.turn(caller.clone()));
        loop {
            if let Ok(turn) = timeout(LIMIT_CHECK, &mut turn).await {
                return Some(turn);
            }
            if !self.callers.limits(caller) {
                return None;
            }
        }
    }
}

/// Queues of reviews. Those of unknown callers delay none of known ones.
#[derive(Clone, Debug)]
pub(in crate::access) struct ReviewQueues {
    /// Those of what known callers may do.
    known: Arc<ReviewLane>,
    /// Those of their tokens.
    known_tokens: Arc<ReviewLane>,
    /// Those of unknown tokens, and of what callers without credentials may do.
    unknown: Arc<ReviewLane>,
    unknown_waiting: Shares,
    impersonation_waiting: Shares,
}

impl Default for ReviewQueues {
    fn default() -> Self {
        Self {
            known: ReviewLane::new(LaneSeats {
                prompt: KNOWN,
                limited: LIMITED_KNOWN,
                hanging: HANGING_KNOWN,
            }),
            known_tokens: ReviewLane::new(LaneSeats {
                prompt: KNOWN_TOKENS,
                limited: LIMITED_TOKENS,
                hanging: HANGING_TOKENS,
            }),
            unknown: ReviewLane::new(LaneSeats {
                prompt: UNKNOWN,
                limited: LIMITED_TOKENS,
                hanging: HANGING_TOKENS,
            }),
            unknown_waiting: Shares::bounded(UNKNOWN_BYTES),
            impersonation_waiting: Shares::bounded(IMPERSONATION_BYTES),
        }
    }
}

impl ReviewQueues {
    /// Waits until a review of what a caller at this address may do may be sent.
    pub(in crate::access) async fn of_access(
        &self,
        identity: &Identity,
        address: IpAddr,
    ) -> Result<ReviewTurn, ReviewError> {
        bounded_turn(self.access_lane(identity), identity.caller_key(address)).await
    }

    /// Returns the places for reviews of what a caller may do. Anybody can come without credentials.
    fn access_lane(&self, identity: &Identity) -> &Arc<ReviewLane> {
        if identity.is_anonymous() {
            &self.unknown
        } else {
            &self.known
        }
    }

    /// Waits until a review of a user's token may be sent.
    pub(in crate::access) async fn of_users_token(
        &self,
        identity: &Identity,
    ) -> Result<ReviewTurn, ReviewError> {
        bounded_turn(&self.known_tokens, CallerKey::user(&identity.user)).await
    }

    /// Waits until a review of a token may be sent that was accepted lately, from this address.
    pub(in crate::access) async fn of_known_token(
        &self,
        address: IpAddr,
    ) -> Result<ReviewTurn, ReviewError> {
        bounded_turn(&self.known_tokens, CallerKey::Address(address)).await
    }

    /// Waits until a review of an unknown token may be sent, from this address.
    pub(in crate::access) async fn of_unknown_token(&self, address: IpAddr) -> ReviewTurn {
        self.unknown.turn(CallerKey::Address(address)).await
    }

    /// Returns the share of a request with this head and an unknown token, which is about to wait
    /// for its review; `None` if too much waits already.
    pub(in crate::access) fn begin_unknown(
        &self,
        address: IpAddr,
        headers: &HeaderMap,
    ) -> Option<Share> {
        self.unknown_waiting
            .take(CallerKey::Address(address), waiting_bytes(headers))
    }

    /// Returns the share of a request by which a user wants to act as another one; `None` if too many
    /// of the user wait for reviews of that already. It takes so many bytes more than its head.
    pub(in crate::access) fn begin_impersonation(
        &self,
        impersonator: &Identity,
        address: IpAddr,
        target: &Uri,
        headers: &HeaderMap,
        more_bytes: usize,
    ) -> Option<Share> {
        let caller = impersonator.caller_key(address);
        let more = (target_memory(target) + more_bytes) as u64;
        self.impersonation_waiting
            .take(caller, waiting_bytes(headers) + more)
    }
}

async fn bounded_turn(
    lane: &Arc<ReviewLane>,
    caller: CallerKey,
) -> Result<ReviewTurn, ReviewError> {
    let turn = timeout(KNOWN_WAIT, lane.turn(caller)).await;
    turn.map_err(|_| ReviewError::GivenUp(KNOWN_WAIT))
}

/// Returns the memory that a request with these headers takes while it waits.
fn waiting_bytes(headers: &HeaderMap) -> u64 {
    (REQUEST_BYTES + field_memory(headers) + CHECK_BYTES * headers.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use futures_util::future::join_all;
    use http::StatusCode;
    use tokio::time::{Instant, sleep};

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

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
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", "x".repeat(60_000).parse().unwrap());
        let waiting = |user: &str, access_bytes| {
            let (user, target) = (named(user), Uri::default());
            let begin =
                || queues.begin_impersonation(&user, ADDRESS, &target, &headers, access_bytes);
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

    fn named(user: &str) -> Identity {
        Identity {
            user: user.to_owned(),
            uid: None,
            groups: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// Reviews that hang, and how many of them are under way.
    #[derive(Default)]
    struct Hanging {
        queues: ReviewQueues,
        running: Cell<usize>,
        most: Cell<usize>,
    }

    impl Hanging {
        /// Has a review that would take longer than one that begins now may wait for its turn.
        async fn review(&self, user: &str) -> Result<(), ReviewError> {
            let limit = KNOWN_WAIT + 2 * LATE;
            let turn = self.queues.of_access(&named(user), ADDRESS).await?;
            let review = async {
                self.running.set(self.running.get() + 1);
                self.most.set(self.most.get().max(self.running.get()));
                let _ends = CallOnDrop(|| self.running.set(self.running.get() - 1));
                sleep(limit).await;
                Err(ReviewError::Late(limit))
            };
            turn.run(review).await
        }

        /// Asks for such reviews of a user again and again.
        async fn reviews(&self, user: &str) {
            loop {
                let _ = self.review(user).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_of_a_user_that_hang_leave_their_places_and_most_are_given_up() {
        let hanging = Hanging::default();
        let begun = Instant::now();
        let ends = join_all((0..1_000).map(|_| hanging.review("stuck"))).await;
        assert!(begun.elapsed() <= 2 * KNOWN_WAIT + 2 * LATE);
        let late = |end: &&Result<(), _>| matches!(end, Err(ReviewError::Late(_)));
        assert_eq!(ends.iter().filter(late).count(), HANGING_KNOWN.each);
        let most = hanging.most.get();
        assert!(
            most <= KNOWN.each + LIMITED_KNOWN.each + HANGING_KNOWN.each,
            "{most}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn callers_without_credentials_take_places_of_their_addresses_alone() {
        let (queues, anonymous) = (ReviewQueues::default(), Identity::anonymous());
        let turns_of = |host, number| {
            let address = IpAddr::from([198, 51, 100, host]);
            let turns = (0..number).map(|_| queues.of_access(&anonymous, address));
            join_all(turns.collect::<Vec<_>>())
        };
        let of_one = turns_of(1, UNKNOWN.each).await;
        let more = turns_of(1, 1).await.pop().unwrap();
        assert!(matches!(more, Err(ReviewError::GivenUp(_))));
        let begun = Instant::now();
        let of_others = join_all((2..5).map(|host| turns_of(host, UNKNOWN.each))).await;
        let user = named("known");
        let of_user = join_all((0..KNOWN.each).map(|_| queues.of_access(&user, ADDRESS))).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let strangers = of_others.iter().flatten().chain(&of_one);
        assert!(strangers.chain(&of_user).all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_is_served_soon_after_its_reviews_have_ceased_to_hang() {
        let hanging = Hanging::default();
        let loops = async {
            join_all((0..200).map(|_| hanging.reviews("stuck"))).await;
        };
        let _ = timeout(Duration::from_secs(30), loops).await;
        let begun = Instant::now();
        let answered = async || {
            let turn = hanging.queues.of_access(&named("stuck"), ADDRESS).await?;
            turn.run(async {
                sleep(LATE / 2).await;
                Ok(())
            })
            .await
        };
        let ends = join_all((0..100).map(|_| answered())).await;
        assert!(ends.iter().all(Result::is_ok));
        assert!(begun.elapsed() < KNOWN_WAIT, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_that_take_seconds_are_not_limited() {
        let queues = ReviewQueues::default();
        let slow = async || {
            let turn = queues.of_access(&named("slow"), ADDRESS).await?;
            let review = async {
                sleep(2 * LATE).await;
                Ok(())
            };
            turn.run(review).await
        };
        let ends = join_all((0..2 * KNOWN.each).map(|_| slow())).await;
        assert!(ends.iter().all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn users_whose_reviews_hang_again_and_again_take_few_places() {
        let hanging = Hanging::default();
        let stuck: Vec<_> = (0..150).map(|n| format!("stuck-{n}")).collect();
        let loops = async {
            join_all(stuck.iter().map(|user| hanging.reviews(user))).await;
        };
        // Nothing of this shows that a user's reviews are answered.
        let beside = async {
            loop {
                for user in &stuck {
                    let turn = hanging.queues.of_users_token(&named(user)).await;
                    assert!(turn.unwrap().run(async { Ok(()) }).await.is_ok());
                    if let Ok(turn) = hanging.queues.of_access(&named(user), ADDRESS).await {
                        let refused = ReviewError::Refused(StatusCode::TOO_MANY_REQUESTS);
                        assert!(turn.run::<()>(async { Err(refused) }).await.is_err());
                    }
                }
                sleep(LATE).await;
            }
        };
        let others = async {
            sleep(HANGS + LATE).await;
            hanging.most.set(0);
            for n in 0..100 {
                let begun = Instant::now();
                let turn = hanging
                    .queues
                    .of_access(&named(&format!("other-{n}")), ADDRESS)
                    .await;
                let verdict = turn.unwrap().run(async { Ok(n) }).await;
                assert_eq!(verdict.unwrap(), n);
                assert_eq!(begun.elapsed(), Duration::ZERO);
                sleep(LATE / 2).await;
            }
            // One whose reviews hung before is served, too, if they do not.
            let begun = Instant::now();
            let turn = hanging.queues.of_access(&named("stuck-7"), ADDRESS).await;
            assert!(turn.unwrap().run(async { Ok(()) }).await.is_ok());
            assert!(begun.elapsed() < KNOWN_WAIT, "{:?}", begun.elapsed());
        };
        tokio::select! {
            () = loops => unreachable!("they go on"),
            () = beside => unreachable!("it goes on"),
            () = others => {}
        }
        let most = hanging.most.get();
        assert!(most <= LIMITED_KNOWN.all + HANGING_KNOWN.all, "{most}");
    }
}
