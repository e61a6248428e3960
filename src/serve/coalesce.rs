//! Identical consistent reads that are on their way to upstream at the same time share one request.
//!
//! The first is forwarded as it is. Callers that ask the same while it is under way wait for a
//! request that begins after they came: its response is no older than their reads. It carries the
//! credentials of one of them, and is given only to callers that may have it.
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::client_address::FORWARDED_FOR;
use super::singleflight::Singleflight;
use super::stored_response::{RequestKey, ResponseBudget, StoredResponse};
use crate::body::Body;
use crate::budget::{MemoryBudget, MemoryClass};
use crate::upstream::{AnswerError, ForwardIdentity, ForwardOptions, Forwarder};

/// Largest response that is shared. It is held whole; larger ones are forwarded to each caller.
const MAX_BYTES: usize = 32 << 20;
/// Upper bound of all responses held for clients that take them slowly.
const BUDGET: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a caller waits until upstream begins to answer a request that may be another's.
///
/// Upstream queues requests by their callers' priority, so another's request may wait for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Identical reads that are under way.
struct CoalescedRead {
    /// Callers that ask for it.
    callers: usize,
    flight: SharedFlight,
    /// `true` while upstream sends the answer to the shared request.
    receiving: watch::Sender<bool>,
}

type SharedFlight = Arc<Singleflight<Option<Arc<StoredResponse>>>>;

/// All consistent reads that are under way at upstream.
pub(super) struct Coalescer {
    forwarder: Forwarder,
    reads: Mutex<HashMap<RequestKey, CoalescedRead>>,
    budget: Arc<ResponseBudget>,
}

/// A read that is under way, for as long as this lives.
pub(super) struct CoalescerSlot<'a> {
    coalescer: &'a Coalescer,
    key: RequestKey,
    flight: SharedFlight,
    receiving: watch::Sender<bool>,
    /// No other caller asks for the same.
    pub(super) is_first: bool,
}

impl Default for CoalescedRead {
    fn default() -> Self {
        Self {
            callers: 0,
            flight: SharedFlight::default(),
            receiving: watch::Sender::new(false),
        }
    }
}

impl Coalescer {
    pub(super) fn new(forwarder: Forwarder, memory: &MemoryBudget) -> Self {
        Self {
            forwarder,
            reads: Mutex::default(),
            budget: Arc::new(ResponseBudget::new(BUDGET, memory, MemoryClass::Answers)),
        }
    }

    /// Takes a slot among the reads that are under way.
    pub(super) fn enter<B>(&self, request: &Request<B>) -> CoalescerSlot<'_> {
        let key = RequestKey::new(request);
        let mut reads = self.reads.lock();
        let read = reads.entry(key.clone()).or_default();
        read.callers += 1;
        CoalescerSlot {
            coalescer: self,
            key,
            flight: Arc::clone(&read.flight),
            receiving: read.receiving.clone(),
            is_first: read.callers == 1,
        }
    }
}

impl CoalescerSlot<'_> {
    /// Returns the response to a request that is sent after this call, with the credentials of
    /// `caller` or of another who waits; `None` if upstream should be asked for each, or does not
    /// begin to answer.
    pub(super) async fn answer(
        &self,
        caller: &HeaderMap,
        authority: &ForwardIdentity,
    ) -> Option<Arc<StoredResponse>> {
        let (forwarder, key) = (self.coalescer.forwarder.clone(), self.key.clone());
        let (authority, budget) = (authority.clone(), Arc::clone(&self.coalescer.budget));
        let kept = [header::AUTHORIZATION, header::USER_AGENT, FORWARDED_FOR];
        let caller = kept.map(|name| {
            let value = caller.get(&name).cloned();
            (name, value)
        });
        let receiving = self.receiving.clone();
        let answer = self.flight.join(move || async move {
            let fetched = fetch(&forwarder, &key, caller, &authority, (&budget, &receiving));
            let fetched = timeout(TIMEOUT, fetched).await;
            receiving.send_replace(false);
            fetched
                .ok()?
                .inspect_err(|error| tracing::debug!(%error, "a coalesced read failed"))
                .ok()
                .map(Arc::new)
        });
        tokio::select! {
            answer = answer => answer.flatten(),
            () = patience_ends(self.receiving.subscribe()) => None,
        }
    }
}

/// Waits until upstream has not begun to answer for a while.
async fn patience_ends(mut receiving: watch::Receiver<bool>) {
    loop {
        // The sender lives as long as the caller's slot.
        let _ = receiving.wait_for(|receiving| !receiving).await;
        let begins = receiving.wait_for(|receiving| *receiving);
        if timeout(PATIENCE, begins).await.is_err() {
            return;
        }
    }
}

impl Drop for CoalescerSlot<'_> {
    fn drop(&mut self) {
        let mut reads = self.coalescer.reads.lock();
        if let Some(read) = reads.get_mut(&self.key) {
            read.callers -= 1;
            if read.callers == 0 {
                reads.remove(&self.key);
            }
        }
    }
}

async fn fetch(
    forwarder: &Forwarder,
    key: &RequestKey,
    caller: [(HeaderName, Option<HeaderValue>); 3],
    authority: &ForwardIdentity,
    (budget, receiving): (&ResponseBudget, &watch::Sender<bool>),
) -> Result<StoredResponse, AnswerError> {
    let options = ForwardOptions {
        long: false,
        identity: authority.clone(),
        share: None,
    };
    let response = forwarder
        .forward_body(key.request(caller)?, options)
        .await?;
    receiving.send_replace(true);
    match response.status() {
        StatusCode::OK | StatusCode::NOT_FOUND => {
            StoredResponse::read(response.map(named), MAX_BYTES, budget).await
        }
        status => Err(AnswerError::Status(status)),
    }
}

/// Gives errors one type: the compiler can't follow boxed ones into a task.
fn named(body: Body) -> UnsyncBoxBody<Bytes, io::Error> {
    body.map_err(io::Error::other).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_ends_unless_upstream_answers() {
        let receiving = watch::Sender::new(false);
        let began = Instant::now();
        patience_ends(receiving.subscribe()).await;
        assert!(began.elapsed() >= PATIENCE);
        let begins = patience_ends(receiving.subscribe());
        let answers = async {
            sleep(PATIENCE / 2).await;
            receiving.send_replace(true);
            sleep(TIMEOUT).await;
            receiving.send_replace(false);
        };
        let began = Instant::now();
        tokio::join!(begins, answers);
        assert!(began.elapsed() >= TIMEOUT + PATIENCE);
    }
}
