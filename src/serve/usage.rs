//! What clients were given, by where it came from, and who they are.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clients::{Client, Clients};
use super::source::{AnswerSource, ForwardReason};
use crate::body::{AnswerMeter, BodyMeter};

pub use super::clients::ClientUsage;

/// Sums since the start of the process, and the watches of this moment. Cheap to clone.
#[derive(Clone, Default)]
pub struct Usage(Arc<Inner>);

#[derive(Default)]
struct Inner {
    requests: [AtomicU64; AnswerSource::NAMES.len()],
    bytes: [AtomicU64; AnswerSource::NAMES.len()],
    reasons: [AtomicU64; ForwardReason::NAMES.len()],
    watches_here: AtomicU64,
    watches_forwarded: AtomicU64,
    clients: Clients,
}

/// Those who cost most.
#[derive(Clone, Debug)]
pub struct TopClients {
    /// The first of them.
    pub rows: Vec<ClientUsage>,
    /// How many are known now.
    pub known: usize,
    /// How many were let go of to make room for others.
    pub let_go: u64,
}

impl Usage {
    /// Every source with its requests, and the bytes of their answers' bodies, as compressed as
    /// they were sent.
    pub fn by_source(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let all = AnswerSource::NAMES
            .iter()
            .zip(&self.0.requests)
            .zip(&self.0.bytes);
        all.map(move |((name, requests), bytes)| (*name, read(requests), read(bytes)))
    }

    /// Why requests were forwarded, and how many.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = ForwardReason::NAMES.iter().zip(&self.0.reasons);
        all.map(|(name, requests)| (*name, requests.load(Ordering::Relaxed)))
    }

    /// Watches open now: served from memory, and forwarded.
    pub fn watches(&self) -> (u64, u64) {
        (
            self.0.watches_here.load(Ordering::Relaxed),
            self.0.watches_forwarded.load(Ordering::Relaxed),
        )
    }

    /// Looks at what was done since the last look, for the rates of [`Usage::top`].
    pub fn tick(&self, passed: Duration) {
        self.0.clients.tick(passed);
    }

    /// Those who cost most of late, at most so many.
    pub fn top(&self, most: usize) -> TopClients {
        let (rows, known, let_go) = self.0.clients.top(most);
        TopClients {
            rows,
            known,
            let_go,
        }
    }

    /// A request is answered; what counts the bytes and, if it is an open watch, how long it stays.
    pub(super) fn answered(
        &self,
        source: AnswerSource,
        user: Option<&str>,
        agent: &str,
        watch: bool,
    ) -> AnswerMeter {
        let forwarded = if let AnswerSource::Forward(reason) = source {
            self.0.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
            true
        } else {
            false
        };
        self.0.requests[source.index()].fetch_add(1, Ordering::Relaxed);
        let client = self.0.clients.came(user, agent, forwarded);
        let answer = Answer {
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
struct Answer {
    usage: Usage,
    client: Arc<Client>,
    source: AnswerSource,
    watch: bool,
}

impl Answer {
    fn watches(&self) -> &AtomicU64 {
        let inner = &*self.usage.0;
        if matches!(self.source, AnswerSource::Forward(_)) {
            &inner.watches_forwarded
        } else {
            &inner.watches_here
        }
    }
}

impl BodyMeter for Answer {
    fn sent(&self, bytes: usize) {
        self.usage.0.bytes[self.source.index()].fetch_add(bytes as u64, Ordering::Relaxed);
        self.client.sent(bytes);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.watch {
            self.watches().fetch_sub(1, Ordering::Relaxed);
            self.client.watch_ended();
        }
    }
}
