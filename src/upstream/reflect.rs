//! Follows one scope at the API server: lists it once, then watches, and recovers.
//!
//! A state machine: [`Reflector::next`] takes one step and returns the change. It knows no store:
//! the caller decides what collects the objects of a list ([`Collect`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use tokio::time::{Instant, timeout};

use super::stream::WatchStream;
use super::{ConnectionClass, RequestPurpose, SendOptions, ServedBy, UpstreamBody, UpstreamClient};
use crate::body;
use crate::budget::{MemoryBudget, MemoryLoad};
use watershed_connect::Address;
use watershed_protocol::{
    BookmarkFormat, EventKind, Frame, ListPage, Malformed, PartialFormat, Representation,
    ResourceVersion, Scanned, WireFormat, read_bookmark, read_error, scan,
};

mod answer;
mod change;
mod error;
mod recovery;
mod resume;

use answer::{ANSWER_TIMEOUT, WATCH_ANSWER_TIMEOUT, accepted, is_gzip, read_list};
use error::ReflectorError;
use recovery::{Recovery, Route};

pub use change::{Change, Collect, ReflectorTarget, Stopped};
pub use resume::KnownState;

/// Silence after which streaming is given up: without sendInitialEvents there is no end mark.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);
/// Page size of lists, as other clients use it.
const PAGE: usize = 500;
/// The query that begins a list. One object shows how upstream frames lists of the type.
const FIRST_PAGE: &str = "limit=1";
/// Objects that are looked at for an estimate of all.
const SAMPLE: usize = 20;
/// An estimate from one object suffices if so many times as much is free.
const OBVIOUSLY_ENOUGH: usize = 4;
/// Time within which an API server uses a changed schema.
const REBUILT: Duration = Duration::from_secs(30);

enum ReflectorState {
    /// Nothing is known.
    Start,
    /// The state up to `version` is known; a stream must be opened from there.
    Resuming { version: ResourceVersion },
    /// A stream was opened again. If the last event is known, it has to begin with it.
    Replaying {
        version: ResourceVersion,
        last_event: Option<ResourceVersion>,
        stream: Box<WatchStream>,
    },
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
    /// The next list is streamed. `false` after upstream did not stream one.
    streaming: bool,
    /// The address of the last answer.
    served_by: Option<Address>,
    /// The server of the last answer.
    server: Option<ServedBy>,
    /// The server of the last list's first page, from which the formats were learned.
    listed_by: Option<ServedBy>,
    recovery: Recovery,
    /// Moment of the last change of the type's schema.
    schema_changed: Option<Instant>,
    /// The last event was a deletion of this version, and more of the same version may come: etcd
    /// deletes all objects of an expired lease at once.
    unfinished: Option<ResourceVersion>,
    /// The version of the last event since the list, if upstream still shows it.
    last_event: Option<ResourceVersion>,
    /// The budget for the objects of a list.
    budget: MemoryBudget,
    /// Lists are estimated before they are loaded.
    estimates: bool,
    /// The compression that lists and watches may have.
    accept_encoding: Option<HeaderValue>,
}

impl Reflector {
    /// Creates a reflector that knows nothing yet.
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
            server: None,
            listed_by: None,
            recovery: Recovery::new(),
            schema_changed: None,
            unfinished: None,
            last_event: None,
            budget: MemoryBudget::default(),
            estimates: true,
            accept_encoding: None,
        }
    }

    /// Lets upstream compress lists and watches, which saves bytes and costs time at both ends.
    #[must_use]
    pub fn compressed(self, compressed: bool) -> Self {
        Self {
            accept_encoding: compressed.then(|| HeaderValue::from_static("gzip")),
            ..self
        }
    }

    /// Stops lists that do not fit into this budget. Without it there is no limit.
    ///
    /// `estimates` says that a list is not begun if its estimate does not fit. An estimate can be
    /// wrong for as long as the first objects are unlike the others.
    #[must_use]
    pub fn within(self, budget: &MemoryBudget, estimates: bool) -> Self {
        Self {
            budget: budget.clone(),
            estimates,
            ..self
        }
    }

    /// Begins a load of objects into the reflector's budget.
    pub fn begin_load(&self) -> MemoryLoad {
        self.budget.begin_load()
    }

    /// Forgets everything: the next change is a fresh list. It comes later if this happens often.
    pub fn restart(&mut self) {
        self.state = ReflectorState::Start;
        self.recovery.list_again();
    }

    /// Delays the next attempt, for example after a [`Stopped`].
    pub fn pause(&mut self, pause: Duration) {
        self.recovery.not_before(Instant::now() + pause);
    }

    /// Notes that the type is gone. If upstream refuses it now, the reflector stops at once.
    pub fn type_removed(&mut self) {
        self.recovery.type_removed();
    }

    /// Returns `true` if the next change is a fresh list, or a failure.
    pub fn is_listing(&self) -> bool {
        matches!(self.state, ReflectorState::Start)
    }

    /// Notes that the type's schema changed.
    ///
    /// Each API server uses the new schema after a while and then ends the type's watches. A list
    /// taken before shows the old schema. So for some time, the end of a stream means a new list.
    pub fn schema_changed(&mut self) {
        self.schema_changed = Some(Instant::now());
    }

    /// Returns the server of the open watch, after [`Change::Resumed`] or a streamed list.
    pub fn server(&self) -> Option<&ServedBy> {
        self.server.as_ref()
    }

    /// Returns the server from which the formats in [`Change::Listed`] were learned.
    pub fn listed_by(&self) -> Option<&ServedBy> {
        self.listed_by.as_ref()
    }

    /// Learns the form of bookmarks again from the next one.
    pub fn forget_bookmark(&mut self) {
        self.bookmark_known = false;
    }

    fn is_rebuilding(&self) -> bool {
        self.schema_changed.is_some_and(|at| at.elapsed() < REBUILT)
    }

    /// Returns the next change. Retries forever with backoff, except where retrying cannot help.
    ///
    /// Cancelling a call loses no change.
    pub async fn next<C: Collect>(&mut self) -> Result<Change<C>, Stopped> {
        loop {
            self.recovery.wait().await;
            match self.step().await {
                Ok(Some(change)) => return Ok(change),
                Ok(None) => {}
                // It would be loaded halfway again and again.
                Err(ReflectorError::Stopped(stopped @ Stopped::DoesNotFit(_))) => {
                    return Err(stopped);
                }
                Err(ReflectorError::Stopped(stopped)) => {
                    if self.recovery.refused(self.served_by.clone()) {
                        return Err(stopped);
                    }
                    self.recover(&ReflectorError::Stopped(stopped));
                    return Ok(Change::Interrupted);
                }
                // Older releases do not stream: that is no failure. Nor is it known from one
                // answer, or from a silence, that this release does not.
                Err(ReflectorError::NoInitialEvents) => {
                    tracing::info!(
                        resource = %self.target.gvr,
                        "upstream did not stream initial events; listing instead"
                    );
                    self.streaming = false;
                }
                Err(error) => {
                    self.recover(&error);
                    return Ok(Change::Interrupted);
                }
            }
        }
    }

    /// Takes one step. An open stream stays in the state meanwhile, as a call may be cancelled.
    async fn step<C: Collect>(&mut self) -> Result<Option<Change<C>>, ReflectorError> {
        match &mut self.state {
            ReflectorState::Start => {
                let (change, version, stream) = self.list().await?;
                self.recovery.succeeded();
                self.unfinished = None;
                self.last_event = None;
                self.state = match stream {
                    Some(stream) => ReflectorState::Watching { version, stream },
                    None => ReflectorState::Resuming { version },
                };
                Ok(Some(change))
            }
            ReflectorState::Resuming { version } => {
                let version = *version;
                self.resume(version).await
            }
            ReflectorState::Replaying {
                version,
                last_event,
                stream,
            } => {
                let (version, last_event) = (*version, *last_event);
                let silence = Self::replay_silence(last_event);
                let first = timeout(silence, stream.next_frame()).await;
                let first = first.map_err(|_| ReflectorError::Silent(silence));
                match self.take_stream(version) {
                    Some(stream) => self.replay(version, last_event, first, stream),
                    None => Ok(None),
                }
            }
            ReflectorState::Watching { version, stream } => {
                let version = *version;
                let frame = stream.next_frame().await;
                match self.take_stream(version) {
                    Some(stream) => self.watch_on(version, frame?, stream),
                    None => Ok(None),
                }
            }
        }
    }

    /// Returns the open stream. The next step resumes from `version`, unless it is put back.
    fn take_stream(&mut self, version: ResourceVersion) -> Option<Box<WatchStream>> {
        match std::mem::replace(&mut self.state, ReflectorState::Resuming { version }) {
            ReflectorState::Replaying { stream, .. } | ReflectorState::Watching { stream, .. } => {
                Some(stream)
            }
            ReflectorState::Start | ReflectorState::Resuming { .. } => None,
        }
    }

    /// Takes in what came on the stream; `None` is its end.
    fn watch_on<C>(
        &mut self,
        version: ResourceVersion,
        frame: Option<Frame>,
        mut stream: Box<WatchStream>,
    ) -> Result<Option<Change<C>>, ReflectorError> {
        // A clean end is a server timeout or restart: resume at once.
        let Some(frame) = frame else {
            if self.is_rebuilding() {
                self.restart();
            }
            return Ok(Some(Change::Ended));
        };
        // An ERROR event comes with status 200, but counts as a failure.
        let change = self.take_in(frame, &mut stream)?;
        // That an event comes again does not show that those behind it can be read.
        let is_known = matches!(&change, Change::Event(_, event) if event.version <= version);
        if !is_known {
            self.recovery.succeeded();
        }
        let version = match &change {
            Change::Event(frame, scanned) => {
                self.unfinished = (frame.kind == EventKind::Deleted).then_some(scanned.version);
                self.last_event = Some(scanned.version);
                scanned.version.max(version)
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
                tracing::warn!(
                    resource = %self.target.gvr,
                    %error,
                    "bookmarks are not understood; none are sent"
                );
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
        let resource = &self.target.gvr;
        let by = self.served_by.clone();
        let mut list_again = self.is_rebuilding();
        match error {
            ReflectorError::Expired(message) => {
                let servers = self.client.upstream().addresses().len();
                let lost = self.recovery.expired(by, servers);
                tracing::info!(%resource, message, relist = lost, "upstream has lost the history");
                list_again |= lost;
                if !list_again {
                    return;
                }
            }
            ReflectorError::Malformed(_) => {
                let persists = self.recovery.unreadable(by);
                tracing::error!(%resource, %error, relist = persists, "cannot read an answer");
                if persists {
                    // The pause before the list is part of the recovery so far.
                    self.state = ReflectorState::Start;
                }
            }
            error => {
                // A refusal was counted before.
                if !matches!(error, ReflectorError::Stopped(_)) {
                    self.recovery.failed();
                }
                let failures = self.recovery.failures();
                tracing::warn!(%resource, %error, failures, "upstream failed");
            }
        }
        if list_again && !matches!(self.state, ReflectorState::Start) {
            self.restart();
        }
        self.recovery.back_off();
    }

    /// Gets the initial state, streamed or in pages.
    async fn list<C: Collect>(
        &mut self,
    ) -> Result<(Change<C>, ResourceVersion, Option<Box<WatchStream>>), ReflectorError> {
        self.listed_by = None;
        let (headers, body) = self.get(FIRST_PAGE).await?;
        self.listed_by.clone_from(&self.server);
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
        // A server that ignores the parameters of Accept would send whole objects.
        if metadata_only && !format.is_partial() {
            return Err(Stopped::NotAcceptable.into());
        }
        let format = Arc::new(format);
        self.format = Some(Arc::clone(&format));
        self.bookmark_known = false;
        let objects = C::begin(&format, &self.target.fields);
        let mut load = self.budget.begin_load();
        if self.estimates
            && let Some(bytes) = self.estimate(&format, &first).await?
        {
            load.expect(bytes)?;
        }
        // The next list is estimated again.
        self.estimates = true;
        if self.streaming {
            let (objects, version, stream) = self.stream_initial(objects, &mut load).await?;
            // Known together with the state, for clients that want its end marked.
            let bookmark = stream
                .again
                .as_ref()
                .and_then(|mark| self.learn_bookmark(&mark.object));
            return Ok((
                self.listed(format, version, (objects, load), bookmark),
                version,
                Some(stream),
            ));
        }
        let (objects, version) = self.list_pages(objects, &mut load, &format, first).await?;
        let listed = self.listed(format, version, (objects, load), None);
        // Upstream may be another release when it is listed next.
        self.streaming = true;
        Ok((listed, version, None))
    }

    fn listed<C>(
        &self,
        format: Arc<WireFormat>,
        version: ResourceVersion,
        (objects, load): (C, MemoryLoad),
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
            load,
        }
    }

    /// Estimates the memory that all objects take, from the first page. `None` if there is no
    /// limit, or upstream does not count them, as with selectors.
    ///
    /// One object may be unlike the others. If the estimate is not obviously small enough, a few
    /// more are looked at, with one request.
    async fn estimate(
        &mut self,
        format: &WireFormat,
        first: &ListPage,
    ) -> Result<Option<usize>, ReflectorError> {
        let (Some(free), Some(remaining)) = (self.budget.free(), first.remaining) else {
            return Ok(None);
        };
        let count = first.objects.len() + usize::try_from(remaining).unwrap_or(0);
        let one = estimate_all(count, &first.objects);
        let Some(token) = &first.continue_token else {
            return Ok(Some(one));
        };
        if one <= free / OBVIOUSLY_ENOUGH {
            return Ok(Some(one));
        }
        let page = self.get(&page_after(token, SAMPLE)).await?.1;
        let sample = format.read_list(&page)?.objects;
        Ok(Some(estimate_all(count, &sample)))
    }

    /// Opens a watch that begins with the state. The end mark stays in the stream as its next
    /// frame.
    async fn stream_initial<C: Collect>(
        &mut self,
        mut objects: C,
        load: &mut MemoryLoad,
    ) -> Result<(C, ResourceVersion, Box<WatchStream>), ReflectorError> {
        let query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan";
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
                    load.add(frame.object.len())?;
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
        load: &mut MemoryLoad,
        format: &WireFormat,
        first: ListPage,
    ) -> Result<(C, ResourceVersion), ReflectorError> {
        let mut page = first;
        loop {
            for object in page.objects {
                let scanned = self.check(&object)?;
                load.add(object.len())?;
                objects.add(&object, scanned);
            }
            let Some(token) = page.continue_token else {
                return Ok((objects, page.version));
            };
            page = format.read_list(&self.get(&page_after(&token, PAGE)).await?.1)?;
        }
    }

    /// Gets the body of a list. An expired continue token (410) restarts the list.
    async fn get(&mut self, query: &str) -> Result<(HeaderMap, Bytes), ReflectorError> {
        let (headers, body) = self.request(query, false).await?;
        let body = read_list(&headers, body).await?;
        Ok((headers, body))
    }

    async fn open(&mut self, query: &str) -> Result<Box<WatchStream>, ReflectorError> {
        let (headers, body) = self.request(query, true).await?;
        let stream = WatchStream::new(body, self.target.representation.encoding);
        Ok(Box::new(stream.compressed(is_gzip(&headers)?)))
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
        let mut request = Request::get(format!(
            "{}?{query}{}",
            selection.path(gvr),
            selection.parameters()
        ))
        .header(header::ACCEPT, accept);
        if let Some(coding) = &self.accept_encoding {
            request = request.header(header::ACCEPT_ENCODING, coding);
        }
        let request = request
            .body(body::empty())
            .map_err(|error| ReflectorError::Broken(error.to_string()))?;
        // All pages of a list must come from one server.
        let may_move = watch || query == FIRST_PAGE;
        let (fresh_connection, avoid) = match self.recovery.route() {
            Route::Elsewhere(avoid) if may_move => (true, avoid),
            _ => (false, None),
        };
        let instead_of = self.server.clone().filter(|_| fresh_connection);
        let (purpose, patience) = if watch {
            (RequestPurpose::Watch, WATCH_ANSWER_TIMEOUT)
        } else {
            (RequestPurpose::List, ANSWER_TIMEOUT)
        };
        // All of a list should be printed by one release.
        let beside = match self.state {
            ReflectorState::Start => self.listed_by.clone(),
            _ => None,
        };
        let options = SendOptions {
            fresh_connection,
            instead_of,
            avoid,
            beside,
            purpose,
        };
        let answer = timeout(
            patience,
            self.client.send(ConnectionClass::Watch, request, options),
        )
        .await;
        let response = answer.map_err(|_| ReflectorError::Silent(patience))??;
        self.server = response.extensions().get().cloned();
        self.served_by = self.server.as_ref().map(|by| by.address.clone());
        accepted(response, representation.encoding.content_type(watch)).await
    }
}

/// Returns the query of the page with this token.
fn page_after(token: &str, limit: usize) -> String {
    let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
    format!("limit={limit}&continue={token}")
}

/// Returns the memory that `count` objects like these take.
fn estimate_all(count: usize, sample: &[Bytes]) -> usize {
    let bytes: usize = sample.iter().map(Bytes::len).sum();
    let all = bytes.saturating_mul(count) / sample.len().max(1);
    MemoryBudget::estimate(count, all)
}

#[cfg(test)]
mod tests;
