//! Discovery, OpenAPI and version documents. Upstream shows everybody the same ones.
//!
//! Each request is answered with what upstream has after the request came. One question asks for
//! all who wait, by ETag where upstream has one: a document is then sent from memory.
//!
//! No document is shown without a question, not even if upstream does not answer: the client may
//! know more than it says, from another document or from a watch. What `/version` says is an exception: it
//! belongs to a process of an API server, so it holds while the connection to that is open.
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use moka::sync::Cache;
use tokio::time::timeout;

use crate::body::{Body, empty};
use crate::budget::{MemoryBudget, MemoryCharge, MemoryClass};
use crate::headers;
use crate::serve::metrics;
use crate::serve::plan::document_request::{DocumentRequest, is_simple_tag};
use crate::serve::plan::request_key::RequestKey;
use crate::serve::stored_response::{ResponseBudget, StoredResponse, share_of};
use crate::shared_calls::{FlightPace, Singleflight};
use crate::upstream::{
    AnswerError, ConnectionClass, SendOptions, ServedBy, UpstreamClient, in_time,
};

/// Largest document that is kept.
const MAX_DOCUMENT: usize = 64 << 20;
/// Time for which `/version` is not asked for again. A load balancer that forwards request by request could
/// keep a connection open although the API server behind it is another one.
const RELEASE_KEPT: Duration = Duration::from_mins(1);
/// Number of kept answers for `/version`: clients ask for it with different headers.
const MAX_RELEASES: u64 = 64;
/// Documents that nobody asked for in this time are dropped.
const DROP_AFTER_IDLE: Duration = Duration::from_mins(10);
/// Upper bound of all documents, with those that are read, and those that are sent and no longer
/// kept. A large cluster's OpenAPI has some ten MB in each encoding.
const BUDGET: usize = 384 << 20;
/// The part of the budget in which documents are kept, in thirds. The rest is for reading.
const KEPT_THIRDS: usize = 2;
/// Limit of a question, and of the wait of a request. Afterwards the request is forwarded.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The questions about one document. A client by itself waits for nothing, however often it asks;
/// thousands that start within a second share a handful of questions.
const PACE: FlightPace = FlightPace {
    patience: Duration::from_secs(2),
    many: 4,
    burst: 5,
    interval: Duration::from_millis(100),
    crowd: None,
    ends_unwanted: false,
};
/// Bytes that a kept document takes besides its key, its headers and its body.
const ENTRY_BYTES: usize = 1 << 10;
/// Upper bound of the requests whose pace is remembered, in bytes of their keys.
const MAX_FLIGHT_BYTES: u64 = 4 << 20;
/// The pace of a document is remembered for this long. Then a burst is allowed again anyway.
const FLIGHT_IDLE: Duration = Duration::from_secs(30);
/// Headers that a response without a body leaves out. Source: Go's `net/http` (writeNotModified,
/// serveContent).
const OF_THE_BODY: &[HeaderName] = &[
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::LAST_MODIFIED,
    header::ACCEPT_RANGES,
];

/// The answer to a question, for all who waited for it.
type SharedAnswer = Result<Arc<StoredResponse>, Arc<AnswerError>>;

/// Documents by request.
pub(in crate::serve) struct DocumentCache {
    source: Arc<DocumentSource>,
    flights: Cache<RequestKey, Arc<Singleflight<SharedAnswer>>>,
}

/// Upstream's documents, and those of them that it can be asked about by ETag.
struct DocumentSource {
    client: UpstreamClient,
    tagged: Cache<RequestKey, KeptDocument>,
    /// Answers for `/version`, with the servers that gave them.
    releases: Cache<RequestKey, (KeptDocument, ServedBy)>,
    budget: ResponseBudget,
    memory: MemoryBudget,
}

/// A document that is kept. Its body counts by itself, once for all that share it.
#[derive(Clone)]
struct KeptDocument {
    response: Arc<StoredResponse>,
    /// Counts the key and the headers.
    entry: Arc<MemoryCharge>,
}

impl DocumentCache {
    pub(in crate::serve) fn new(client: UpstreamClient, memory: &MemoryBudget) -> Self {
        let weigh = |_: &RequestKey, document: &KeptDocument| {
            let bytes = document.entry.bytes() + document.response.body.len();
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let tagged = Cache::builder()
            .weigher(weigh)
            .max_capacity((share_of(memory, BUDGET) / 3 * KEPT_THIRDS) as u64)
            .time_to_idle(DROP_AFTER_IDLE)
            .build();
        let releases = Cache::builder()
            .max_capacity(MAX_RELEASES)
            .time_to_live(RELEASE_KEPT)
            .build();
        let weigh_flight = |key: &RequestKey, _: &Arc<Singleflight<SharedAnswer>>| {
            u32::try_from(key.bytes() + 512).unwrap_or(u32::MAX)
        };
        let flights = Cache::builder()
            .weigher(weigh_flight)
            .max_capacity(MAX_FLIGHT_BYTES)
            .time_to_idle(FLIGHT_IDLE)
            .build();
        Self {
            source: Arc::new(DocumentSource {
                client,
                tagged,
                releases,
                budget: ResponseBudget::new(BUDGET, memory, MemoryClass::Documents),
                memory: memory.clone(),
            }),
            flights,
        }
    }

    /// Returns the answer to a request. An error means that upstream should answer it.
    pub(in crate::serve) async fn answer(
        &self,
        asked: &DocumentRequest,
    ) -> Result<Response<Body>, Arc<AnswerError>> {
        if let Some(document) = self.source.known_release(&asked.key) {
            return Ok(respond(&document, asked.known.as_ref()));
        }
        let flight = self
            .flights
            .get_with_by_ref(&asked.key, || Arc::new(Singleflight::paced(PACE)));
        let (source, key) = (Arc::clone(&self.source), asked.key.clone());
        let answer = flight.join(move || async move { source.ask(&key).await.map_err(Arc::new) });
        let document = match timeout(TIMEOUT, answer).await {
            Ok(Some(answer)) => answer?,
            Ok(None) => {
                return Err(Arc::new(AnswerError::Unusable(
                    "the question failed".to_owned(),
                )));
            }
            Err(_) => return Err(Arc::new(AnswerError::Late(TIMEOUT))),
        };
        Ok(respond(&document, asked.known.as_ref()))
    }
}

impl DocumentSource {
    /// Returns the answer for `/version` of a server to which the connection is still open.
    fn known_release(&self, key: &RequestKey) -> Option<Arc<StoredResponse>> {
        let (document, server) = is_release(key).then(|| self.releases.get(key))??;
        server.is_connected().then_some(document.response)
    }

    /// Asks upstream for a document. The answer is what upstream had after this was called.
    async fn ask(&self, key: &RequestKey) -> Result<Arc<StoredResponse>, AnswerError> {
        let known = self.tagged.get(key).map(|kept| kept.response);
        let answer = in_time(TIMEOUT, self.fetch(key, known.clone())).await;
        let result = match (&answer, &known) {
            (Ok(now), Some(known)) if Arc::ptr_eq(now, known) => "unchanged",
            (Ok(_), _) => "sent",
            (Err(_), _) => "failed",
        };
        metrics::document_checked(result);
        answer
    }

    async fn fetch(
        &self,
        key: &RequestKey,
        known: Option<Arc<StoredResponse>>,
    ) -> Result<Arc<StoredResponse>, AnswerError> {
        let tag = known.as_ref().and_then(|known| strong_tag(known)).cloned();
        let condition = tag.map(|tag| (header::IF_NONE_MATCH, tag));
        let request = key.request(condition.into_iter().collect())?;
        let response = self
            .client
            .send(ConnectionClass::Short, request, SendOptions::default())
            .await?;
        let released_by = released_by(key, &response);
        match (response.status(), known) {
            (StatusCode::OK, _) => {
                let mut read = StoredResponse::read(response, MAX_DOCUMENT, &self.budget).await?;
                self.share_body(key, &mut read);
                let document = Arc::new(read);
                // It is of use only as the answer to a later 304, so it does not matter if a slow
                // question puts an older one here: the next question gets the newer one.
                if strong_tag(&document).is_some() {
                    self.tagged.insert(key.clone(), self.kept(key, &document));
                } else if let Some(server) = released_by {
                    let kept = self.kept(key, &document);
                    self.releases.insert(key.clone(), (kept, server));
                }
                Ok(document)
            }
            (StatusCode::NOT_MODIFIED, Some(known)) => Ok(known),
            _ => Err(AnswerError::refused(&response)),
        }
    }

    /// Counts what an entry takes besides its body.
    fn kept(&self, key: &RequestKey, document: &Arc<StoredResponse>) -> KeptDocument {
        let bytes = ENTRY_BYTES + key.bytes() + headers::kept_memory(&document.headers);
        KeptDocument {
            response: Arc::clone(document),
            entry: Arc::new(self.memory.charge(MemoryClass::Documents, bytes)),
        }
    }

    /// Takes the body of a kept document of the same path, if it is the same. Most headers by which
    /// clients ask for a document lead to one of a few bodies, and a client may make up any number of
    /// such headers.
    fn share_body(&self, key: &RequestKey, document: &mut StoredResponse) {
        let kept = self.tagged.iter().find(|(other, kept)| {
            other.path_and_query == key.path_and_query && kept.response.body == document.body
        });
        if let Some((_, kept)) = kept {
            document.body = kept.response.body.clone();
        }
    }
}

fn is_release(key: &RequestKey) -> bool {
    matches!(&*key.path_and_query, "/version" | "/version/")
}

/// Returns the API server that answered a request for `/version`, if its connection is shared and open.
fn released_by<B>(key: &RequestKey, response: &Response<B>) -> Option<ServedBy> {
    is_release(key).then(|| ServedBy::directly(response))?
}

/// Returns the ETag that stands for the bytes of a document.
fn strong_tag(document: &StoredResponse) -> Option<&HeaderValue> {
    let tag = document.headers.get(header::ETAG);
    tag.filter(|tag| is_simple_tag(tag))
}

fn respond(document: &StoredResponse, known: Option<&HeaderValue>) -> Response<Body> {
    let unchanged = known.is_some() && document.headers.get(header::ETAG) == known;
    let mut response = document.response();
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = empty();
        for name in OF_THE_BODY {
            response.headers_mut().remove(name);
        }
    }
    response
}
