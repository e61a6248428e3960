//! The shares that callers have of the memory that requests take until they are answered and their
//! clients have taken the answers.
use http::{Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use watershed_protocol::Verb;

use super::WITHOUT_BUDGET;
use super::exceeded::LimitExceeded;
use super::limit::Limit;
use super::list_memory::ListMemory;
use crate::access::Identity;
use crate::body::{Body, InMemory};
use crate::budget::MemoryBudget;
use crate::fairness::{CallerKey, Share};
use crate::headers::{head_memory, target_bytes};
use crate::serve::exchange::Exchange;
use crate::serve::plan::PlannedAction;
use crate::serve::usage::{HeldAnswer, SentAhead};
use crate::upstream::ConnectionClass;

/// Divisor of the memory budget: the requests of all known callers may take a quarter of it. One caller alone
/// gets half of that.
const KNOWN_DIVISOR: usize = 4;
/// The same for requests of unknown callers.
const UNKNOWN_DIVISOR: usize = 8;
/// Bytes that each known caller may take in any case, if that is a small part of what all may take.
const LEAST: u64 = 1 << 20;
/// Divisor of what all may take: a part of a 32nd is small.
const SMALL_DIVISOR: u64 = 32;

/// Bytes of a request and its answer, besides what is counted below.
const REQUEST_BYTES: u64 = 8 << 10;
/// Length of a path and query from which on the memory of its selectors is counted.
const LONG_QUERY: usize = 2 << 10;
/// Bytes of a request's body that its connection takes before they are sent on.
const UPLOAD_BYTES: u64 = 256 << 10;
/// Bytes of an answer that wait for its client, if they are made for it.
const MADE_BYTES: u64 = 64 << 10;
/// Bytes of a forwarded answer that upstream sends ahead.
const FORWARDED_BYTES: u64 = 512 << 10;
/// Bytes that the answer about one object is expected to take, besides some copies of what was sent.
const OBJECT_BYTES: u64 = 64 << 10;
const SENT_COPIES: u64 = 4;

/// Counts the memory that the requests of each caller take.
pub(in crate::serve) struct RequestMemory {
    known: Limit,
    unknown: Limit,
}

/// The origin of an answer, by which it takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum AnswerOrigin {
    /// It was made here.
    Here,
    /// It is a watch from memory. Those have limits of their own.
    WatchHere,
    /// It comes from upstream.
    Upstream,
    /// It comes from upstream, and may stay open.
    OpenUpstream,
    /// It comes from upstream, where a pod, a service or a node may have written it.
    Relayed,
}

/// The facts about a request by which its answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct AnsweredRequest {
    pub(in crate::serve) origin: AnswerOrigin,
    /// The answer may be refused in favour of a 429. It may not if it tells what upstream has done.
    pub(in crate::serve) may_refuse: bool,
}

impl RequestMemory {
    pub(in crate::serve) fn within(memory: &MemoryBudget) -> Self {
        let budget = memory.limit().unwrap_or(WITHOUT_BUDGET);
        let known = (budget / KNOWN_DIVISOR) as u64;
        let unknown = (budget / UNKNOWN_DIVISOR) as u64;
        let least = LEAST.min(known / SMALL_DIVISOR);
        Self {
            known: Limit::of_memory(LimitExceeded::Memory, known, least, memory),
            unknown: Limit::of_memory(LimitExceeded::UnknownMemory, unknown, 0, memory),
        }
    }

    /// Counts a request while it waits for its answer. Its user is told if that is known already.
    pub(in crate::serve) fn begin(
        &self,
        user: Option<&Identity>,
        exchange: &Exchange<'_>,
    ) -> Result<Share, LimitExceeded> {
        let address = CallerKey::Address(exchange.address());
        let (limit, caller) = match user.and_then(Identity::user_key) {
            Some(user) => (&self.known, user),
            None if exchange.is_known => (&self.known, address),
            None => (&self.unknown, address),
        };
        limit.take(caller, waiting_bytes(exchange))
    }

    /// Counts what a list takes of its own, besides its answer, for the user who was reviewed.
    pub(in crate::serve) fn list(&self, user: &Identity, exchange: &Exchange<'_>) -> ListMemory {
        self.list_of(user.caller_key(exchange.address()))
    }

    /// Counts what a list of a caller takes of its own.
    pub(in crate::serve) fn list_of(&self, caller: CallerKey) -> ListMemory {
        ListMemory::new(self.known.shares().clone(), caller)
    }

    /// Counts the expected answer of a request that is about to be forwarded: when upstream has done
    /// the work, it is late to refuse it.
    pub(in crate::serve) fn forward(
        &self,
        share: &mut Share,
        exchange: &Exchange<'_>,
    ) -> Result<(), LimitExceeded> {
        let plan = &exchange.plan;
        let answer = match plan.verb {
            _ if plan.forward_class != ConnectionClass::Short => HeldAnswer::IDLE_BYTES,
            Verb::List | Verb::DeleteCollection => FORWARDED_BYTES,
            _ => {
                let sent = SENT_COPIES * upload_bytes(exchange.request.body());
                FORWARDED_BYTES.min(OBJECT_BYTES + sent)
            }
        };
        if share.expect(answer) {
            Ok(())
        } else {
            Err(self.limit_of(share).exceeded())
        }
    }

    /// Counts a request for a known caller, as upstream has accepted its caller: the answer may stay
    /// open for long.
    pub(in crate::serve) fn accepted(&self, share: &mut Share) {
        if self.unknown.owns(share)
            && let Ok(known) = self.known.take(share.caller().clone(), share.amount())
        {
            *share = known;
        }
    }

    /// Returns the limit that a share cannot grow beyond.
    fn limit_of(&self, share: &Share) -> &Limit {
        if self.unknown.owns(share) {
            &self.unknown
        } else {
            &self.known
        }
    }

    /// Counts an answer in place of the request that it answers, for the user who is known by now. If
    /// the share does not allow that, one that may be refused is not counted.
    pub(in crate::serve) fn hold(
        &self,
        mut share: Share,
        user: Option<&Identity>,
        answered: AnsweredRequest,
        answer: &Response<Body>,
    ) -> Result<Option<HeldAnswer>, LimitExceeded> {
        let AnsweredRequest { origin, may_refuse } = answered;
        let Some(bytes) = origin.bytes(answer) else {
            return Ok(None);
        };
        let user = user.and_then(Identity::user_key);
        if let Some(user) = user.filter(|user| user != share.caller()) {
            let named = self.known.take(user.clone(), bytes);
            share = match (named, may_refuse) {
                (Ok(share), _) => share,
                (Err(exceeded), true) => return Err(exceeded),
                (Err(_), false) => self.known.shares().take_in_any_case(user, bytes),
            };
        } else if !may_refuse {
            share.force(bytes);
        } else if !share.resize(bytes) {
            return Err(self.limit_of(&share).exceeded());
        }
        Ok(Some(match origin {
            AnswerOrigin::OpenUpstream => {
                HeldAnswer::of_waiting(share, SentAhead::EVENTS, may_refuse)
            }
            AnswerOrigin::Relayed => {
                let length = answer.body().size_hint().upper();
                // A pod can write as much as it likes. What a write has done, it says in a few bytes.
                let is_short = length.is_some_and(|length| length <= FORWARDED_BYTES);
                let may_cut = may_refuse || !is_short;
                HeldAnswer::of_waiting(share, SentAhead::of_pieces(length), may_cut)
            }
            _ => HeldAnswer::whole(share),
        }))
    }
}

impl AnswerOrigin {
    /// Returns the bytes that an answer takes from its head on; `None` if they count elsewhere.
    fn bytes(self, answer: &Response<Body>) -> Option<u64> {
        let is_in_memory = answer.extensions().get::<InMemory>().is_some();
        let most = match self {
            _ if answer.status() == StatusCode::SWITCHING_PROTOCOLS => return None,
            Self::WatchHere => return None,
            Self::OpenUpstream | Self::Relayed => return Some(HeldAnswer::IDLE_BYTES),
            Self::Here if is_in_memory => 0,
            Self::Here => MADE_BYTES,
            Self::Upstream => FORWARDED_BYTES,
        };
        let length = answer.body().size_hint().upper();
        Some(REQUEST_BYTES + length.map_or(most, |length| length.min(most)))
    }
}

/// Returns the bytes that a request takes while it waits.
fn waiting_bytes(exchange: &Exchange<'_>) -> u64 {
    let request = &exchange.request;
    let uri = request.uri();
    let head = head_memory(uri, request.headers()) as u64;
    let selectors = match &exchange.plan.action {
        PlannedAction::Read(read) if target_bytes(uri) > LONG_QUERY => {
            read.planned_selector_bytes()
        }
        _ => 0,
    };
    REQUEST_BYTES + head + selectors + upload_bytes(request.body())
}

/// Returns the bytes of a request's body that its connection takes before they are sent on.
fn upload_bytes(body: &Incoming) -> u64 {
    match body.size_hint().upper() {
        _ if body.is_end_stream() => 0,
        Some(length) => length.min(UPLOAD_BYTES),
        None => UPLOAD_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_who_is_accepted_takes_no_memory_of_strangers_from_then_on() {
        let budget = MemoryBudget::new(Some(1 << 20));
        let memory = RequestMemory::within(&budget);
        let address = CallerKey::Address([192, 0, 2, 1].into());
        let take = || memory.unknown.take(address.clone(), 60 << 10);
        let mut first = take().unwrap();
        assert!(take().is_err(), "one stranger has half of what all have");
        memory.accepted(&mut first);
        assert!(memory.known.owns(&first) && first.amount() == 60 << 10);
        let mut second = take().unwrap();
        memory.accepted(&mut second);
        let third = memory.known.take(address.clone(), 60 << 10);
        assert!(third.is_err(), "it counts among known callers");
    }
}
