//! One watching client: its first state, its watch, and a check that no event is missing.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::connect::{Connections, LoadRequest};
use super::group::{ClientGroup, CollectionQuery, FirstState};
use super::inflate::Inflate;
use super::list_version::ListEnds;
use super::stamp::{self, StampFinder};
use super::tally::RoundTally;
use super::trouble::{LoadError, broken};
use super::write::Ledger;
use watershed_protocol::{
    Encoding, EventKind, FieldTable, Frame, FrameDecoder, ResourceVersion, read_bookmark,
    read_error, scan,
};

/// A single event above this is refused.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// Pauses after failures, growing.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// State that all watches of a round share.
pub(super) struct RoundContext {
    pub(super) connections: Connections,
    pub(super) tally: Arc<RoundTally>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) finder: StampFinder,
    /// Limits the watches that open at the same time.
    pub(super) opening: Semaphore,
    /// Requested timeout of watches, longer than the round.
    pub(super) timeout: Duration,
    /// Cancelled at the end of the round.
    pub(super) stop: CancellationToken,
}

/// State that the watches of a group share.
pub(super) struct WatchGroup {
    pub(super) group: ClientGroup,
    /// Version that all of them watch from, with [`FirstState::Version`].
    pub(super) version: OnceCell<ResourceVersion>,
}

/// One client.
pub(super) struct WatchClient {
    common: Arc<RoundContext>,
    kind: Arc<WatchGroup>,
    selection: CollectionQuery,
    /// Counts all watches of the round.
    number: usize,
    begun: Instant,
    /// The newest write seen of each object that it is told of, in the order of the objects.
    seen: Vec<(u16, u32)>,
    /// Watch from here on; `None` to begin anew.
    version: Option<ResourceVersion>,
    /// A version was too old. The one that all watches of the kind begin at is older still.
    has_expired: bool,
    /// A first state was refused for a reason that stays.
    is_refused: bool,
    synced: bool,
}

/// The events of an open watch.
struct EventReader<'a> {
    encoding: Encoding,
    inflate: Inflate,
    decoder: FrameDecoder,
    /// Held until the first state is complete.
    turn: Option<SemaphorePermit<'a>>,
    /// True while the stream brings the first state.
    initial: bool,
    /// An object as new as the last event. Its version is read only when it is needed.
    last: Option<Bytes>,
}

impl WatchClient {
    /// `number` counts all watches, `nth` those of the group.
    pub(super) fn new(
        common: &Arc<RoundContext>,
        kind: &Arc<WatchGroup>,
        number: usize,
        nth: usize,
    ) -> Self {
        let concerned = kind.group.concerned(nth, &common.ledger.written());
        let objects = (0_u16..).zip(concerned).filter(|(_, concerned)| *concerned);
        Self {
            seen: objects
                .map(|(object, _)| (object, common.ledger.confirmed(object)))
                .collect(),
            common: Arc::clone(common),
            kind: Arc::clone(kind),
            selection: kind.group.selection(nth),
            number,
            begun: Instant::now(),
            version: None,
            has_expired: false,
            is_refused: false,
            synced: false,
        }
    }

    /// The objects whose writes it is told of.
    pub(super) fn objects(&self) -> impl Iterator<Item = u16> {
        self.seen.iter().map(|(object, _)| *object)
    }

    /// Follows until the round is over. Returns how many confirmed writes were not seen at the end.
    pub(super) async fn run(mut self) -> u64 {
        let stop = self.common.stop.clone();
        // Boxed: its state is larger than all else a task holds.
        Box::pin(stop.run_until_cancelled(self.follow())).await;
        let missing = |(object, seen): &(u16, u32)| {
            u64::from(self.common.ledger.confirmed(*object).saturating_sub(*seen))
        };
        self.seen.iter().map(missing).sum()
    }

    async fn follow(&mut self) {
        let mut pause = PAUSE;
        loop {
            let opened = Instant::now();
            match self.watch().await {
                Ok(()) => self.common.tally.count(&self.common.tally.resumed, 1),
                Err(error) => {
                    if matches!(error, LoadError::Expired) {
                        self.version = None;
                        self.has_expired = true;
                    }
                    self.note_refusal(&error);
                    self.common.tally.error("watch", error);
                }
            }
            // Watches that end immediately, one after the other, did not reach their timeout.
            pause = if opened.elapsed() > LONGEST_PAUSE {
                PAUSE
            } else {
                (pause * 2).min(LONGEST_PAUSE)
            };
            sleep(pause).await;
        }
    }

    /// Follows one watch until it ends in good order.
    async fn watch(&mut self) -> Result<(), LoadError> {
        let common = Arc::clone(&self.common);
        let kind = Arc::clone(&self.kind);
        let turn = common
            .opening
            .acquire()
            .await
            .map_err(|error| LoadError::Request(error.to_string()))?;
        let stream = kind.group.first_state == FirstState::Stream && self.version.is_none();
        if self.version.is_none() && !stream {
            self.version = Some(self.first_version().await?);
        }
        let representation = kind.group.representation();
        let request = LoadRequest::get(
            self.watch_path(),
            representation.watch_accept_header(),
            kind.group.gzip,
        );
        let answer = common.connections.send(self.number, request).await?;
        if !stream {
            self.first_state_is_there();
        }
        let mut events = EventReader {
            encoding: representation.encoding,
            inflate: Inflate::new(answer.is_gzip()),
            decoder: FrameDecoder::new(representation.encoding, MAX_FRAME_BYTES),
            turn: stream.then_some(turn),
            initial: stream,
            last: None,
        };
        let mut body = answer.body;
        let ended = loop {
            let data = match body.frame().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(broken(error)),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            if let Err(error) = self.receive(&mut events, data) {
                break Err(error);
            }
        };
        if let Some(object) = events.last {
            self.version = Some(version_of(events.encoding, &object)?);
        }
        match ended {
            Ok(()) if !events.decoder.is_clean() => Err(LoadError::Cut),
            ended => ended,
        }
    }

    fn watch_path(&self) -> String {
        let CollectionQuery { path, query } = &self.selection;
        let seconds = self.common.timeout.as_secs();
        let from = match self.version {
            Some(version) => format!("&resourceVersion={version}"),
            None => "&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
                .to_owned(),
        };
        format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{from}{query}")
    }

    /// Takes a piece of the body and all events that are complete with it.
    fn receive(&mut self, reader: &mut EventReader<'_>, data: Bytes) -> Result<(), LoadError> {
        let common = Arc::clone(&self.common);
        let now = stamp::now();
        common
            .tally
            .count(&common.tally.watch_bytes, data.len() as u64);
        let text = reader.inflate.push(data)?;
        reader.decoder.push(text);
        let mut events = 0;
        let taken = loop {
            match reader.decoder.next_frame() {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
                Ok(Some(frame)) => match self.take_frame(reader, frame, now) {
                    Ok(is_event) => events += u64::from(is_event),
                    Err(error) => break Err(error),
                },
            }
        };
        common.tally.count(&common.tally.events, events);
        taken
    }

    /// Takes one frame. Returns `true` if it is an event after the first state.
    fn take_frame(
        &mut self,
        reader: &mut EventReader<'_>,
        frame: Frame,
        now: u64,
    ) -> Result<bool, LoadError> {
        match frame.kind {
            EventKind::Bookmark => {
                let bookmark = read_bookmark(reader.encoding, &frame.object)?;
                if bookmark.initial_events_end && reader.initial {
                    reader.initial = false;
                    reader.turn = None;
                    self.first_state_is_there();
                }
                if !reader.initial {
                    (self.version, reader.last) = (Some(bookmark.version), None);
                }
                Ok(false)
            }
            EventKind::Error => Err(refusal(reader.encoding, &frame.object)),
            // The state that the stream brings is not counted as events.
            _ if reader.initial => Ok(false),
            EventKind::Added | EventKind::Modified | EventKind::Deleted => {
                if frame.kind != EventKind::Deleted {
                    self.take(&frame.object, now);
                }
                reader.last = Some(frame.object);
                Ok(true)
            }
        }
    }

    /// The version to watch from.
    async fn first_version(&self) -> Result<ResourceVersion, LoadError> {
        let list = async |query: &str| {
            let representation = self.kind.group.representation();
            let target = format!("{}?{query}{}", self.selection.path, self.selection.query);
            let request = LoadRequest::get(
                target,
                representation.list_accept_header(),
                self.kind.group.gzip,
            );
            let answer = self.common.connections.send(self.number, request).await?;
            let mut inflate = Inflate::new(answer.is_gzip());
            let mut ends = ListEnds::default();
            let reading = answer.read(|data| {
                ends.push(&inflate.push(data)?);
                Ok(())
            });
            reading.await?;
            ends.version(representation.encoding)
        };
        match self.kind.group.first_state {
            FirstState::Version if self.has_expired => list("limit=1").await,
            FirstState::Version => self
                .kind
                .version
                .get_or_try_init(|| list("limit=1"))
                .await
                .copied(),
            FirstState::List | FirstState::Stream => list("resourceVersion=0").await,
        }
    }

    fn note_refusal(&mut self, error: &LoadError) {
        if error.is_permanent() && !self.synced && !self.is_refused {
            self.is_refused = true;
            self.common.tally.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn first_state_is_there(&mut self) {
        if !self.synced {
            self.synced = true;
            self.common
                .tally
                .first_state
                .record(self.number, self.begun.elapsed());
            self.common.tally.synced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes a stamp, if the object has one that is for this watch.
    fn take(&mut self, object: &[u8], now: u64) {
        if self.seen.is_empty() {
            return;
        }
        let tally = &self.common.tally;
        let Some(stamp) = self.common.finder.find(object) else {
            return;
        };
        let Ok(at) = self
            .seen
            .binary_search_by_key(&stamp.object, |(object, _)| *object)
        else {
            tally.error(
                "watch",
                "an event of an object that the selectors leave out",
            );
            return;
        };
        let seen = &mut self.seen[at].1;
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
        if stamp.sequence > *seen {
            add(&tally.missed, u64::from(stamp.sequence - *seen - 1));
            *seen = stamp.sequence;
            add(&tally.delivered, 1);
            tally.latency.record(
                self.number,
                Duration::from_nanos(now.saturating_sub(stamp.nanos)),
            );
        } else if tally.is_measuring() {
            add(&tally.repeated, 1);
        }
    }
}

/// Returns the error that an ERROR event holds.
fn refusal(encoding: Encoding, object: &[u8]) -> LoadError {
    let status = read_error(encoding, object);
    let code = u16::try_from(status.code)
        .ok()
        .and_then(|code| StatusCode::from_u16(code).ok())
        .unwrap_or_default();
    if code == StatusCode::GONE {
        return LoadError::Expired;
    }
    LoadError::Refused {
        status: code,
        message: status.message,
    }
}

/// Returns the version of an object of any type.
fn version_of(encoding: Encoding, object: &[u8]) -> Result<ResourceVersion, LoadError> {
    let read = |namespaced| scan(encoding, object, &FieldTable::metadata_only(namespaced));
    Ok(read(true).or_else(|_| read(false))?.version)
}
