//! Counts what clients are sent, by source and by client.
mod clients;
mod held_answer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::source::{AnswerSource, ForwardReason};
use crate::body::{AnswerMeter, BodyMeter};
use crate::budget::{MemoryBudget, MemoryCharge, MemoryClass};
use clients::{ClientCounters, ClientTable};

pub use clients::ClientUsage;
pub(super) use held_answer::{HeldAnswer, SentAhead};

/// Bytes of an open watch, as measured (docs/benchmarks.md, Memory of an idle watch).
pub(super) const WATCH_BYTES: usize = 2 << 10;

/// Sums since the start of the process, and the watches of this moment. Cheap to clone.
#[derive(Clone, Default)]
pub struct Usage(Arc<UsageCounters>);

struct UsageCounters {
    requests: [AtomicU64; AnswerSource::NAMES.len()],
    bytes: [AtomicU64; AnswerSource::NAMES.len()],
    reasons: [AtomicU64; ForwardReason::NAMES.len()],
    watches_here: AtomicU64,
    watches_forwarded: AtomicU64,
    clients: ClientTable,
    memory: MemoryBudget,
}

impl Default for UsageCounters {
    // Derived only for up to 32 reasons.
    fn default() -> Self {
        Self {
            requests: Default::default(),
            bytes: Default::default(),
            reasons: std::array::from_fn(|_| AtomicU64::default()),
            watches_here: AtomicU64::default(),
            watches_forwarded: AtomicU64::default(),
            clients: ClientTable::default(),
            memory: MemoryBudget::default(),
        }
    }
}

/// The most expensive clients.
#[derive(Clone, Debug)]
pub struct TopClients {
    /// Rows, most expensive first.
    pub rows: Vec<ClientUsage>,
    /// Number of known clients.
    pub known: usize,
    /// Number of clients evicted to make room for others.
    pub evicted: u64,
}

impl Usage {
    /// Creates counters that charge the memory of answers to this budget.
    pub(super) fn within(memory: &MemoryBudget) -> Self {
        Self(Arc::new(UsageCounters {
            memory: memory.clone(),
            ..UsageCounters::default()
        }))
    }

    /// Returns every source with its requests, and the bytes of their answers' bodies after
    /// compression.
    pub fn by_source(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let all = AnswerSource::NAMES
            .iter()
            .zip(&self.0.requests)
            .zip(&self.0.bytes);
        all.map(move |((name, requests), bytes)| (*name, read(requests), read(bytes)))
    }

    /// Returns the reasons for forwarding, and the number of requests of each.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = ForwardReason::NAMES.iter().zip(&self.0.reasons);
        all.map(|(name, requests)| (*name, requests.load(Ordering::Relaxed)))
    }

    /// Returns the open watches: those served from memory, and the forwarded ones.
    pub fn watches(&self) -> (u64, u64) {
        (
            self.0.watches_here.load(Ordering::Relaxed),
            self.0.watches_forwarded.load(Ordering::Relaxed),
        )
    }

    /// Updates the rates of [`Usage::top`] with what happened since the last tick.
    pub fn tick(&self, passed: Duration) {
        self.0.clients.tick(passed);
    }

    /// Returns up to `limit` of the most expensive clients.
    pub fn top(&self, limit: usize) -> TopClients {
        let (rows, known, evicted) = self.0.clients.top(limit);
        TopClients {
            rows,
            known,
            evicted,
        }
    }

    /// Counts an answered request. The returned meter counts its bytes and, for a watch, its life. It
    /// keeps what the answer holds.
    pub(super) fn answered(
        &self,
        source: AnswerSource,
        user: Option<&str>,
        agent: &str,
        watch: bool,
        held: Option<HeldAnswer>,
    ) -> AnswerMeter {
        let forwarded = if let AnswerSource::Forward(reason) = source {
            self.0.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
            true
        } else {
            false
        };
        self.0.requests[source.index()].fetch_add(1, Ordering::Relaxed);
        let client = self.0.clients.request(user, agent, forwarded);
        let charge = || self.0.memory.charge(MemoryClass::Answers, WATCH_BYTES);
        let answer = AnswerCounter {
            _charge: (watch && !forwarded).then(charge),
            held: held.map(Mutex::new),
            usage: self.clone(),
            client,
            source,
            watch,
        };
        if watch {
            answer.watches().fetch_add(1, Ordering::Relaxed);
            answer.client.watch_began();
        }
        AnswerMeter(Arc::new(answer))
    }
}

/// Counts one answer.
struct AnswerCounter {
    /// The memory of a watch that is answered here. Other answers count by what is held.
    _charge: Option<MemoryCharge>,
    held: Option<Mutex<HeldAnswer>>,
    usage: Usage,
    client: Arc<ClientCounters>,
    source: AnswerSource,
    watch: bool,
}

impl AnswerCounter {
    fn watches(&self) -> &AtomicU64 {
        let inner = &*self.usage.0;
        if matches!(self.source, AnswerSource::Forward(_)) {
            &inner.watches_forwarded
        } else {
            &inner.watches_here
        }
    }
}

impl BodyMeter for AnswerCounter {
    fn sent(&self, bytes: usize) -> bool {
        self.usage.0.bytes[self.source.index()].fetch_add(bytes as u64, Ordering::Relaxed);
        self.client.sent(bytes);
        let held = self.held.as_ref();
        held.is_none_or(|held| held.lock().waits(bytes))
    }

    fn taken(&self) {
        if let Some(held) = &self.held {
            held.lock().taken();
        }
    }
}

impl Drop for AnswerCounter {
    fn drop(&mut self) {
        if self.watch {
            self.watches().fetch_sub(1, Ordering::Relaxed);
            self.client.watch_ended();
        }
    }
}
