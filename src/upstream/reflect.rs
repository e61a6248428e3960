//! Follows one scope at the API server: lists it once, then watches, and recovers.
//!
//! A state machine: [`Reflector::next`] takes one step and says what changed. It knows no store:
//! what a list's objects are collected in is the caller's ([`Collect`]).
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use tokio::time::{Instant, sleep_until, timeout};

use super::stream::{StreamError, WatchStream};
use super::{
    ConnectionClass, RequestPurpose, SendOptions, ServedBy, UpstreamBody, UpstreamClient,
    UpstreamError,
};
use crate::body;
use watershed_connect::Address;
use watershed_protocol::{
    BookmarkFormat, Encoding, EventKind, FieldTable, Frame, GroupVersionResource, ListPage,
    Malformed, PartialFormat, Representation, ResourceVersion, Scanned, Selection, WireFormat,
    read_bookmark, read_error, scan,
};

/// An API server that does not know sendInitialEvents sends no end mark: give up after this
/// silence.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);
/// For response headers, and for a list's body to move on.
const ANSWER: Duration = Duration::from_mins(1);
/// Page size of lists, as the ecosystem's clients use.
const PAGE: usize = 500;
/// A page's body above this is refused: bounded memory. etcd limits an object to 1.5 MiB or so.
const MAX_PAGE_BYTES: usize = 2 << 30;
/// Waits between attempts, doubling from the first to the last, with jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A refusal of what was granted before is final after this long.
const REFUSAL: Duration = Duration::from_secs(30);
/// So many answers in a row that refuse are taken to other API servers; later ones wait.
const REFUSALS_ELSEWHERE: u32 = 2;
/// An API server takes a changed schema into use within this time.
const REBUILT: Duration = Duration::from_secs(30);

/// What to follow.
#[derive(Clone, Debug)]
pub struct ReflectorTarget {
    /// The type.
    pub gvr: GroupVersionResource,
    /// Which of its objects.
    pub selection: Arc<Selection>,
    /// Its kind, from discovery.
    pub kind: Arc<str>,
    /// The representation asked for. What does not belong to it never leaves upstream.
    pub representation: Representation,
    /// Where its selectable fields are found.
    pub fields: Arc<FieldTable>,
}

/// What a list's objects are collected in as they arrive. A list that fails in the middle drops it.
pub trait Collect: Send {
    /// Nothing yet, of a type whose objects are framed like this.
    fn begin(format: &Arc<WireFormat>, fields: &FieldTable) -> Self;

    /// Takes the next object, which the form fits. It is a slice of whatever chunk it arrived in:
    /// whoever keeps it keeps that.
    fn add(&mut self, object: &Bytes, scanned: Scanned);
}

/// What a step found out.
#[derive(Debug)]
pub enum Change<C> {
    /// Upstream ended the watch in good order. It is opened again at once.
    Ended,
    /// Everything, at one version. What was known before is void.
    Listed {
        /// How objects of this type are framed.
        format: Arc<WireFormat>,
        /// The version the objects are the state at.
        version: ResourceVersion,
        /// All objects.
        objects: C,
        /// Whether upstream serves sendInitialEvents for this type.
        streams_initial_events: bool,
        /// The Warning headers upstream sends with reads of this type.
        warnings: Vec<HeaderValue>,
        /// Upstream's form of bookmarks, if it ended the initial state with one.
        bookmark: Option<BookmarkFormat>,
    },
    /// One object changed.
    Event(Frame, Scanned),
    /// A bookmark: everything up to this version has been said.
    Progress {
        /// The bookmark's version.
        version: ResourceVersion,
        /// Upstream's form of bookmarks, with the first one.
        format: Option<BookmarkFormat>,
    },
    /// The watch goes on after an interruption; nothing was lost.
    Resumed,
    /// Upstream cannot be followed at the moment. It is tried again.
    Interrupted,
}

/// Why a scope cannot be followed (any more).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The type is not there (any more).
    #[error("upstream does not know the type")]
    Vanished,
    /// The proxy's own identity may not list and watch the type.
    #[error("the proxy may not list and watch it: {0}")]
    Forbidden(String),
    /// The type has no such representation.
    #[error("upstream does not offer this representation")]
    NotAcceptable,
    /// What upstream answers cannot be cached exactly.
    #[error("upstream's answers are not understood: {0}")]
    NotUnderstood(String),
    /// Nobody wants it any more: the type changed its shape, or the process ends.
    #[error("it was closed")]
    Closed,
    /// A defect of this program.
    #[error("its task failed")]
    Failed,
}

impl Stopped {
    /// The metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Vanished => "vanished",
            Self::Forbidden(_) => "forbidden",
            Self::NotAcceptable => "not-acceptable",
            Self::NotUnderstood(_) => "not-understood",
            Self::Closed => "closed",
            Self::Failed => "failed",
        }
    }
}

impl From<StreamError> for ReflectorError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Broken(how) => Self::Broken(how),
            StreamError::Silent(silence) => Self::Silent(silence),
            StreamError::Malformed(error) => Self::Malformed(error),
        }
    }
}

/// Why an attempt failed; all of these pass.
#[derive(Debug, thiserror::Error)]
enum ReflectorError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the stream broke: {0}")]
    Broken(String),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("upstream answered {0}: {1}")]
    Status(StatusCode, String),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The version asked for is too old here.
    #[error("the version expired: {0}")]
    Expired(String),
    #[error("this server does not stream initial events")]
    NoInitialEvents,
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

enum ReflectorState {
    /// Nothing is known.
    Start,
    /// The state up to `version` is known; a stream must be opened from there.
    Resuming { version: ResourceVersion },
    /// A stream is open.
    Watching {
        version: ResourceVersion,
        stream: Box<WatchStream>,
    },
}

/// Follows one [`ReflectorTarget`].
pub struct Reflector {
    client: UpstreamClient,
    target: ReflectorTarget,
    state: ReflectorState,
    format: Option<Arc<WireFormat>>,
    warnings: Vec<HeaderValue>,
    bookmark_known: bool,
    /// False once upstream refused to stream initial events.
    streaming: bool,
    /// The address of the last answer.
    served_by: Option<Address>,
    /// Attempts that failed in a row.
    failures: u32,
    /// Answers in a row that the version expired; other API servers may still have it.
    expirations: usize,
    /// Upstream let it be followed before.
    granted: bool,
    /// Since when upstream refuses what it granted, and how often it did.
    refused_since: Option<Instant>,
    refusals: u32,
    /// The next attempt is not to be made before.
    retry_at: Option<Instant>,
    /// When the type's schema changed last.
    schema_changed: Option<Instant>,
    /// The last event was a deletion of this version, and more of the same version may come: etcd
    /// deletes all objects of an expired lease at once.
    unfinished: Option<ResourceVersion>,
}

impl Reflector {
    /// Begins at nothing.
    pub fn new(client: UpstreamClient, target: ReflectorTarget) -> Self {
        Self {
            client,
            target,
            state: ReflectorState::Start,
            format: None,
            warnings: Vec::new(),
            bookmark_known: false,
            streaming: true,
            served_by: None,
            failures: 0,
            expirations: 0,
            granted: false,
            refused_since: None,
            refusals: 0,
            retry_at: None,
            schema_changed: None,
            unfinished: None,
        }
    }

    /// Forgets everything: the next change is a fresh list.
    pub fn restart(&mut self) {
        self.state = ReflectorState::Start;
    }

    /// The type's schema changed. Each API server takes it into use when it gets to it and then
    /// ends the type's watches; a list taken before that still shows objects under the old schema.
    /// So for a while the end of a stream means a new list.
    pub fn schema_changed(&mut self) {
        self.schema_changed = Some(Instant::now());
    }

    fn is_rebuilding(&self) -> bool {
        self.schema_changed.is_some_and(|at| at.elapsed() < REBUILT)
    }

    /// The next change. Retries for ever with backoff, except where retrying cannot help.
    /// Dropping the future between two calls loses nothing that was handed out.
    pub async fn next<C: Collect>(&mut self) -> Result<Change<C>, Stopped> {
        loop {
            if let Some(at) = self.retry_at {
                sleep_until(at).await;
                self.retry_at = None;
            }
            match self.step().await {
                Ok(Some(change)) => return Ok(change),
                Ok(None) => {}
                Err(ReflectorError::Stopped(stopped)) if !self.may_pass(&stopped) => {
                    return Err(stopped);
                }
                // Releases differ: no failure.
                Err(ReflectorError::NoInitialEvents) => {
                    tracing::info!(resource = %self.target.gvr, "upstream does not stream initial events; listing instead");
                    self.streaming = false;
                }
                Err(error) => {
                    self.recover(&error);
                    return Ok(Change::Interrupted);
                }
            }
        }
    }

    async fn step<C: Collect>(&mut self) -> Result<Option<Change<C>>, ReflectorError> {
        match std::mem::replace(&mut self.state, ReflectorState::Start) {
            ReflectorState::Start => {
                let (change, version, stream) = self.list().await?;
                self.succeeded();
                self.unfinished = None;
                self.state = match stream {
                    Some(stream) => ReflectorState::Watching { version, stream },
                    None => ReflectorState::Resuming { version },
                };
                Ok(Some(change))
            }
            ReflectorState::Resuming { version } => {
                // Put back first: an error leaves it to be tried again.
                self.state = ReflectorState::Resuming { version };
                // What was applied already comes once more then, and is known by being gone.
                let from = if self.unfinished == Some(version) {
                    version.before()
                } else {
                    version
                };
                let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={from}");
                let stream = self.open(&query).await?;
                self.state = ReflectorState::Watching { version, stream };
                Ok(Some(Change::Resumed))
            }
            ReflectorState::Watching {
                version,
                mut stream,
            } => {
                self.state = ReflectorState::Resuming { version };
                // A clean end (None) is a server timeout or restart: resume at once.
                let Some(frame) = stream.next_frame().await? else {
                    if self.is_rebuilding() {
                        self.state = ReflectorState::Start;
                    }
                    return Ok(Some(Change::Ended));
                };
                // An ERROR event is an answer of 200, but no success: what it says counts as
                // failed.
                let change = self.take_in(frame, &mut stream)?;
                self.succeeded();
                let version = match &change {
                    Change::Event(frame, scanned) => {
                        self.unfinished =
                            (frame.kind == EventKind::Deleted).then_some(scanned.version);
                        scanned.version
                    }
                    Change::Progress { version, .. } => {
                        self.unfinished.take_if(|unfinished| *unfinished < *version);
                        *version
                    }
                    _ => version,
                };
                self.state = ReflectorState::Watching { version, stream };
                Ok(Some(change))
            }
        }
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.expirations = 0;
        self.granted = true;
        self.refused_since = None;
        self.refusals = 0;
    }

    /// Whether a refusal is to be waited out. Right after its start an API server does not know the
    /// roles yet and refuses what it granted before; ending every watch for that would send all
    /// clients there at once.
    fn may_pass(&mut self, stopped: &Stopped) -> bool {
        self.refusals += 1;
        self.granted
            && matches!(stopped, Stopped::Forbidden(_))
            && self
                .refused_since
                .get_or_insert_with(Instant::now)
                .elapsed()
                < REFUSAL
    }

    fn take_in<C>(
        &mut self,
        frame: Frame,
        stream: &mut WatchStream,
    ) -> Result<Change<C>, ReflectorError> {
        match frame.kind {
            EventKind::Added | EventKind::Modified | EventKind::Deleted => {
                let scanned = self.check_frame(&frame)?;
                Ok(Change::Event(frame, scanned))
            }
            EventKind::Bookmark => {
                let bookmark = read_bookmark(self.target.representation.encoding, &frame.object)?;
                // The end of the initial events is marked on streams that bring no others, too.
                stream.bookmarks |= !bookmark.initial_events_end;
                let version = bookmark.version;
                Ok(Change::Progress {
                    version,
                    format: self.learn_bookmark(&frame.object),
                })
            }
            EventKind::Error => {
                let status = read_error(self.target.representation.encoding, &frame.object);
                Err(if status.code == 410 {
                    ReflectorError::Expired(status.message)
                } else {
                    let code = u16::try_from(status.code)
                        .ok()
                        .and_then(|code| StatusCode::from_u16(code).ok());
                    ReflectorError::Status(
                        code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                        status.message,
                    )
                })
            }
        }
    }

    fn learn_bookmark(&mut self, bookmark: &Bytes) -> Option<BookmarkFormat> {
        let format = self.format.as_deref().filter(|_| !self.bookmark_known)?;
        self.bookmark_known = true;
        BookmarkFormat::learn(format, bookmark)
            .inspect_err(|error| {
                tracing::warn!(resource = %self.target.gvr, %error, "bookmarks are not understood; none are sent");
            })
            .ok()
    }

    fn check_frame(&self, frame: &Frame) -> Result<Scanned, Malformed> {
        if let Some(format) = &self.format {
            format.check_frame(frame)?;
        }
        scan(
            self.target.representation.encoding,
            &frame.object,
            &self.target.fields,
        )
    }

    fn check(&self, object: &Bytes) -> Result<Scanned, Malformed> {
        if let Some(format) = &self.format {
            format.check(object)?;
        }
        scan(
            self.target.representation.encoding,
            object,
            &self.target.fields,
        )
    }

    /// Prepares the next attempt.
    fn recover(&mut self, error: &ReflectorError) {
        let target = &self.target;
        if self.is_rebuilding() {
            self.state = ReflectorState::Start;
        }
        match error {
            ReflectorError::Expired(message) => {
                // Another API server of the same cluster may still have the history.
                self.expirations += 1;
                let lost = self.expirations > self.client.upstream().addresses().len().max(2);
                tracing::info!(resource = %target.gvr, message, relist = lost, "upstream has lost the history");
                if !lost {
                    return;
                }
                self.state = ReflectorState::Start;
            }
            ReflectorError::Malformed(_) => {
                tracing::error!(resource = %target.gvr, error = %error, "upstream's stream is not understood; listing again");
                self.state = ReflectorState::Start;
            }
            error => {
                tracing::warn!(resource = %target.gvr, error = %error, failures = self.failures, "upstream failed");
            }
        }
        // The first retry comes at once: most interruptions are a connection that was cut.
        if self.failures > 0 {
            let wait = BACKOFF
                .0
                .saturating_mul(1 << self.failures.min(10))
                .min(BACKOFF.1);
            self.retry_at = Some(Instant::now() + wait.mul_f64(0.5 + fastrand::f64() / 2.0));
        }
        self.failures += 1;
    }

    /// The initial state, streamed or in pages.
    async fn list<C: Collect>(
        &mut self,
    ) -> Result<(Change<C>, ResourceVersion, Option<Box<WatchStream>>), ReflectorError> {
        // One small list tells how upstream frames lists of this type.
        let (headers, body) = self.get("limit=1").await?;
        self.warnings = headers.get_all(header::WARNING).iter().cloned().collect();
        let Representation {
            encoding,
            metadata_only,
        } = self.target.representation;
        let kind = if metadata_only {
            PartialFormat::KIND
        } else {
            &self.target.kind
        };
        let learned = WireFormat::learn(encoding, kind, &body);
        let (format, first) = learned.map_err(|error| Stopped::NotUnderstood(error.to_string()))?;
        // Of a server that does not look at the parameters of Accept, nothing more than this is
        // taken.
        if metadata_only && !format.is_partial() {
            return Err(Stopped::NotAcceptable.into());
        }
        let format = Arc::new(format);
        self.format = Some(Arc::clone(&format));
        self.bookmark_known = false;
        let objects = C::begin(&format, &self.target.fields);
        if self.streaming {
            let (objects, version, stream) = self.stream_initial(objects).await?;
            // Known together with the state: clients that want it marked wait for nothing else.
            let bookmark = stream
                .again
                .as_ref()
                .and_then(|mark| self.learn_bookmark(&mark.object));
            return Ok((
                self.listed(format, version, objects, bookmark),
                version,
                Some(stream),
            ));
        }
        let (objects, version) = self.list_pages(objects, &format, first).await?;
        let listed = self.listed(format, version, objects, None);
        // Upstream may be another release when it is listed next.
        self.streaming = true;
        Ok((listed, version, None))
    }

    fn listed<C>(
        &self,
        format: Arc<WireFormat>,
        version: ResourceVersion,
        objects: C,
        bookmark: Option<BookmarkFormat>,
    ) -> Change<C> {
        let (streams_initial_events, warnings) = (self.streaming, self.warnings.clone());
        Change::Listed {
            format,
            version,
            objects,
            streams_initial_events,
            warnings,
            bookmark,
        }
    }

    /// A watch that begins with the state. The end mark stays in the stream, as the first frame.
    async fn stream_initial<C: Collect>(
        &mut self,
        mut objects: C,
    ) -> Result<(C, ResourceVersion, Box<WatchStream>), ReflectorError> {
        let query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let mut stream = match self.open(query).await {
            // Any refusal of the parameters: releases differ in code and words.
            Err(ReflectorError::Status(
                StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY,
                _,
            )) => {
                return Err(ReflectorError::NoInitialEvents);
            }
            stream => stream?,
        };
        loop {
            let frame = match timeout(INITIAL_SILENCE, stream.next_transient_frame()).await {
                Err(_) => return Err(ReflectorError::NoInitialEvents),
                Ok(frame) => frame?.ok_or_else(|| {
                    ReflectorError::Broken("ended before the initial events".into())
                })?,
            };
            match frame.kind {
                EventKind::Added => {
                    let scanned = self.check_frame(&frame)?;
                    objects.add(&frame.object, scanned);
                }
                EventKind::Bookmark => {
                    let bookmark =
                        read_bookmark(self.target.representation.encoding, &frame.object)?;
                    if !bookmark.initial_events_end {
                        return Err(ReflectorError::NoInitialEvents);
                    }
                    let version = bookmark.version;
                    stream.again = Some(frame.detached());
                    return Ok((objects, version, stream));
                }
                EventKind::Error => {
                    self.take_in::<C>(frame, &mut stream)?;
                }
                EventKind::Modified | EventKind::Deleted => {
                    // Events before the end mark: this server ignored the parameter.
                    return Err(ReflectorError::NoInitialEvents);
                }
            }
        }
    }

    async fn list_pages<C: Collect>(
        &mut self,
        mut objects: C,
        format: &WireFormat,
        first: ListPage,
    ) -> Result<(C, ResourceVersion), ReflectorError> {
        let mut page = first;
        loop {
            for object in page.objects {
                let scanned = self.check(&object)?;
                objects.add(&object, scanned);
            }
            let Some(token) = page.continue_token else {
                return Ok((objects, page.version));
            };
            let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
            page =
                format.read_list(&self.get(&format!("limit={PAGE}&continue={token}")).await?.1)?;
        }
    }

    /// A list's body. A continue token that expired (410) starts the list anew.
    async fn get(&mut self, query: &str) -> Result<(HeaderMap, Bytes), ReflectorError> {
        let (headers, body) = self.request(query, false).await?;
        let whole = timeout(ANSWER, body::whole(body, MAX_PAGE_BYTES)).await;
        let whole = whole.map_err(|_| ReflectorError::Silent(ANSWER))?;
        Ok((
            headers,
            whole.map_err(|error| ReflectorError::Broken(error.to_string()))?,
        ))
    }

    async fn open(&mut self, query: &str) -> Result<Box<WatchStream>, ReflectorError> {
        let (_, body) = self.request(query, true).await?;
        Ok(Box::new(WatchStream::new(
            body,
            self.target.representation.encoding,
        )))
    }

    async fn request(
        &mut self,
        query: &str,
        watch: bool,
    ) -> Result<(HeaderMap, UpstreamBody), ReflectorError> {
        let representation = self.target.representation;
        let accept = if watch {
            representation.watch_accept_header()
        } else {
            representation.list_accept_header()
        };
        let ReflectorTarget { gvr, selection, .. } = &self.target;
        let request = Request::get(format!(
            "{}?{query}{}",
            selection.path(gvr),
            selection.parameters()
        ))
        .header(header::ACCEPT, accept)
        .body(body::empty())
        .map_err(|error| ReflectorError::Broken(error.to_string()))?;
        // After a 410 or a refusal another API server, or another connection through the balancer,
        // is asked.
        let refused = (1..=REFUSALS_ELSEWHERE).contains(&self.refusals);
        // Watches only: all pages of a list are one server's.
        let elsewhere = watch && (self.expirations > 0 || refused);
        let avoid = if elsewhere {
            self.served_by.take()
        } else {
            None
        };
        let options = SendOptions {
            fresh_connection: elsewhere,
            avoid,
            purpose: if watch {
                RequestPurpose::Watch
            } else {
                RequestPurpose::List
            },
        };
        let answer = timeout(
            ANSWER,
            self.client.send(ConnectionClass::Watch, request, options),
        )
        .await;
        let response = answer.map_err(|_| ReflectorError::Silent(ANSWER))??;
        self.served_by = response
            .extensions()
            .get::<ServedBy>()
            .map(|by| by.0.clone());
        let status = response.status();
        if status == StatusCode::OK {
            let expected = self.target.representation.encoding.content_type(watch);
            let actual = response.headers().get(header::CONTENT_TYPE);
            if actual.is_none_or(|actual| actual.as_bytes() != expected.as_bytes()) {
                return Err(Stopped::NotUnderstood(format!(
                    "content type {actual:?}, not {expected}"
                ))
                .into());
            }
            let (parts, body) = response.into_parts();
            return Ok((parts.headers, body));
        }
        let text = match timeout(ANSWER, body::whole(response.into_body(), 64 * 1024)).await {
            Ok(Ok(body)) => {
                let status = read_error(Encoding::Json, &body);
                if status.message.is_empty() {
                    String::from_utf8_lossy(&body).into_owned()
                } else {
                    status.message
                }
            }
            _ => String::new(),
        };
        Err(match status {
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Stopped::Vanished.into(),
            StatusCode::FORBIDDEN => Stopped::Forbidden(text).into(),
            StatusCode::NOT_ACCEPTABLE => Stopped::NotAcceptable.into(),
            StatusCode::GONE => ReflectorError::Expired(text),
            status => ReflectorError::Status(status, text),
        })
    }
}
