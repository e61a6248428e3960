//! Compares what a store says it holds with the allocator's own count.
//!
//! One test in a process of its own: the allocator counts all threads.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::alloc::System;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use watershed::store::{
    self, FrameOrigin, Interest, Layout, Snapshot, StoreReader, StoreWriter, StoredObject,
    SubscriptionStart, SubscriptionStep, WindowLimits,
};
use watershed_protocol::{
    Deflated, Encoding, EventKind, FieldTable, Frame, GroupVersionResource, ResourceVersion,
    WireFormat, deflate, gzip_member, scan,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The largest difference allowed, as a part of what is held.
const TOLERANCE: f64 = 0.10;

/// Returns the bytes that are allocated now.
fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// A type with an indexed field.
struct Pods {
    fields: FieldTable,
    layout: Layout,
}

impl Pods {
    fn new() -> Self {
        let fields =
            FieldTable::builtin(&GroupVersionResource::new("", "v1", "pods"), true).unwrap();
        let list = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"9\"},\"items\":[]}\n";
        let list = Bytes::from_static(list.as_bytes());
        let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list).unwrap();
        let layout = Layout {
            format: format.into(),
            indexed: fields.indexed(),
        };
        Self { fields, layout }
    }

    /// Returns the frame of a change, as it is received: the object is a part of it.
    fn frame(&self, kind: EventKind, number: usize, version: u64, rng: &mut Rng) -> Frame {
        let (node, more) = (rng.usize(0..50), "x".repeat(rng.usize(200..6000)));
        let object = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"pod-{number:05}","namespace":"team-{}","resourceVersion":"{version}","labels":{{"app":"web","tier":"backend"}}}},"spec":{{"nodeName":"node-{node:03}","more":"{more}"}}}}"#,
            number % 7
        );
        let frame = self
            .layout
            .format
            .event(kind, &self.layout.format.item_bytes(&object.into()));
        // As it is received: without spare capacity.
        let frame = Bytes::copy_from_slice(&frame);
        let head = format!("{{\"type\":\"{}\",\"object\":", kind.as_str()).len();
        Frame {
            kind,
            object: frame.slice(head..frame.len() - 2),
            frame,
        }
    }

    fn object(&self, frame: &Frame) -> StoredObject {
        let scanned = scan(Encoding::Json, &frame.object, &self.fields).unwrap();
        StoredObject {
            bytes: self.layout.format.item_bytes(&frame.object).into(),
            version: scanned.version,
            attributes: scanned.attributes,
        }
    }
}

/// A frame that can be made again, from its compressed form.
#[derive(Debug)]
struct CompressedOrigin(Deflated);

impl CompressedOrigin {
    fn of(frame: &Frame) -> Self {
        Self(deflate(&frame.frame))
    }
}

impl FrameOrigin for CompressedOrigin {
    fn frame(&self) -> Bytes {
        let mut frame = Vec::with_capacity(self.0.data_len());
        assert!(self.0.inflate(&mut frame));
        frame.into()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.0.bytes.len()
    }

    fn shared(&self) -> usize {
        0
    }
}

/// A store under random work.
struct Work {
    pods: Pods,
    rng: Rng,
    writer: StoreWriter,
    reader: StoreReader,
    present: Vec<bool>,
    version: u64,
    now: Instant,
    /// Objects were held compressed alone.
    has_folded: bool,
    /// Frames of events can be made again.
    is_derived: bool,
    has_released_frames: bool,
    /// Time between bookmarks, a fifth of the window's age as with the defaults.
    bookmarks: Duration,
    next_bookmark: Instant,
}

impl Work {
    fn new(seed: u64, objects: usize, window: Duration) -> Self {
        let (writer, reader) = store::new(WindowLimits {
            age: window,
            least: 0,
            bytes: 1 << 30,
        });
        let mut work = Self {
            pods: Pods::new(),
            rng: Rng::with_seed(seed),
            writer,
            reader,
            present: vec![true; objects],
            version: 10,
            now: Instant::now(),
            has_folded: false,
            is_derived: seed % 2 == 1,
            has_released_frames: false,
            bookmarks: window / 5,
            next_bookmark: Instant::now(),
        };
        work.list();
        work
    }

    /// Replaces everything by a list.
    fn list(&mut self) {
        self.version += 1;
        let mut keys: Vec<_> = (0..self.present.len())
            .filter(|number| self.present[*number])
            .collect();
        keys.sort_by_key(|number| (number % 7, *number));
        let objects = keys.into_iter().map(|number| {
            let frame = self
                .pods
                .frame(EventKind::Added, number, self.version, &mut self.rng);
            self.pods.object(&frame)
        });
        let snapshot = Snapshot::new(
            ResourceVersion(self.version),
            self.pods.layout.clone(),
            objects,
        );
        drop(self.writer.replace(snapshot));
    }

    fn change(&mut self, among: usize) {
        self.version += 1;
        self.now += Duration::from_millis(100);
        let number = self.rng.usize(0..among);
        let kind = match (self.present[number], self.rng.u8(0..10)) {
            (false, _) => EventKind::Added,
            (true, 0) => EventKind::Deleted,
            (true, _) => EventKind::Modified,
        };
        self.present[number] = kind != EventKind::Deleted;
        let frame = self.pods.frame(kind, number, self.version, &mut self.rng);
        let object = self.pods.object(&frame);
        let origin = self
            .is_derived
            .then(|| Box::new(CompressedOrigin::of(&frame)) as _);
        self.writer
            .apply_from(self.now, frame, object, None, origin)
            .unwrap();
        if self.now >= self.next_bookmark {
            self.bookmark();
        }
    }

    fn bookmark(&mut self) {
        let version = ResourceVersion(self.version);
        self.writer.progress(self.now, version);
        self.next_bookmark = self.now + self.bookmarks;
    }

    /// Does something that a scope meets.
    fn step(&mut self) {
        match self.rng.u8(0..20) {
            0 => self.list(),
            1 => drop(
                self.reader
                    .release_history(self.now, Duration::from_secs(20)),
            ),
            2 => {
                let snapshot = self.reader.snapshot();
                snapshot
                    .runs_after(None, None)
                    .for_each(|run| drop(run.deflated()));
            }
            3 => drop(self.reader.snapshot().release_compressed()),
            4 | 5 => {
                let snapshot = self.reader.snapshot();
                snapshot.age_compressed();
                // All of it, or a part.
                snapshot.fold(1, &mut self.rng.usize(0..8 << 20));
                self.has_folded |= self.reader.held().folded > 0;
            }
            6 | 7 if self.is_derived => {
                for _ in 0..self.rng.usize(1..4) {
                    self.now += Duration::from_secs(1);
                    let released = self.reader.release_frames(self.now, Duration::from_secs(2));
                    self.has_released_frames |= released > 0;
                }
            }
            8 if self.is_derived => self.read_history(),
            6..10 => {
                self.now += Duration::from_secs(self.rng.u64(1..100));
                self.bookmark();
            }
            _ => {
                let among = 1 + self.rng.usize(0..self.present.len());
                for _ in 0..self.rng.usize(0..200) {
                    self.change(among);
                }
            }
        }
    }

    /// Reads all events, as a watch that comes late.
    fn read_history(&self) {
        let start = SubscriptionStart::After(self.reader.oldest_version());
        let (mut subscription, _) = self.reader.subscribe(start, Interest::All);
        let context = &Context::from_waker(Waker::noop());
        while let SubscriptionStep::Events(events) = subscription.step(context, 64, usize::MAX) {
            for event in events {
                drop(event.frame());
            }
        }
    }

    fn counted(&self) -> usize {
        let held = self.reader.held();
        held.objects + held.history + self.reader.snapshot().compressed_size()
    }
}

#[test]
fn counted_bytes_are_those_that_are_allocated() {
    // The thread's compressors are made once.
    assert!(deflate(&gzip_member(b"x")).inflate(&mut Vec::new()));
    let mut worst = (0.0_f64, String::new());
    for seed in 0..12 {
        let before = allocated();
        let objects = [200, 1000, 3000][seed as usize % 3];
        let window = Duration::from_secs([10, 60, 600][seed as usize / 3 % 3]);
        let mut work = Work::new(seed, objects, window);
        for step in 0..60 {
            work.step();
            let (counted, held) = (work.counted(), allocated() - before);
            let error = counted as f64 / held as f64 - 1.0;
            if error.abs() > worst.0.abs() {
                worst = (
                    error,
                    format!(
                        "seed {seed}, step {step}: {counted} of {held}, {:?}, derived {}",
                        work.reader.held(),
                        work.reader.snapshot().compressed_size()
                    ),
                );
            }
        }
        assert!(work.has_folded, "seed {seed}");
        assert_eq!(work.has_released_frames, work.is_derived, "seed {seed}");
        drop(work);
    }
    eprintln!("largest error {:.3}: {}", worst.0, worst.1);
    assert!(worst.0.abs() <= TOLERANCE, "{:.3}: {}", worst.0, worst.1);
}
