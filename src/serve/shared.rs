//! Identical consistent reads that are on their way to upstream at the same time share one request.
//!
//! The first is forwarded as it is. Who asks the same while it is under way waits for a request that begins after they
//! came: its answer is no older than their questions. It is the proxy's own, and given only to callers who may have it.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::replay::{NoReplay, Replay};
use super::turns::Turns;
use crate::http::body::empty;
use crate::upstream::{Class, Client, SendOptions};

/// Larger answers are sent to each by themselves: these are held whole.
const MAX_BYTES: usize = 32 << 20;
const ANSWER: Duration = Duration::from_secs(30);

/// What upstream's answer depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    path_and_query: String,
    accept: Vec<HeaderValue>,
    accept_encoding: Vec<HeaderValue>,
}

/// Those who ask the same.
#[derive(Debug, Default)]
struct Herd {
    /// How many there are.
    size: usize,
    turns: Arc<Turns<Option<Arc<Replay>>>>,
}

/// The reads that are under way.
pub(super) struct Shared {
    client: Client,
    herds: Mutex<HashMap<Key, Herd>>,
}

/// A read that is under way, for as long as this lives.
pub(super) struct Place<'a> {
    shared: &'a Shared,
    key: Key,
    turns: Arc<Turns<Option<Arc<Replay>>>>,
    /// Nobody else asks the same.
    pub(super) is_first: bool,
}

impl Shared {
    pub(super) fn new(client: Client) -> Self {
        Self { client, herds: Mutex::default() }
    }

    pub(super) fn enter<B>(&self, request: &Request<B>) -> Place<'_> {
        let all = |name| request.headers().get_all(name).iter().cloned().collect();
        let path_and_query = request.uri().path_and_query();
        let key = Key {
            path_and_query: path_and_query.map_or_else(String::new, ToString::to_string),
            accept: all(header::ACCEPT),
            accept_encoding: all(header::ACCEPT_ENCODING),
        };
        let mut herds = self.herds.lock();
        let herd = herds.entry(key.clone()).or_default();
        herd.size += 1;
        let (turns, is_first) = (Arc::clone(&herd.turns), herd.size == 1);
        Place { shared: self, key, turns, is_first }
    }
}

impl Place<'_> {
    /// The answer to a request that is sent after this call; `None` if upstream should be asked for each.
    pub(super) async fn answer(&self) -> Option<Arc<Replay>> {
        let (client, key) = (self.shared.client.clone(), self.key.clone());
        let answer = self.turns.next(move || {
            let (client, key) = (client.clone(), key.clone());
            async move {
                let fetched = timeout(ANSWER, fetch(&client, key)).await.ok()?;
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
        if let Some(herd) = herds.get_mut(&self.key) {
            herd.size -= 1;
            if herd.size == 0 {
                herds.remove(&self.key);
            }
        }
    }
}

async fn fetch(client: &Client, key: Key) -> Result<Replay, NoReplay> {
    let odd = |error: http::Error| NoReplay::Answer(error.to_string());
    let mut request = Request::get(key.path_and_query).body(empty()).map_err(odd)?;
    for (name, values) in [(header::ACCEPT, key.accept), (header::ACCEPT_ENCODING, key.accept_encoding)] {
        for value in values {
            request.headers_mut().append(name.clone(), value);
        }
    }
    let response = client.send(Class::Short, request, SendOptions::default()).await?;
    match response.status() {
        StatusCode::OK | StatusCode::NOT_FOUND => Replay::read(response, MAX_BYTES).await,
        status => Err(NoReplay::Status(status)),
    }
}
