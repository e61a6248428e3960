//! WATCH: the state that a stream starts from, and the stream itself.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::time::Instant;

use super::body::{BodyError, ResponseBody};
use super::faults::{BrokenFrame, CutCounts, NextFrame, WatchListSupport};
use super::kinds::{KINDS, ResourceKind, TypeOrigin};
use super::message;
use super::object::SimulatedObject;
use super::request::{AnswerShape, ObjectFilter, QueryParameters};
use super::simulation::Simulation;
use super::state::{EventsSince, WriteEvent};
use super::status::Failure;
use crate::body::full_body;
use watershed_protocol::gzip_member;

/// Approximate size of a chunk of initial events.
const CHUNK: usize = 64 * 1024;
/// The last bookmarks come this long before the deadline. Source: apiserver
/// `pkg/storage/cacher/cache_watcher.go`.
const FAREWELL: Duration = Duration::from_secs(2);
/// Pause between a broken frame and the reset of the stream. Without it, the reset would overtake
/// the frame.
const BREAK_PAUSE: Duration = Duration::from_millis(20);

/// Limit of timeouts, as an `Instant` cannot represent a deadline that is too far away.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);

/// The form of the bytes of a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamForm {
    pub(crate) shape: AnswerShape,
    pub(crate) is_gzip: bool,
}

/// One client's watch.
struct SimulatedWatch {
    simulation: Arc<Simulation>,
    index: usize,
    filter: ObjectFilter,
    form: StreamForm,
    /// Version of the last event that this watch has handled.
    cursor: u64,
    /// Version that the stream began at. Bookmarks at or below it carry no news.
    start: u64,
    /// Objects still to be sent as ADDED.
    initial: VecDeque<Arc<SimulatedObject>>,
    /// Version of the end mark still to be sent after `initial`.
    end_mark: Option<u64>,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    wake: tokio::sync::watch::Receiver<u64>,
    cut: tokio::sync::watch::Receiver<CutCounts>,
    cut_before: CutCounts,
    /// Number of restores at the start.
    restores: u64,
    /// The ending of the stream at the next poll.
    ending: Option<StreamEnding>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnding {
    Clean,
    Broken,
}

/// The state that a stream starts from.
struct StreamStart {
    cursor: u64,
    initial: VecDeque<Arc<SimulatedObject>>,
    end_mark: Option<u64>,
}

/// Starts a watch. `Err` becomes an HTTP status. Later errors travel inside the stream.
pub(crate) async fn watch(
    simulation: Arc<Simulation>,
    index: usize,
    filter: ObjectFilter,
    query: &QueryParameters,
    form: StreamForm,
) -> Result<ResponseBody, Failure> {
    let shape = form.shape;
    let mode = simulation.faults.active().watch_list;
    let initial_events = validate(query, mode)?;
    let version = query
        .version_number()
        .map_err(|e| Failure::new(500, "", e))?;
    let timeout = timeout(&simulation, query);
    let restores = simulation.state.restores();
    let wake = simulation.state.subscribe(index);
    let cut = simulation.faults.subscribe();
    let started = match &timeout {
        Ok(_) => start(&simulation, index, &filter, query, version, initial_events).await,
        Err(failure) => Err(failure.clone()),
    };
    let resource = KINDS[index].qualified();
    let start = match started {
        Ok(start) => start,
        Err(failure) => {
            let line = form.encode(error_frame(&failure, shape).into());
            // Bytes of a body of known length are counted with the answer.
            simulation.stats.events(&resource, 1, 0);
            return Ok(full_body(line));
        }
    };
    simulation.stats.watch_opened(&resource);
    let now = Instant::now();
    let cut_before = *cut.borrow();
    let deadline = now + timeout.unwrap_or_default().min(MAX_TIMEOUT);
    let mut watch = SimulatedWatch {
        index,
        filter,
        form,
        cursor: start.cursor,
        start: start.cursor,
        initial: start.initial,
        end_mark: start.end_mark.filter(|_| query.bookmarks),
        bookmarks: query.bookmarks && KINDS[index].has_watch_cache,
        // A watch that is too short for a farewell gets no bookmarks.
        next_bookmark: deadline,
        deadline,
        wake,
        cut,
        cut_before,
        restores,
        ending: None,
        simulation,
    };
    if deadline - now > FAREWELL {
        watch.schedule_bookmark(now);
    }
    let body = stream::unfold(watch, |mut watch| async move {
        let next = watch.next().await?;
        Some((next.map(Frame::data), watch))
    });
    Ok(http_body_util::BodyExt::boxed_unsync(StreamBody::new(body)))
}

/// Returns the time after which the watch ends.
fn timeout(simulation: &Simulation, query: &QueryParameters) -> Result<Duration, Failure> {
    match query.timeout_seconds {
        Some(seconds) if seconds < 0 => Err(Failure::new(
            500,
            "InternalError",
            "context deadline exceeded",
        )),
        None | Some(0) => Ok(simulation
            .options
            .min_request_timeout
            .mul_f64(1.0 + fastrand::f64())),
        Some(seconds) => Ok(Duration::from_secs(seconds.unsigned_abs())),
    }
}

/// Returns `true` if upstream would compress such a watch. Source: apiserver
/// `pkg/endpoints/handlers/get.go` (isListWatchRequest).
pub(crate) fn is_watch_list(query: &QueryParameters, mode: WatchListSupport) -> bool {
    query.bookmarks && matches!(validate(query, mode), Ok(Some(true)))
}

/// Returns the effective `sendInitialEvents`. `None` is a plain watch, or the old form when the
/// version is unset or 0. Source: apimachinery
/// `internalversion/{defaults,validation/validation}.go`.
fn validate(query: &QueryParameters, mode: WatchListSupport) -> Result<Option<bool>, Failure> {
    const MATCH: &str = "resourceVersionMatch";
    const FORBIDDEN: &str = "FieldValueForbidden";
    if mode == WatchListSupport::Ignored {
        return Ok(None);
    }
    let unset = query.version.as_deref().is_none_or(|v| v == "0");
    let defaulted = unset
        && query.initial_events.is_none()
        && query.version_match.is_none()
        && mode == WatchListSupport::Served;
    let initial = if defaulted {
        Some(true)
    } else {
        query.initial_events
    };
    let version_match = if defaulted {
        Some("NotOlderThan")
    } else {
        query.version_match.as_deref()
    };
    let mut errors = Vec::new();
    let unsupported;
    if initial.is_some() {
        if version_match != Some("NotOlderThan") {
            let message = "Forbidden: sendInitialEvents requires setting resourceVersionMatch \
                           to NotOlderThan";
            errors.push((MATCH, FORBIDDEN, message));
        }
        if mode == WatchListSupport::Refused {
            let message = "Forbidden: sendInitialEvents is forbidden for watch unless \
                           the WatchList feature gate is enabled";
            errors.push(("sendInitialEvents", FORBIDDEN, message));
        }
    } else if version_match.is_some() {
        let message = "Forbidden: resourceVersionMatch is forbidden for watch unless \
                       sendInitialEvents is provided";
        errors.push((MATCH, FORBIDDEN, message));
    }
    if let Some(other) = version_match.filter(|m| *m != "NotOlderThan") {
        unsupported = format!(r#"Unsupported value: {other:?}: supported values: "NotOlderThan""#);
        errors.push((MATCH, "FieldValueNotSupported", unsupported.as_str()));
    }
    if version_match.is_some() && query.continue_token.is_some() {
        errors.push((
            MATCH,
            FORBIDDEN,
            "Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ));
    }
    if errors.is_empty() {
        Ok(initial)
    } else {
        Err(Failure::invalid_options(&errors))
    }
}

async fn start(
    simulation: &Simulation,
    index: usize,
    filter: &ObjectFilter,
    query: &QueryParameters,
    version: u64,
    initial_events: Option<bool>,
) -> Result<StreamStart, Failure> {
    let state = &simulation.state;
    let plain = |cursor| StreamStart {
        cursor,
        initial: VecDeque::new(),
        end_mark: None,
    };
    if version > 0 && initial_events != Some(true) {
        return match state.recent(index, version) {
            EventsSince::TooOld(oldest) if KINDS[index].has_watch_cache => {
                Err(Failure::expired_watch(version, oldest))
            }
            EventsSince::TooOld(_) => Err(Failure::expired_watch_of_etcd()),
            // Accepts a version that doesn't exist yet. The stream is silent up to it.
            EventsSince::Events(..) | EventsSince::Gone => Ok(plain(version)),
        };
    }
    // etcd sends its present state at once.
    if KINDS[index].has_watch_cache {
        simulation.reach(index, version).await?;
    }
    let view = if query.version.is_none() {
        state.fresh_view(index)
    } else {
        simulation.view_from(index, version)
    };
    if initial_events == Some(false) {
        return Ok(plain(view.version));
    }
    let initial = view
        .objects
        .values()
        .filter(|o| filter.matches(o))
        .cloned()
        .collect();
    Ok(StreamStart {
        cursor: view.version,
        initial,
        end_mark: initial_events.map(|_| view.version),
    })
}

impl StreamForm {
    /// Encodes what is flushed together. Each flush is a gzip member of its own.
    fn encode(self, bytes: Bytes) -> Bytes {
        if self.is_gzip {
            gzip_member(&bytes)
        } else {
            bytes
        }
    }
}

impl Drop for SimulatedWatch {
    fn drop(&mut self) {
        self.simulation
            .stats
            .watch_closed(&KINDS[self.index].qualified());
    }
}

impl SimulatedWatch {
    /// Returns the next bytes. `None` ends the stream cleanly, and an error resets it.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            match self.ending {
                Some(StreamEnding::Clean) => return None,
                Some(StreamEnding::Broken) => {
                    tokio::time::sleep(BREAK_PAUSE).await;
                    return Some(Err(BodyError));
                }
                None => {}
            }
            let cut = *self.cut.borrow_and_update();
            if cut.broken != self.cut_before.broken {
                return Some(Err(BodyError));
            }
            let now = Instant::now();
            if cut.ended != self.cut_before.ended || now >= self.deadline {
                return None;
            }
            let faults = self.simulation.faults.active();
            if faults.silent || cut.stalled != self.cut_before.stalled {
                let _ = tokio::time::timeout_at(self.deadline, self.cut.changed()).await;
                continue;
            }
            let mut out = LineChunk::default();
            let held = self.fill(&mut out, faults.lateness());
            // Nothing may follow half a frame, or the client would read both as one line.
            if self.bookmarks && self.ending.is_none() && now >= self.next_bookmark {
                if self.cursor > self.start && !faults.no_bookmarks {
                    let line =
                        bookmark_line(&KINDS[self.index], self.form.shape, self.cursor, false);
                    self.push(&mut out, &line);
                }
                self.schedule_bookmark(now);
            }
            if !out.bytes.is_empty() {
                let resource = KINDS[self.index].qualified();
                let bytes = self.form.encode(out.bytes.freeze());
                self.simulation
                    .stats
                    .events(&resource, out.events, bytes.len() as u64);
                return Some(Ok(bytes));
            }
            if self.ending.is_some() {
                continue;
            }
            let until = [
                Some(self.deadline),
                held,
                self.bookmarks.then_some(self.next_bookmark),
            ];
            let until = until.into_iter().flatten().min().unwrap_or(self.deadline);
            tokio::select! {
                changed = self.wake.changed(), if held.is_none() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                _ = self.cut.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Writes what is there to be sent. Returns when the first event that is held back may leave.
    fn fill(&mut self, out: &mut LineChunk, delay: Duration) -> Option<Instant> {
        while let Some(object) = self.initial.pop_front() {
            let line = event_line("ADDED", &object, object.version, self.form.shape);
            self.push(out, &line);
            if out.bytes.len() >= CHUNK || self.ending.is_some() {
                return None;
            }
        }
        if let Some(version) = self.end_mark.take() {
            let line = bookmark_line(&KINDS[self.index], self.form.shape, version, true);
            self.push(out, &line);
            if self.ending.is_some() {
                return None;
            }
        }
        self.wake.mark_unchanged();
        let (events, cache_version) = match self.simulation.state.recent(self.index, self.cursor) {
            EventsSince::Events(events, cache_version) => (events, cache_version),
            // Upstream silently ends a watch when its events are forgotten or its type is gone.
            EventsSince::TooOld(_) | EventsSince::Gone => {
                self.ending = Some(StreamEnding::Clean);
                return None;
            }
        };
        // Looked at afterwards: what was read before a restore is of the time before it.
        if self.simulation.state.restores() != self.restores {
            self.ending = Some(StreamEnding::Broken);
            return None;
        }
        let now = Instant::now();
        for event in events {
            if event.at + delay > now {
                return Some(event.at + delay);
            }
            self.cursor = event.version;
            if let Some((change, object)) = transition(&event, &self.filter) {
                let is_mine = |resource: &str| resource == KINDS[self.index].qualified();
                if self.simulation.faults.loses_event(is_mine) {
                    continue;
                }
                let line = event_line(change, object, event.version, self.form.shape);
                self.push(out, &line);
                if self.ending.is_some() {
                    return None;
                }
            }
        }
        self.cursor = self.cursor.max(cache_version);
        None
    }

    fn push(&mut self, out: &mut LineChunk, line: &[u8]) {
        out.events += 1;
        match self.simulation.faults.next_frame() {
            NextFrame::Whole => out.bytes.extend_from_slice(line),
            NextFrame::Broken(BrokenFrame::Garbage) => {
                out.bytes.extend_from_slice(b"{\"type\":\"ADD\x00garbage\n");
            }
            NextFrame::Broken(BrokenFrame::Half) => {
                out.bytes.extend_from_slice(&line[..line.len() / 2]);
                self.ending = Some(StreamEnding::Broken);
            }
        }
    }

    fn schedule_bookmark(&mut self, now: Instant) {
        let regular = now + self.simulation.options.bookmark_every;
        let farewell = self.deadline - FAREWELL.min(self.deadline - now);
        // From the farewell on, a bookmark is due every second until the deadline.
        self.next_bookmark = if farewell > now {
            regular.min(farewell)
        } else {
            now + Duration::from_secs(1)
        };
    }
}

/// Lines that the connection has not taken yet.
#[derive(Default)]
struct LineChunk {
    bytes: BytesMut,
    events: u64,
}

/// Returns the change that a watcher of some of the objects sees.
fn transition<'a>(
    event: &'a WriteEvent,
    filter: &ObjectFilter,
) -> Option<(&'static str, &'a Arc<SimulatedObject>)> {
    let before = event.before.as_ref().filter(|o| filter.matches(o));
    let after = event.after.as_ref().filter(|o| filter.matches(o));
    match (before, after) {
        (None, Some(object)) => Some(("ADDED", object)),
        (Some(_), Some(object)) => Some(("MODIFIED", object)),
        (Some(object), None) => Some(("DELETED", object)),
        (None, None) => None,
    }
}

fn event_line(change: &str, object: &SimulatedObject, version: u64, shape: AnswerShape) -> Vec<u8> {
    let object = match shape {
        AnswerShape::Message => return message::event(change, &object.bytes_at(version)),
        AnswerShape::Full => object.bytes_at(version),
        AnswerShape::Partial => object.partial_at(version),
    };
    [
        br#"{"type":""#,
        change.as_bytes(),
        br#"","object":"#,
        &object,
        b"}\n",
    ]
    .concat()
}

fn error_frame(failure: &Failure, shape: AnswerShape) -> Vec<u8> {
    match shape {
        AnswerShape::Message => message::error(failure),
        AnswerShape::Full | AnswerShape::Partial => {
            let status = failure.status();
            format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into_bytes()
        }
    }
}

/// A bookmark is the zero value of its kind with a version in it.
fn bookmark_line(kind: &ResourceKind, shape: AnswerShape, version: u64, end_mark: bool) -> Vec<u8> {
    let (annotations, comma) = if end_mark {
        (r#""annotations":{"k8s.io/initial-events-end":"true"}"#, ",")
    } else {
        ("", "")
    };
    let api_version = kind.api_version();
    let object = match (shape, kind.form) {
        (AnswerShape::Full, TypeOrigin::Custom) => {
            let metadata = format!(r#"{{{annotations}{comma}"resourceVersion":"{version}"}}"#);
            let kind = kind.kind;
            format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{metadata}}}"#)
        }
        (shape, _) => {
            let metadata = format!(r#"{{"resourceVersion":"{version}"{comma}{annotations}}}"#);
            let (kind_name, api_version, tail) = match shape {
                AnswerShape::Full | AnswerShape::Message => {
                    (kind.kind, api_version.as_str(), kind.zero_tail)
                }
                AnswerShape::Partial => ("PartialObjectMetadata", "meta.k8s.io/v1", ""),
            };
            let kind = format!(r#""kind":"{kind_name}","apiVersion":"{api_version}""#);
            format!(r#"{{{kind},"metadata":{metadata}{tail}}}"#)
        }
    };
    if shape == AnswerShape::Message {
        return message::event("BOOKMARK", object.as_bytes());
    }
    format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into_bytes()
}
