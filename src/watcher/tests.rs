//! Bodies of watches, plain and compressed, side by side.
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body::Body;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use crate::store::{
    self, Layout, Snapshot, StoreReader, StoreWriter, StoredObject, SubscriptionStart, WindowLimits,
};
use crate::work::{OBJECTS_PER_TURN, REDUCED_OBJECT};
use watershed_protocol::{
    BookmarkFormat, Encoding, EventKind, FieldTable, Frame, GroupVersionResource, LabelSelector,
    PartialFormat, ResourceVersion, Selectors, WireFormat, scan,
};

/// Counts of a watch: events and bytes handed out, and how it ended.
#[derive(Clone, Default)]
struct Meter(Arc<Mutex<(usize, usize, Option<WatchEnding>)>>);

impl WatchObserver for Meter {
    fn sent(&mut self, events: usize, bytes: usize) {
        let mut counted = self.0.lock();
        counted.0 += events;
        counted.1 += bytes;
    }

    fn ended(&mut self, how: WatchEnding) {
        self.0.lock().2 = Some(how);
    }
}

/// A guard that says what the test says.
#[derive(Clone)]
struct Said(Arc<Mutex<AccessStatus>>);

impl AccessGuard for Said {
    fn poll(&mut self, _: &mut Context<'_>) -> AccessStatus {
        *self.0.lock()
    }

    fn due(&self) -> Instant {
        Instant::now() + Duration::from_hours(1)
    }
}

/// A scope of config maps.
struct Rig {
    writer: StoreWriter,
    reader: StoreReader,
    format: Arc<WireFormat>,
    fields: Arc<FieldTable>,
    bookmarks: Bookmarks,
    irreducible: Arc<IrreducibleObject>,
    version: u64,
}

impl Rig {
    fn new(bytes: usize, objects: u64) -> Self {
        let list = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#;
        let list = Bytes::from(format!("{list}\n"));
        let (format, _) = WireFormat::learn(Encoding::Json, "ConfigMap", &list).unwrap();
        let bookmark =
            br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#;
        let bookmark = BookmarkFormat::learn(&format, &Bytes::from_static(bookmark)).unwrap();
        let configmaps = GroupVersionResource::new("", "v1", "configmaps");
        let (writer, reader) = store::new(WindowLimits {
            age: Duration::from_hours(1),
            least: 0,
            bytes,
        });
        let mut rig = Self {
            writer,
            reader,
            format: Arc::new(format),
            fields: Arc::new(FieldTable::builtin(&configmaps, true).unwrap()),
            bookmarks: Arc::new(ArcSwapOption::from_pointee(bookmark)),
            irreducible: Arc::default(),
            version: 100,
        };
        let objects = (0..objects).map(|n| rig.object(&format!("first-{n}"), n + 1, "gold"));
        let layout = Layout {
            format: Arc::clone(&rig.format),
            indexed: None,
        };
        let snapshot = Snapshot::new(ResourceVersion(100), layout, objects.collect::<Vec<_>>());
        rig.writer.replace(snapshot);
        rig
    }

    fn object(&self, name: &str, version: u64, tier: &str) -> StoredObject {
        // Some are so large that they are sent from where they lie.
        let data = "some words ".repeat(if name.ends_with(['3', '7']) { 400 } else { 50 });
        let text = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"{version}","labels":{{"tier":"{tier}"}}}},"data":{{"text":"{data}"}}}}"#
        );
        let scanned = scan(Encoding::Json, text.as_bytes(), &self.fields).unwrap();
        let bytes = self.format.item_bytes(&text.into()).into();
        StoredObject {
            bytes,
            version: scanned.version,
            attributes: scanned.attributes,
        }
    }

    fn put(&mut self, kind: EventKind, name: &str, tier: &str) {
        self.version += 1;
        let object = self.object(name, self.version, tier);
        let frame = self.format.event(kind, &object.bytes.get());
        let frame = Frame {
            kind,
            object: frame.clone(),
            frame,
        };
        self.writer
            .apply(Instant::now().into_std(), frame, object)
            .unwrap();
    }

    /// A watch that begins with the state.
    fn watch(&self, coding: ContentCoding, labels: &str, partial: bool) -> Watching {
        self.watch_with(Some(&self.bookmarks), coding, labels, partial)
    }

    fn watch_with(
        &self,
        bookmarks: Option<&Bookmarks>,
        coding: ContentCoding,
        labels: &str,
        partial: bool,
    ) -> Watching {
        let selectors = Selectors {
            labels: LabelSelector::parse(labels).unwrap(),
            ..Selectors::default()
        };
        let filter = ViewFilter::new(None, &selectors, &self.fields).unwrap();
        let interest = filter.interest(&self.fields);
        let partial = partial.then(|| PartialView {
            format: PartialFormat::of(&self.format, Encoding::Json).unwrap(),
            irreducible: Arc::clone(&self.irreducible),
        });
        let conversion = partial.map(Conversion::Metadata).map(Box::new);
        let view = ClientView { filter, conversion };
        let (subscription, snapshot) = self
            .reader
            .subscribe(SubscriptionStart::Now, interest.clone());
        let version = snapshot.version();
        let format = self.bookmarks.load_full().unwrap();
        let end_mark = Some(EndMark { format, version });
        let meter = Meter::default();
        let said = Said(Arc::new(Mutex::new(AccessStatus::Granted)));
        let options = WatchOptions {
            format: Arc::clone(&self.format),
            view,
            coding,
            start: version,
            initial: Some(InitialState::new(
                snapshot.into_runs(&interest),
                self.reader.clone(),
                end_mark,
                None,
            )),
            bookmarks: bookmarks.cloned(),
            is_from_etcd: false,
            deadline: Instant::now() + Duration::from_mins(30),
            guard: said.clone(),
            draining: std::future::pending(),
            observer: meter.clone(),
        };
        Watching {
            body: WatchBody::new(subscription, options),
            coding,
            meter,
            said,
            pieces: Vec::new(),
            turns: 0,
        }
    }
}

struct Watching {
    body: WatchBody<Said, std::future::Pending<()>, Meter>,
    coding: ContentCoding,
    meter: Meter,
    said: Said,
    /// Returns what was handed out: all that is ready at each poll.
    pieces: Vec<Bytes>,
    /// Number of turns that ended before there was nothing to do.
    turns: usize,
}

impl Watching {
    /// Returns what is handed out until nothing more is ready.
    fn read(&mut self) -> &[Bytes] {
        let before = self.pieces.len();
        let mut ready = Vec::new();
        while let Some(frame) = self.next() {
            let piece = frame.into_data().unwrap();
            assert!(!piece.is_empty());
            ready.push(piece);
            if self.body.size_hint().lower() == 0 {
                let all = if let [one] = &ready[..] {
                    one.clone()
                } else {
                    ready.concat().into()
                };
                self.pieces.push(all);
                ready.clear();
            }
        }
        assert_eq!(ready, [] as [Bytes; 0], "what was promised came");
        &self.pieces[before..]
    }

    /// Returns what comes before the watch waits for something. A turn may end in between.
    fn next(&mut self) -> Option<http_body::Frame<Bytes>> {
        loop {
            let woken = Arc::<WakeCount>::default();
            let waker = Waker::from(Arc::clone(&woken));
            let mut context = Context::from_waker(&waker);
            match Pin::new(&mut self.body).poll_frame(&mut context) {
                Poll::Ready(frame) => return frame.map(Result::unwrap),
                Poll::Pending if woken.0.load(Ordering::SeqCst) == 0 => return None,
                Poll::Pending => self.turns += 1,
            }
        }
    }

    /// Its frames. Each piece is readable without those that follow.
    fn text(&self) -> String {
        let text = self.pieces.iter().map(|piece| match self.coding {
            ContentCoding::Identity => piece.to_vec(),
            ContentCoding::Gzip => unpacked(piece),
        });
        let text: Vec<_> = text
            .inspect(|text| assert_eq!(text.last(), Some(&b'\n')))
            .collect();
        String::from_utf8(text.concat()).unwrap()
    }
}

fn unpacked(members: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    MultiGzDecoder::new(members).read_to_end(&mut text).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn a_compressed_watch_says_what_a_plain_one_says() {
    for (labels, partial) in [("", false), ("tier=gold", false), ("tier!=gold", true)] {
        let mut rig = Rig::new(80_000, 100);
        let mut both = [ContentCoding::Identity, ContentCoding::Gzip]
            .map(|coding| rig.watch(coding, labels, partial));
        let read = |both: &mut [Watching; 2]| {
            for watching in &mut *both {
                watching.read();
            }
            assert_eq!(both[0].text(), both[1].text());
        };
        read(&mut both);
        // One at a time, then many, of which some come into view and go.
        rig.put(EventKind::Modified, "first-1", "gold");
        read(&mut both);
        for n in 0..10 {
            rig.put(
                EventKind::Modified,
                &format!("first-{n}"),
                ["gold", "iron"][n % 2],
            );
            rig.put(
                EventKind::Added,
                &format!("new-{n}"),
                ["iron", "gold", "gold"][n % 3],
            );
        }
        rig.put(EventKind::Deleted, "first-50", "gold");
        read(&mut both);
        tokio::time::advance(Duration::from_secs(61)).await;
        read(&mut both);
        let text = both[1].text();
        assert!(
            text.contains(r#"{"type":"BOOKMARK""#) && text.contains("initial-events-end"),
            "{text}"
        );
        // It falls out of the window.
        for n in 10..90 {
            rig.put(EventKind::Modified, &format!("first-{n}"), "iron");
            rig.put(EventKind::Modified, &format!("first-{n}"), "gold");
            if n == 50 - 1 {
                rig.put(EventKind::Added, "first-50", "gold");
            }
        }
        read(&mut both);
        assert!(
            both[1].text().ends_with("\"code\":410}}\n"),
            "{}",
            both[1].text()
        );
        for Watching { meter, pieces, .. } in &both {
            let (events, bytes, ended) = *meter.0.lock();
            assert_eq!(ended, Some(WatchEnding::Expired));
            assert_eq!(events, both[0].text().lines().count());
            assert_eq!(bytes, pieces.iter().map(Bytes::len).sum::<usize>());
        }
        let [plain, compressed] = both.map(|watching| watching.meter.0.lock().1);
        assert!(compressed * 2 < plain, "{compressed} of {plain} bytes");
    }
}

#[tokio::test]
async fn large_objects_and_events_are_not_copied_for_a_watch() {
    let mut rig = Rig::new(1 << 20, 20);
    let mut watching = rig.watch(ContentCoding::Identity, "", false);
    let mut context = Context::from_waker(Waker::noop());
    let mut pieces = || {
        let mut pieces = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut watching.body).poll_frame(&mut context) {
            pieces.push(frame.unwrap().into_data().unwrap());
        }
        pieces
    };
    let (initial, snapshot) = (pieces(), rig.reader.snapshot());
    let is_there = |object: &StoredObject| {
        initial
            .iter()
            .any(|piece| object.bytes.get().is_part_of(piece))
    };
    let (large, small): (Vec<_>, Vec<_>) = snapshot
        .items(None)
        .partition(|object| object.key().ends_with(['3', '7']));
    assert_eq!((large.len(), small.len()), (4, 16));
    assert!(
        large.iter().all(|object| is_there(object)) && !small.iter().any(|object| is_there(object))
    );
    // What lies between two of them is one piece.
    assert!(initial.len() <= 2 * large.len() + 1, "{}", initial.len());
    for name in ["new-1", "new-2", "new-3", "new-4", "new-5"] {
        rig.put(EventKind::Added, name, "gold");
    }
    let events = pieces();
    let frames: Vec<_> = events
        .iter()
        .map(|piece| piece.split(|byte| *byte == b'\n').count() - 1)
        .collect();
    assert_eq!(
        frames,
        [1, 1, 1, 2],
        "the first as it is, one copied, one as it is, two copied"
    );
}

/// Objects that are looked at in one turn keep other tasks waiting.
#[tokio::test]
async fn a_watch_that_begins_with_few_of_many_objects_ends_its_turn_in_between() {
    const OBJECTS: usize = 5 * OBJECTS_PER_TURN;
    let rig = Rig::new(1 << 20, OBJECTS as u64);
    let mut none = rig.watch(ContentCoding::Identity, "tier=silver", false);
    none.read();
    assert_eq!(none.text().lines().count(), 1, "the mark of the end");
    assert!(none.turns >= OBJECTS / OBJECTS_PER_TURN, "{}", none.turns);
    let mut metadata = rig.watch(ContentCoding::Identity, "", true);
    metadata.read();
    assert_eq!(metadata.text().lines().count(), OBJECTS + 1);
    let turns = OBJECTS * REDUCED_OBJECT / OBJECTS_PER_TURN;
    assert!(metadata.turns >= turns, "{}", metadata.turns);
}

#[tokio::test]
async fn a_watch_that_resumes_far_behind_ends_its_turn_in_between() {
    const EVENTS: usize = 3 * OBJECTS_PER_TURN;
    let mut rig = Rig::new(64 << 20, 1);
    let mut watching = rig.watch(ContentCoding::Identity, "tier=silver", false);
    watching.read();
    for number in 0..EVENTS {
        rig.put(EventKind::Added, &format!("new-{number}"), "gold");
    }
    watching.read();
    // A turn ends behind the events that were taken together.
    let turns = watching.turns + 1;
    assert!(turns >= EVENTS / OBJECTS_PER_TURN, "{turns}");
}

#[tokio::test]
async fn watches_share_the_compressed_form_of_an_event() {
    let mut rig = Rig::new(1 << 20, 1);
    let mut crowd: Vec<_> = (0..20)
        .map(|_| rig.watch(ContentCoding::Gzip, "", false))
        .collect();
    crowd.push(rig.watch(ContentCoding::Gzip, "tier=gold", false));
    for watching in &mut crowd {
        watching.read();
    }
    let bytes = rig.reader.stats().event_bytes;
    rig.put(EventKind::Added, "new", "gold");
    let uncompressed = rig.reader.stats().event_bytes;
    let pieces: Vec<_> = crowd
        .iter_mut()
        .map(|watching| watching.read().to_vec())
        .collect();
    let [first] = &pieces[0][..] else {
        panic!("{pieces:?}")
    };
    assert!(
        pieces
            .iter()
            .all(|piece| piece.len() == 1 && piece[0].as_ptr() == first.as_ptr())
    );
    assert_eq!(
        rig.reader.stats().event_bytes,
        uncompressed + first.len(),
        "it counts once"
    );
    assert!(uncompressed > bytes);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_handed_out_while_the_grant_is_in_doubt_or_after_it() {
    let mut rig = Rig::new(1 << 20, 3);
    let mut both = [0; 2].map(|_| rig.watch(ContentCoding::Identity, "", false));
    both[0].read();
    // In the middle of the events, and before the first state.
    for watching in &mut both {
        *watching.said.0.lock() = AccessStatus::InDoubt;
    }
    rig.put(EventKind::Added, "secret", "gold");
    tokio::time::advance(Duration::from_secs(61)).await;
    for watching in &mut both {
        assert!(watching.read().is_empty());
        *watching.said.0.lock() = AccessStatus::Granted;
        watching.read();
        assert!(watching.text().contains("secret"), "it was kept for later");
        *watching.said.0.lock() = AccessStatus::InDoubt;
    }
    rig.put(EventKind::Added, "another", "gold");
    for watching in &mut both {
        watching.read();
        *watching.said.0.lock() = AccessStatus::Revoked;
        watching.read();
        assert!(!watching.text().contains("another"));
        assert_eq!(watching.meter.0.lock().2, Some(WatchEnding::Revoked));
    }
}

/// Counts how often a task is woken.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Watching {
    /// Reads everything that is ready. Returns the count of later wake-ups.
    fn sleeps(&mut self) -> Arc<WakeCount> {
        let count = Arc::<WakeCount>::default();
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        while Pin::new(&mut self.body).poll_frame(&mut context).is_ready() {}
        count
    }
}

#[tokio::test]
async fn an_expired_watch_names_its_version_only_if_that_is_too_old() {
    const NO_VERSION: &str = "The resourceVersion for the provided watch is too old.";
    let mut rig = Rig::new(1 << 20, 3);
    let mut watching = rig.watch(ContentCoding::Identity, "", false);
    watching.read();
    // As after a change of how upstream prints the objects.
    rig.writer.expire();
    watching.read();
    assert!(watching.text().contains(NO_VERSION), "{}", watching.text());

    let mut rig = Rig::new(1, 3);
    let mut watching = rig.watch(ContentCoding::Identity, "", false);
    watching.read();
    for _ in 0..3 {
        rig.put(EventKind::Modified, "first-0", "gold");
    }
    watching.read();
    let text = watching.text();
    assert!(
        text.contains("too old resource version: 100 (103)"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_bookmarks_sleeps_until_its_deadline() {
    let rig = Rig::new(1 << 20, 3);
    let mut watching = rig.watch_with(None, ContentCoding::Identity, "", false);
    let woken = watching.sleeps();
    for _ in 0..29 {
        tokio::time::advance(Duration::from_mins(1)).await;
    }
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    watching.read();
    assert_eq!(watching.meter.0.lock().2, Some(WatchEnding::Deadline));
}

#[tokio::test(start_paused = true)]
async fn watches_that_began_together_do_not_wake_together() {
    const WATCHES: usize = 60;
    let rig = Rig::new(1 << 20, 3);
    let mut watches: Vec<_> = (0..WATCHES)
        .map(|_| rig.watch(ContentCoding::Identity, "", false))
        .collect();
    let counts: Vec<_> = watches.iter_mut().map(Watching::sleeps).collect();
    let woken = || {
        let woken = counts.iter().map(|count| count.0.load(Ordering::SeqCst));
        woken.sum::<usize>()
    };
    let mut most = 0;
    for _ in 0..61 {
        let before = woken();
        tokio::time::advance(Duration::from_secs(1)).await;
        most = most.max(woken() - before);
    }
    assert_eq!(woken(), WATCHES, "a bookmark a minute at least");
    assert!(most < WATCHES / 2, "{most} woke within a second");
}

/// Returns the seconds until a watch sends a bookmark, if the version grows after so many.
async fn until_bookmark(growing: u64) -> u64 {
    let mut rig = Rig::new(1 << 20, 3);
    let mut watching = rig.watch(ContentCoding::Identity, "", false);
    watching.read();
    for second in 1..=300 {
        tokio::time::advance(Duration::from_secs(1)).await;
        if second == growing {
            let version = ResourceVersion(101);
            rig.writer.progress(Instant::now().into_std(), version);
        }
        let sent: usize = watching.read().iter().map(Bytes::len).sum();
        if sent > 0 {
            return second;
        }
    }
    panic!("no bookmark came");
}

/// An API server sends its first bookmark after a minute. So a proxy in front of others has nothing new to say when
/// its own first ones are due.
#[tokio::test(start_paused = true)]
async fn a_bookmark_that_said_nothing_new_is_due_again_soon() {
    for (growing, due) in [(1, 45..=61), (62, 65..=82), (83, 110..=145)] {
        for _ in 0..20 {
            let sent = until_bookmark(growing).await;
            assert!(due.contains(&sent), "{sent} s, grown after {growing} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_a_watch_whose_grant_is_in_doubt() {
    let mut rig = Rig::new(1 << 20, 3);
    let mut watching = rig.watch(ContentCoding::Identity, "", false);
    watching.read();
    *watching.said.0.lock() = AccessStatus::InDoubt;
    rig.put(EventKind::Added, "secret", "gold");
    watching.read();
    assert_eq!(watching.meter.0.lock().2, None);
    rig.writer.pause();
    watching.read();
    assert_eq!(watching.meter.0.lock().2, Some(WatchEnding::Stale));
    assert!(!watching.text().contains("secret"), "it was held back");
}
