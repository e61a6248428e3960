//! Identical consistent reads that are on their way to upstream at the same time share one request.
//!
//! The first is forwarded as it is. Who asks the same while it is under way waits for a request
//! that begins after they came: its answer is no older than their questions. It is one of theirs,
//! and given only to callers who may have it.
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::replay::{Question, Replay, Room};
use super::turns::Turns;
use crate::body::Body;
use crate::upstream::{AnswerError, ForwardIdentity, Forwarder};

/// Larger answers are sent to each by themselves: these are held whole.
const MAX_BYTES: usize = 32 << 20;
/// And all that is held for those who take it slowly has this much room.
const ROOM: usize = 64 << 20;
const READING: usize = 16;
const ANSWER: Duration = Duration::from_secs(30);

/// Those who ask the same.
#[derive(Default)]
struct Herd {
    /// How many there are.
    size: usize,
    turns: Arc<Turns<Option<Arc<Replay>>>>,
}

/// The reads that are under way.
pub(super) struct Shared {
    forwarder: Forwarder,
    herds: Mutex<HashMap<Question, Herd>>,
    room: Arc<Room>,
}

/// A read that is under way, for as long as this lives.
pub(super) struct Place<'a> {
    shared: &'a Shared,
    question: Question,
    turns: Arc<Turns<Option<Arc<Replay>>>>,
    /// Nobody else asks the same.
    pub(super) is_first: bool,
}

impl Shared {
    pub(super) fn new(forwarder: Forwarder) -> Self {
        Self {
            forwarder,
            herds: Mutex::default(),
            room: Arc::new(Room::new(ROOM, READING)),
        }
    }

    pub(super) fn enter<B>(&self, request: &Request<B>) -> Place<'_> {
        let question = Question::of(request);
        let mut herds = self.herds.lock();
        let herd = herds.entry(question.clone()).or_default();
        herd.size += 1;
        let (turns, is_first) = (Arc::clone(&herd.turns), herd.size == 1);
        Place {
            shared: self,
            question,
            turns,
            is_first,
        }
    }
}

impl Place<'_> {
    /// The answer to a request that is sent after this call, with the credentials of `caller` or of
    /// another who waits; `None` if upstream should be asked for each.
    pub(super) async fn answer(
        &self,
        caller: &HeaderMap,
        authority: &ForwardIdentity,
    ) -> Option<Arc<Replay>> {
        let (forwarder, question) = (self.shared.forwarder.clone(), self.question.clone());
        let (authority, room) = (authority.clone(), Arc::clone(&self.shared.room));
        let caller = [header::AUTHORIZATION, header::USER_AGENT].map(|name| {
            let value = caller.get(&name).cloned();
            (name, value)
        });
        let answer = self.turns.next(move || {
            let (forwarder, question, caller) =
                (forwarder.clone(), question.clone(), caller.clone());
            let (authority, room) = (authority.clone(), Arc::clone(&room));
            async move {
                let fetched = fetch(&forwarder, &question, caller, &authority, &room);
                let fetched = timeout(ANSWER, fetched).await.ok()?;
                fetched
                    .inspect_err(|error| tracing::debug!(%error, "a shared read failed"))
                    .ok()
                    .map(Arc::new)
            }
        });
        answer.await.flatten()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut herds = self.shared.herds.lock();
        if let Some(herd) = herds.get_mut(&self.question) {
            herd.size -= 1;
            if herd.size == 0 {
                herds.remove(&self.question);
            }
        }
    }
}

async fn fetch(
    forwarder: &Forwarder,
    question: &Question,
    caller: [(HeaderName, Option<HeaderValue>); 2],
    authority: &ForwardIdentity,
    room: &Room,
) -> Result<Replay, AnswerError> {
    let response = forwarder
        .forward_body(question.request(caller)?, false, authority)
        .await?;
    match response.status() {
        StatusCode::OK | StatusCode::NOT_FOUND => {
            Replay::read(response.map(named), MAX_BYTES, room).await
        }
        status => Err(AnswerError::Status(status)),
    }
}

/// Errors of one type: the compiler can't follow boxed ones into a task.
fn named(body: Body) -> UnsyncBoxBody<Bytes, io::Error> {
    body.map_err(io::Error::other).boxed_unsync()
}
