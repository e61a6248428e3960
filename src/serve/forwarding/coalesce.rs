//! Identical reads that are on their way to upstream at the same time share one request.
//!
//! They are consistent reads, and others that many clients may send at once when memory cannot
//! answer them.
//!
//! The first is forwarded as it is. Callers that ask the same while it is under way wait for a
//! request that begins after they came: its response is no older than their reads. It carries the
//! credentials of one of them, and is given only to callers that may have it.
//!
//! A crowd that has its response is expected again for some milliseconds. Until then nobody is the
//! first, or the crowd would be left in two groups: those that came while that one was forwarded,
//! and those that came after.
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::slow_leaders::{Leader, SlowLeaders};
use crate::body::Body;
use crate::budget::{MemoryBudget, MemoryClass};
use crate::serve::client_address::FORWARDED_FOR;
use crate::serve::limits::forwards::ForwardShare;
use crate::serve::plan::request_key::RequestKey;
use crate::serve::stored_response::{ResponseBudget, StoredResponse};
use crate::shared_calls::{FlightPace, Singleflight};
use crate::upstream::{AnswerError, ConnectionClass, ForwardIdentity, ForwardOptions, Forwarder};

/// Largest response that is shared. It is held whole; larger ones are forwarded to each caller.
const MAX_BYTES: usize = 32 << 20;
/// Upper bound of all responses held for clients that take them slowly.
const BUDGET: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a caller waits until upstream begins to answer a request that may be another's.
///
/// Upstream queues requests by their callers' priority, so another's request may wait for longer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Time after which a request is slow that upstream has not begun to answer. Most of its callers have
/// waited longer: for the request before it, too.
const SLOW: Duration = Duration::from_millis(500);
/// Time for which a slow request is remembered.
const APART: Duration = Duration::from_secs(10);
/// Nobody is served by a response for which nobody waits any more.
const PACE: FlightPace = FlightPace {
    ends_unwanted: true,
    ..FlightPace::OF_CROWDS
};

/// Identical reads that are under way.
struct CoalescedRead {
    /// Callers that ask for it.
    callers: usize,
    /// Crowds that are expected to ask again.
    expected: usize,
    /// The caller with whose credentials the last shared request was sent, and that moment.
    leader: Option<(Leader, Instant)>,
    slow: SlowLeaders,
    flight: SharedFlight,
    /// `true` while upstream sends the answer to the shared request.
    receiving: watch::Sender<bool>,
}

type SharedFlight = Arc<Singleflight<Option<Arc<StoredResponse>>>>;

impl Default for CoalescedRead {
    fn default() -> Self {
        Self {
            callers: 0,
            expected: 0,
            leader: None,
            slow: SlowLeaders::None,
            flight: Arc::new(Singleflight::paced(PACE)),
            receiving: watch::Sender::new(false),
        }
    }
}

/// All reads that are under way.
#[derive(Default)]
struct CoalescedReads(Mutex<HashMap<RequestKey, CoalescedRead>>);

/// A caller's place among those of a read, for as long as this lives.
struct CoalescedPlace {
    reads: Arc<CoalescedReads>,
    key: RequestKey,
    caller: Leader,
    flight: SharedFlight,
    receiving: watch::Sender<bool>,
    /// It shares no request: no other caller asks for the same or is expected to, or it would be slow.
    is_first: bool,
}

/// Shows that upstream sends its response, for as long as this lives.
struct Receiving<'a>(&'a watch::Sender<bool>);

impl CoalescedReads {
    fn enter(self: &Arc<Self>, key: RequestKey, caller: Leader) -> CoalescedPlace {
        let mut reads = self.0.lock();
        let read = reads.entry(key.clone()).or_default();
        let is_first = !read.is_wanted() || read.slow.concern(caller);
        read.callers += 1;
        CoalescedPlace {
            reads: Arc::clone(self),
            key,
            caller,
            flight: Arc::clone(&read.flight),
            receiving: read.receiving.clone(),
            is_first,
        }
    }

    /// Keeps a read for the crowd that gets its response now, if it is one.
    fn expect_again(self: &Arc<Self>, key: RequestKey) {
        let mut reads = self.0.lock();
        let Some(read) = reads.get_mut(&key) else {
            return;
        };
        if !FlightPace::OF_CROWDS.is_crowd(read.callers) {
            return;
        }
        read.expected += 1;
        let reunion = FlightPace::longest_reunion(read.callers);
        drop(reads);
        let expecting = Arc::clone(self);
        tokio::spawn(async move {
            sleep(reunion).await;
            expecting.leave(&key, |read| read.expected -= 1);
        });
    }

    /// Notes the caller with whose credentials a request is sent now.
    fn set_leader(&self, key: &RequestKey, leader: Leader) {
        if let Some(read) = self.0.lock().get_mut(key) {
            read.leader = Some((leader, Instant::now()));
        }
    }

    /// Notes that a caller waited in vain. If upstream has had time to begin its answer, others like its
    /// leader do not wait for a while.
    fn set_apart(self: &Arc<Self>, key: &RequestKey) {
        let mut reads = self.0.lock();
        let Some(read) = reads.get_mut(key) else {
            return;
        };
        let Some((leader, _)) = read.leader.filter(|(_, sent)| sent.elapsed() >= SLOW) else {
            return;
        };
        let before = read.slow;
        read.slow.add(leader);
        if before != SlowLeaders::None {
            return;
        }
        // It is remembered when all of its callers have left.
        read.expected += 1;
        drop(reads);
        let (reads, key) = (Arc::clone(self), key.clone());
        tokio::spawn(async move {
            sleep(APART).await;
            reads.leave(&key, |read| {
                read.expected -= 1;
                read.slow = SlowLeaders::None;
            });
        });
    }

    /// Changes a read, and forgets it once nobody wants it.
    fn leave(&self, key: &RequestKey, change: impl FnOnce(&mut CoalescedRead)) {
        let mut reads = self.0.lock();
        if let Some(read) = reads.get_mut(key) {
            change(read);
            if !read.is_wanted() {
                reads.remove(key);
            }
        }
    }
}

impl CoalescedRead {
    fn is_wanted(&self) -> bool {
        self.callers + self.expected > 0
    }
}

impl<'a> Receiving<'a> {
    fn begin(receiving: &'a watch::Sender<bool>) -> Self {
        receiving.send_replace(true);
        Self(receiving)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl Drop for CoalescedPlace {
    fn drop(&mut self) {
        self.reads.leave(&self.key, |read| read.callers -= 1);
    }
}

/// All shared reads that are under way at upstream.
pub(in crate::serve) struct Coalescer {
    forwarder: Forwarder,
    reads: Arc<CoalescedReads>,
    budget: Arc<ResponseBudget>,
}

/// A read that is under way, for as long as this lives.
pub(in crate::serve) struct CoalescerSlot<'a> {
    coalescer: &'a Coalescer,
    place: CoalescedPlace,
}

impl Coalescer {
    pub(in crate::serve) fn new(forwarder: Forwarder, memory: &MemoryBudget) -> Self {
        Self {
            forwarder,
            reads: Arc::default(),
            budget: Arc::new(ResponseBudget::new(BUDGET, memory, MemoryClass::Answers)),
        }
    }

    /// Takes a slot among the reads that are under way.
    pub(in crate::serve) fn enter(
        &self,
        key: RequestKey,
        headers: &HeaderMap,
        identity: &ForwardIdentity,
    ) -> CoalescerSlot<'_> {
        let leader = Leader::of(headers, identity);
        CoalescerSlot {
            coalescer: self,
            place: self.reads.enter(key, leader),
        }
    }
}

impl CoalescerSlot<'_> {
    /// Returns `true` if no other caller asks for the same or is expected to, or a shared request would be
    /// slow.
    pub(in crate::serve) fn is_first(&self) -> bool {
        self.place.is_first
    }

    /// Returns the response to a request that is sent after this call, with the credentials of
    /// `caller` or of another who waits; `None` if upstream should be asked for each, or does not
    /// begin to answer. The request may outlive this caller, and holds `share` if it is this one's.
    pub(in crate::serve) async fn answer(
        &self,
        caller: &HeaderMap,
        identity: ForwardIdentity,
        share: ForwardShare,
    ) -> Option<Arc<StoredResponse>> {
        let fetch = SharedFetch {
            forwarder: self.coalescer.forwarder.clone(),
            budget: Arc::clone(&self.coalescer.budget),
            reads: Arc::clone(&self.place.reads),
            key: self.place.key.clone(),
            receiving: self.place.receiving.clone(),
            headers: headers_of(caller),
            leader: self.place.caller,
            identity,
            _share: share,
        };
        let answer = self.place.flight.join(move || fetch.run());
        tokio::select! {
            answer = answer => answer.flatten(),
            () = patience_ends(self.place.receiving.subscribe()) => {
                self.place.reads.set_apart(&self.place.key);
                None
            }
        }
    }
}

/// Waits until upstream has not begun to answer for a while.
async fn patience_ends(mut receiving: watch::Receiver<bool>) {
    loop {
        // The sender lives as long as the caller's slot.
        let _ = receiving.wait_for(|receiving| !receiving).await;
        let begins = receiving.wait_for(|receiving| *receiving);
        if timeout(ANSWER_WAIT, begins).await.is_err() {
            return;
        }
    }
}

/// A request to upstream with the credentials of one caller, for all that wait.
struct SharedFetch {
    forwarder: Forwarder,
    budget: Arc<ResponseBudget>,
    reads: Arc<CoalescedReads>,
    key: RequestKey,
    receiving: watch::Sender<bool>,
    headers: HeaderMap,
    leader: Leader,
    identity: ForwardIdentity,
    _share: ForwardShare,
}

impl SharedFetch {
    /// Returns the response, and expects its crowd again.
    async fn run(self) -> Option<Arc<StoredResponse>> {
        self.reads.set_leader(&self.key, self.leader);
        let fetched = timeout(TIMEOUT, self.fetch()).await;
        let response = fetched
            .ok()?
            .inspect_err(|error| tracing::debug!(%error, "a coalesced read failed"))
            .ok()?;
        self.reads.expect_again(self.key);
        Some(Arc::new(response))
    }

    async fn fetch(&self) -> Result<StoredResponse, AnswerError> {
        let options = ForwardOptions {
            class: ConnectionClass::Short,
            identity: self.identity.clone(),
            share: None,
        };
        let request = self.key.request(self.headers.clone())?;
        let response = self.forwarder.forward_body(request, options).await?;
        let _receiving = Receiving::begin(&self.receiving);
        match response.status() {
            StatusCode::OK | StatusCode::NOT_FOUND => {
                StoredResponse::read(response.map(named), MAX_BYTES, &self.budget).await
            }
            _ => Err(AnswerError::refused(&response)),
        }
    }
}

/// Returns the headers of a caller that a shared request carries.
fn headers_of(caller: &HeaderMap) -> HeaderMap {
    let names = [header::AUTHORIZATION, header::USER_AGENT, FORWARDED_FOR];
    let value_of = |name| Some((caller.get(&name)?.clone(), name));
    let headers = names.into_iter().filter_map(value_of);
    headers.map(|(value, name)| (name, value)).collect()
}

/// Gives errors one type: the compiler can't follow boxed ones into a task.
fn named(body: Body) -> UnsyncBoxBody<Bytes, io::Error> {
    body.map_err(io::Error::other).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_calls::REUNION;

    fn key() -> RequestKey {
        RequestKey::of_target("/api/v1/pods".into(), &HeaderMap::new())
    }

    fn caller() -> Leader {
        Leader::of(&HeaderMap::new(), &ForwardIdentity::Proxy)
    }

    fn enter(reads: &Arc<CoalescedReads>) -> CoalescedPlace {
        reads.enter(key(), caller())
    }

    /// Gives so many callers their response.
    fn serve_crowd(reads: &Arc<CoalescedReads>, callers: usize) {
        let places = (0..callers).map(|_| enter(reads));
        let _places = places.collect::<Vec<_>>();
        reads.expect_again(key());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_expected_again_for_a_moment() {
        let reads = Arc::default();
        serve_crowd(&reads, 3);
        assert!(enter(&reads).is_first, "three are no crowd");
        serve_crowd(&reads, 4);
        sleep(REUNION / 2).await;
        assert!(!enter(&reads).is_first);
        sleep(REUNION).await;
        assert!(reads.0.lock().is_empty(), "nothing is kept forever");
        assert!(enter(&reads).is_first);
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_a_crowd_that_has_gone_is_soon_alone() {
        let reads = Arc::default();
        serve_crowd(&reads, 4);
        for _ in 0..10 {
            serve_crowd(&reads, 1);
            sleep(REUNION / 5).await;
        }
        assert!(enter(&reads).is_first);
    }

    #[tokio::test(start_paused = true)]
    async fn after_one_waited_in_vain_nobody_waits_for_a_while() {
        let reads: Arc<CoalescedReads> = Arc::default();
        let forwarded = enter(&reads);
        let waiting = enter(&reads);
        reads.set_leader(&key(), caller());
        assert!((forwarded.is_first, waiting.is_first) == (true, false));
        reads.set_apart(&key());
        assert!(!enter(&reads).is_first, "it was sent just now");
        sleep(SLOW).await;
        reads.set_apart(&key());
        // The next one begins when that one is given up.
        let other = Leader::of(
            &HeaderMap::from_iter([(header::AUTHORIZATION, "a".parse().unwrap())]),
            &ForwardIdentity::Caller,
        );
        reads.set_leader(&key(), other);
        reads.set_apart(&key());
        drop(waiting);
        assert!(enter(&reads).is_first);
        assert!(!reads.enter(key(), other).is_first, "it may be faster");
        sleep(APART + REUNION).await;
        assert!(!enter(&reads).is_first, "it is tried again");
        drop(forwarded);
        assert!(reads.0.lock().is_empty(), "nothing is kept forever");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_unless_upstream_answers() {
        let receiving = watch::Sender::new(false);
        let began = Instant::now();
        patience_ends(receiving.subscribe()).await;
        assert!(began.elapsed() >= ANSWER_WAIT);
        let begins = patience_ends(receiving.subscribe());
        let answers = async {
            sleep(ANSWER_WAIT / 2).await;
            receiving.send_replace(true);
            sleep(TIMEOUT).await;
            receiving.send_replace(false);
        };
        let began = Instant::now();
        tokio::join!(begins, answers);
        assert!(began.elapsed() >= TIMEOUT + ANSWER_WAIT);
    }
}
