//! The shares that callers have of the memory that requests take until they are answered and their
//! clients have taken the answers.
use http::{Response, StatusCode};
use http_body::Body as HttpBody;

use super::requests::LimitExceeded;
use super::watches::retained_bytes;
use crate::access::field_bytes;
use crate::body::{Body, InMemory};
use crate::budget::{MemoryBudget, MemoryClass};
use crate::fairness::{CallerKey, Share, ShareLimits, Shares};
use crate::serve::exchange::Exchange;
use crate::serve::metrics;
use crate::serve::plan::PlannedAction;
use crate::serve::usage::HeldAnswer;

/// The part of the memory budget that all requests may take, one of so many. One caller alone gets
/// half of it.
const PARTS: usize = 4;
/// Bytes that all requests may take where there is no budget.
const WITHOUT_BUDGET: usize = 1 << 30;

/// Bytes of a request and its answer, besides what is counted below.
const REQUEST_BYTES: u64 = 8 << 10;
/// Copies of a request's head, while it waits and while it is forwarded.
const HEAD_COPIES: u64 = 2;
/// Length of a path and query from which on the memory of its selectors is counted.
const LONG_QUERY: usize = 2 << 10;
/// Bytes of a request's body that its connection takes before they are sent on.
const UPLOAD_BYTES: u64 = 256 << 10;
/// Bytes of an answer that wait for its client, if they are made for it.
const MADE_BYTES: u64 = 64 << 10;
/// Bytes of a forwarded answer that upstream sends ahead.
const FORWARDED_BYTES: u64 = 512 << 10;
/// Counts the memory that the requests of each caller take.
pub(in crate::serve) struct RequestMemory(Shares);

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
}

impl RequestMemory {
    pub(in crate::serve) fn within(memory: &MemoryBudget) -> Self {
        let bytes = memory.limit().map_or(WITHOUT_BUDGET, |limit| limit / PARTS);
        let limits = ShareLimits {
            all: bytes as u64,
            each: 0,
        };
        let held = metrics::in_use(LimitExceeded::Memory.as_str());
        let charge = memory.charge(MemoryClass::Answers, 0);
        Self(Shares::of_memory(limits, held, charge))
    }

    /// Counts a request while it waits for its answer.
    pub(in crate::serve) fn begin(
        &self,
        caller: CallerKey,
        exchange: &Exchange,
    ) -> Result<Share, LimitExceeded> {
        let share = self.0.take(caller, waiting_bytes(exchange));
        share.ok_or(LimitExceeded::Memory)
    }
}

impl AnswerOrigin {
    /// Counts an answer in place of the request that it answers. If the caller's share does not allow
    /// that, it may be refused, unless `is_done` says that it tells of something done.
    pub(in crate::serve) fn hold(
        self,
        mut share: Share,
        answer: &Response<Body>,
        is_done: bool,
    ) -> Result<Option<HeldAnswer>, LimitExceeded> {
        let Some(bytes) = self.bytes(answer) else {
            return Ok(None);
        };
        if is_done {
            share.force(bytes);
        } else if !share.resize(bytes) {
            return Err(LimitExceeded::Memory);
        }
        let is_open = self == Self::OpenUpstream;
        Ok(Some(if is_open {
            HeldAnswer::open(share)
        } else {
            HeldAnswer::whole(share)
        }))
    }

    /// Returns the bytes that an answer takes from its head on; `None` if they count elsewhere.
    fn bytes(self, answer: &Response<Body>) -> Option<u64> {
        let is_in_memory = answer.extensions().get::<InMemory>().is_some();
        let most = match self {
            _ if answer.status() == StatusCode::SWITCHING_PROTOCOLS => return None,
            Self::WatchHere => return None,
            Self::OpenUpstream => return Some(HeldAnswer::IDLE_BYTES),
            Self::Here if is_in_memory => 0,
            Self::Here => MADE_BYTES,
            Self::Upstream => FORWARDED_BYTES,
        };
        let length = answer.body().size_hint().upper();
        Some(REQUEST_BYTES + length.map_or(most, |length| length.min(most)))
    }
}

/// Returns the bytes that a request takes while it waits.
fn waiting_bytes(exchange: &Exchange) -> u64 {
    let request = &exchange.request;
    let uri = request.uri().path_and_query();
    let uri = uri.map_or("", |uri| uri.as_str());
    let head = (uri.len() + field_bytes(request.headers())) as u64;
    let selectors = match &exchange.plan.action {
        PlannedAction::Read(_) if uri.len() > LONG_QUERY => retained_bytes(request.uri().query()),
        _ => 0,
    };
    let body = request.body();
    let upload = match body.size_hint().upper() {
        _ if body.is_end_stream() => 0,
        Some(length) => length.min(UPLOAD_BYTES),
        None => UPLOAD_BYTES,
    };
    REQUEST_BYTES + HEAD_COPIES * head + selectors + upload
}
