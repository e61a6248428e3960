//! Discovery, OpenAPI and version documents from memory. Upstream shows everybody the same ones.
//!
//! A document is upstream's answer as it came, kept for the same path, query, Accept and
//! Accept-Encoding. After [`FRESH`] upstream is asked whether it is still current, once for all who
//! wait, by ETag where it has one.
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use moka::future::Cache;
use moka::ops::compute::{CompResult, Op};
use tokio::time::timeout;

use super::replay::{Question, Replay, Room};
use crate::body::{Body, empty};
use crate::catalog::Catalog;
use crate::upstream::{AnswerError, ConnectionClass, SendOptions, UpstreamClient};
use watershed_protocol::wants_pretty;

/// A document is shown without a question for this long, counted from before upstream was asked
/// last.
const FRESH: Duration = Duration::from_millis(900);
/// All documents together; a large cluster's OpenAPI has some ten MB in each encoding.
const MAX_BYTES: u64 = 256 << 20;
/// The largest that is kept.
const MAX_DOCUMENT: usize = 64 << 20;
/// Documents that nobody asked for in this time go.
const IDLE: Duration = Duration::from_mins(10);
/// With those that are being sent, and are not kept any more, they take this much at the most.
const ROOM: usize = 384 << 20;
const READING: usize = 4;
const ANSWER: Duration = Duration::from_secs(10);
/// What an answer without a body leaves out. Source: Go's `net/http` (writeNotModified,
/// serveContent).
const OF_THE_BODY: &[HeaderName] = &[
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::LAST_MODIFIED,
    header::ACCEPT_RANGES,
];

/// A request for a document.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// What authorization is asked about.
    pub(super) path: String,
    question: Question,
    /// The one ETag that the client has.
    known: Option<HeaderValue>,
}

/// Upstream's answer.
#[derive(Debug)]
struct Document {
    answer: Replay,
    /// Upstream said that it is current, some time after this.
    asked: Instant,
}

impl Asked {
    /// The document that a request is for, if it can be had from memory.
    pub(super) fn of<B>(catalog: &Catalog, request: &Request<B>) -> Option<Self> {
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
        let once = |name| headers.get_all(name).iter().nth(1).is_none();
        let known = headers.get(header::IF_NONE_MATCH).cloned();
        // Lists, weak tags and the asterisk are read differently by different handlers.
        let simple = |tag: &HeaderValue| {
            let tag = tag
                .to_str()
                .ok()
                .and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
            tag.is_some_and(|tag| !tag.contains('"'))
        };
        let once = [
            header::IF_NONE_MATCH,
            header::ACCEPT,
            header::ACCEPT_ENCODING,
        ]
        .into_iter()
        .all(once);
        let fits = plain && once && known.as_ref().is_none_or(simple);
        fits.then(|| Self {
            path: uri.path().to_owned(),
            question: Question::of(request),
            known,
        })
    }
}

/// Documents that the API server makes itself. Those of an aggregated API come from a server of its
/// own, which may look at who asks; its types are not in the catalog.
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

/// Keeps documents.
pub(super) struct Documents {
    client: UpstreamClient,
    held: Cache<Question, Arc<Document>>,
    room: Room,
}

impl Documents {
    pub(super) fn new(client: UpstreamClient) -> Self {
        let weigh = |question: &Question, document: &Arc<Document>| {
            let text = question.path_and_query.len()
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
            held,
            room: Room::new(ROOM, READING),
        }
    }

    /// The answer to a request. An error means that upstream should give it.
    pub(super) async fn answer(&self, asked: &Asked) -> Result<Response<Body>, AnswerError> {
        let held = self
            .held
            .get(&asked.question)
            .await
            .filter(|held| held.is_fresh());
        let document = match held {
            Some(document) => document,
            // Who waits for those before them waits no longer than these.
            None => timeout(ANSWER, Box::pin(self.ask(&asked.question)))
                .await
                .unwrap_or_else(|_| Err(late()))?,
        };
        Ok(document.answer(asked.known.as_ref()))
    }

    /// One question at a time for each document; who waited for it takes its answer.
    async fn ask(&self, question: &Question) -> Result<Arc<Document>, AnswerError> {
        let asked = self
            .held
            .entry_by_ref(question)
            .and_try_compute_with(|held| async move {
                let held = held.map(moka::Entry::into_value);
                match held {
                    Some(held) if held.is_fresh() => Ok::<_, AnswerError>(Op::Nop),
                    held => Ok(Op::Put(self.fetch(question, held).await?)),
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
        question: &Question,
        held: Option<Arc<Document>>,
    ) -> Result<Arc<Document>, AnswerError> {
        let asked = Instant::now();
        let tag = held
            .as_ref()
            .and_then(|held| held.answer.headers.get(header::ETAG))
            .cloned();
        let request = question.request([(header::IF_NONE_MATCH, tag)])?;
        let answered = async {
            let response = self
                .client
                .send(ConnectionClass::Short, request, SendOptions::default())
                .await?;
            match (response.status(), held) {
                (StatusCode::OK, _) => Ok(Document {
                    answer: Replay::read(response, MAX_DOCUMENT, &self.room).await?,
                    asked,
                }),
                (StatusCode::NOT_MODIFIED, Some(held)) => Ok(Document {
                    answer: held.answer.clone(),
                    asked,
                }),
                (status, _) => Err(AnswerError::Status(status)),
            }
        };
        let answered = timeout(ANSWER, answered).await;
        answered.unwrap_or_else(|_| Err(late())).map(Arc::new)
    }
}

fn late() -> AnswerError {
    AnswerError::Unusable(format!("none within {ANSWER:?}"))
}

impl Document {
    fn is_fresh(&self) -> bool {
        self.asked.elapsed() < FRESH
    }

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
