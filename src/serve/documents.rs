//! Discovery, OpenAPI and version documents from memory. Upstream shows everybody the same ones.
//!
//! A document is upstream's response as it came, kept for the same path, query, Accept and
//! Accept-Encoding. After [`FRESH`] upstream is asked if it is still current, once for all waiting
//! callers, by ETag where it has one.
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use moka::future::Cache;
use moka::ops::compute::{CompResult, Op};
use tokio::time::timeout;

use super::stored_response::{RequestKey, ResponseBudget, StoredResponse};
use crate::body::{Body, empty};
use crate::catalog::Catalog;
use crate::scope::Timeline;
use crate::upstream::{AnswerError, ConnectionClass, SendOptions, UpstreamClient};
use watershed_protocol::wants_pretty;

/// A document counts as current for this long, from before upstream was asked last.
const FRESH: Duration = Duration::from_millis(900);
/// Upper bound of all documents. A large cluster's OpenAPI has some ten MB in each encoding.
const MAX_BYTES: u64 = 256 << 20;
/// Largest document that is kept.
const MAX_DOCUMENT: usize = 64 << 20;
/// Documents that nobody asked for in this time are dropped.
const IDLE: Duration = Duration::from_mins(10);
/// Upper bound of all documents, with those that are being sent and no longer kept.
const BUDGET: usize = 384 << 20;
const READING: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Headers that a response without a body leaves out. Source: Go's `net/http` (writeNotModified,
/// serveContent).
const OF_THE_BODY: &[HeaderName] = &[
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::LAST_MODIFIED,
    header::ACCEPT_RANGES,
];

/// A request for a document.
#[derive(Clone, Debug)]
pub(super) struct DocumentRequest {
    /// The path that authorization is asked about.
    pub(super) path: String,
    key: RequestKey,
    /// The ETag that the client has.
    known: Option<HeaderValue>,
}

/// Upstream's response.
#[derive(Debug)]
struct CachedDocument {
    answer: StoredResponse,
    /// Upstream confirmed it some time after this.
    asked: Instant,
    /// The timeline in which upstream was asked.
    timeline: u64,
}

impl DocumentRequest {
    /// Returns the document that a request is for, if memory can answer it.
    pub(super) fn new<B>(catalog: &Catalog, request: &Request<B>) -> Option<Self> {
        let (uri, headers) = (request.uri(), request.headers());
        let plain = request.method() == Method::GET
            && is_document(catalog, uri.path())
            && !wants_pretty(uri.query(), headers)
            && !headers.contains_key(header::RANGE)
            && !headers.keys().any(|name| {
                let name = name.as_str();
                name.starts_with("if-") && name != "if-none-match"
                    || name.starts_with("impersonate-")
            });
        let known = headers.get(header::IF_NONE_MATCH).cloned();
        let once = [
            header::IF_NONE_MATCH,
            header::ACCEPT,
            header::ACCEPT_ENCODING,
        ]
        .iter()
        .all(|name| headers.get_all(name).iter().nth(1).is_none());
        let fits = plain && once && known.as_ref().is_none_or(is_simple_tag);
        fits.then(|| Self {
            path: uri.path().to_owned(),
            key: RequestKey::new(request),
            known,
        })
    }
}

/// Returns `true` for one strong ETag. Handlers differ in how they read lists, weak tags and the
/// asterisk.
fn is_simple_tag(tag: &HeaderValue) -> bool {
    let tag = tag
        .to_str()
        .ok()
        .and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
    tag.is_some_and(|tag| !tag.contains('"'))
}

/// Returns `true` for documents that the API server makes itself. Those of an aggregated API come
/// from a server of its own, which may look at the caller; its types are not in the catalog.
fn is_document(catalog: &Catalog, path: &str) -> bool {
    let segments: Vec<_> = path.split('/').collect();
    match segments[..] {
        ["", "api" | "apis" | "version"] | ["", "api", "v1"] | ["", "openapi", "v2" | "v3"] => true,
        ["", "openapi", "v3", "api", version] => catalog.has("", Some(version)),
        ["", "apis", group] => catalog.has(group, None),
        ["", "apis", group, version] | ["", "openapi", "v3", "apis", group, version] => {
            catalog.has(group, Some(version))
        }
        _ => false,
    }
}

/// Documents by request.
pub(super) struct DocumentCache {
    client: UpstreamClient,
    timeline: Timeline,
    held: Cache<RequestKey, Arc<CachedDocument>>,
    budget: ResponseBudget,
}

impl DocumentCache {
    pub(super) fn new(client: UpstreamClient, timeline: Timeline) -> Self {
        let weigh = |key: &RequestKey, document: &Arc<CachedDocument>| {
            let text = key.path_and_query.len()
                + document.answer.headers.len() * 64
                + document.answer.body.len();
            u32::try_from(text + 1024).unwrap_or(u32::MAX)
        };
        let held = Cache::builder()
            .weigher(weigh)
            .max_capacity(MAX_BYTES)
            .time_to_idle(IDLE)
            .build();
        Self {
            client,
            timeline,
            held,
            budget: ResponseBudget::new(BUDGET, READING),
        }
    }

    /// Returns the answer to a request. An error means that upstream should answer it.
    pub(super) async fn answer(
        &self,
        asked: &DocumentRequest,
    ) -> Result<Response<Body>, AnswerError> {
        let held = self
            .held
            .get(&asked.key)
            .await
            .filter(|held| self.is_fresh(held));
        let document = match held {
            Some(document) => document,
            // Callers that wait for an earlier one wait no longer than that one.
            None => timeout(TIMEOUT, Box::pin(self.ask(&asked.key)))
                .await
                .unwrap_or_else(|_| Err(late()))?,
        };
        Ok(document.answer(asked.known.as_ref()))
    }

    /// Asks upstream, one request at a time for each document. Waiting callers take its response.
    async fn ask(&self, key: &RequestKey) -> Result<Arc<CachedDocument>, AnswerError> {
        let asked = self
            .held
            .entry_by_ref(key)
            .and_try_compute_with(|held| async move {
                let held = held.map(moka::Entry::into_value);
                match held {
                    Some(held) if self.is_fresh(&held) => Ok::<_, AnswerError>(Op::Nop),
                    held => Ok(Op::Put(self.fetch(key, held).await?)),
                }
            });
        Ok(match asked.await? {
            CompResult::Inserted(entry)
            | CompResult::ReplacedWith(entry)
            | CompResult::Unchanged(entry)
            | CompResult::Removed(entry) => entry.into_value(),
            CompResult::StillNone(_) => {
                return Err(AnswerError::Unusable("it was not kept".to_owned()));
            }
        })
    }

    async fn fetch(
        &self,
        key: &RequestKey,
        held: Option<Arc<CachedDocument>>,
    ) -> Result<Arc<CachedDocument>, AnswerError> {
        let (asked, timeline) = (Instant::now(), self.timeline.number());
        // Another cluster's document is not asked about.
        let held = held.filter(|held| held.timeline == timeline);
        let tag = held
            .as_ref()
            .and_then(|held| held.answer.headers.get(header::ETAG))
            .cloned();
        let request = key.request([(header::IF_NONE_MATCH, tag)])?;
        let answered = async {
            let response = self
                .client
                .send(ConnectionClass::Short, request, SendOptions::default())
                .await?;
            match (response.status(), held) {
                (StatusCode::OK, _) => Ok(CachedDocument {
                    answer: StoredResponse::read(response, MAX_DOCUMENT, &self.budget).await?,
                    asked,
                    timeline,
                }),
                (StatusCode::NOT_MODIFIED, Some(held)) => Ok(CachedDocument {
                    answer: held.answer.clone(),
                    asked,
                    timeline,
                }),
                (status, _) => Err(AnswerError::Status(status)),
            }
        };
        let answered = timeout(TIMEOUT, answered).await;
        answered.unwrap_or_else(|_| Err(late())).map(Arc::new)
    }

    fn is_fresh(&self, document: &CachedDocument) -> bool {
        document.asked.elapsed() < FRESH && document.timeline == self.timeline.number()
    }
}

fn late() -> AnswerError {
    AnswerError::Unusable(format!("none within {TIMEOUT:?}"))
}

impl CachedDocument {
    fn answer(&self, known: Option<&HeaderValue>) -> Response<Body> {
        let unchanged = known.is_some() && self.answer.headers.get(header::ETAG) == known;
        let mut response = self.answer.response();
        if unchanged {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = empty();
            for name in OF_THE_BODY {
                response.headers_mut().remove(name);
            }
        }
        response
    }
}
