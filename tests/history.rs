//! The memory that the history of a scope takes, counted by the allocator.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and tells what it counted"
)]
use std::alloc::System;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use watershed::store::{
    self, Layout, Snapshot, SnapshotAt, StoreReader, StoreWriter, StoredObject, WindowLimits,
};
use watershed_protocol::{
    Encoding, FieldTable, FrameDecoder, GroupVersionResource, ResourceVersion, WireFormat, scan,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The tests count what the whole process allocates.
static ALONE: Mutex<()> = Mutex::new(());

const PODS: usize = 500;
const EVENTS: usize = 2_000;
/// A read buffer, of which a frame is a part.
const READ: usize = 8 * 1024;
const LIST: &str = concat!(
    r#"{"kind":"PodList","apiVersion":"v1","#,
    r#""metadata":{"resourceVersion":"9"},"items":[]}"#,
    "\n"
);

/// A pod of some 4.4 KB. Versions differ in the status, some annotations and, seldom, a label.
fn pod(number: usize, version: u64) -> String {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut notes = String::new();
    for note in 0..25 {
        let (one, other) = (random.u64(..), random.u64(..));
        let changed = if note % 8 == 0 { version } else { 0 };
        let _ = write!(
            notes,
            r#""example.com/note-{note}":"{one:016x}{other:016x} is kept for {changed}","#
        );
    }
    let mut conditions = String::new();
    for kind in ["Initialized", "ContainersReady", "Ready", "PodScheduled"] {
        let _ = write!(
            conditions,
            r#"{{"type":"{kind}","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:{:02}Z","message":"{:0>400}"}},"#,
            version % 60,
            number
        );
    }
    format!(
        concat!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"pod-{number:05}","#,
            r#""namespace":"ns-{namespace}","uid":"{uid:032x}","resourceVersion":"{version}","#,
            r#""labels":{{"app":"web","pod-template-hash":"5c689d88bb","tier":"t{tier}"}},"#,
            r#""annotations":{{{notes}"last":"1"}}}},"spec":{{"nodeName":"node-{node:03}"}},"#,
            r#""status":{{"phase":"Running","conditions":[{conditions}{{}}]}}}}"#
        ),
        number = number,
        namespace = number % 10,
        uid = random.u128(..),
        version = version,
        tier = version / 10 % 2,
        notes = notes,
        node = number % 50,
        conditions = conditions,
    )
}

fn stored(format: &WireFormat, fields: &FieldTable, text: &Bytes) -> StoredObject {
    let scanned = scan(Encoding::Json, text, fields).unwrap();
    StoredObject {
        bytes: format.item_bytes(text).into(),
        version: scanned.version,
        attributes: scanned.attributes,
    }
}

/// Makes a store with these objects at version 1.
fn scope(
    format: &WireFormat,
    fields: &FieldTable,
    count: usize,
    text: fn(usize, u64) -> String,
) -> (StoreWriter, StoreReader) {
    let layout = Layout {
        format: Arc::new(format.clone()),
        indexed: fields.indexed(),
    };
    let (mut writer, reader) = store::new(WindowLimits {
        age: Duration::from_hours(1),
        least: 0,
        bytes: 1 << 30,
    });
    let objects = (0..count).map(|number| stored(format, fields, &text(number, 1).into()));
    writer.replace(Snapshot::new(ResourceVersion(1), layout, objects));
    (writer, reader)
}

/// Bytes that are allocated now.
fn held() -> usize {
    let stats = INSTRUMENTED_SYSTEM.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Reads an event from a connection, and applies it. Returns the length of its frame.
fn apply(
    writer: &mut StoreWriter,
    format: &WireFormat,
    fields: &FieldTable,
    decoder: &mut FrameDecoder,
    text: &str,
) -> usize {
    let mut read = BytesMut::with_capacity(READ);
    read.extend_from_slice(br#"{"type":"MODIFIED","object":"#);
    read.extend_from_slice(text.as_bytes());
    read.extend_from_slice(b"}\n");
    decoder.push(read.split().freeze());
    let frame = decoder.next_frame().unwrap().unwrap();
    let length = frame.frame.len();
    let object = stored(format, fields, &frame.object);
    writer.apply(Instant::now(), frame, object).unwrap();
    length
}

/// A small pod.
fn small(number: usize, version: u64) -> String {
    format!(
        concat!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"pod-{:05}","#,
            r#""namespace":"ns-{}","resourceVersion":"{}"}},"spec":{{"nodeName":"node-1"}}}}"#
        ),
        number,
        number % 10,
        version
    )
}

/// Any user who may list in one namespace can ask for this as often as they like.
#[test]
fn reads_of_one_object_at_old_versions_cost_one_object() {
    const OBJECTS: usize = 10_000;
    const CHANGES: u64 = 12_000;
    let _alone = ALONE.lock().unwrap();
    let fields = FieldTable::builtin(&GroupVersionResource::new("", "v1", "pods"), true).unwrap();
    let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &Bytes::from(LIST)).unwrap();
    let (mut writer, reader) = scope(&format, &fields, OBJECTS, small);
    let mut decoder = FrameDecoder::new(Encoding::Json, 1 << 20);
    let mut random = fastrand::Rng::with_seed(7);
    for version in 2..CHANGES + 2 {
        let text = small(random.usize(..OBJECTS), version);
        apply(&mut writer, &format, &fields, &mut decoder, &text);
    }
    let (before, allocated) = (held(), INSTRUMENTED_SYSTEM.stats().bytes_allocated);
    let mut visited = 0;
    for read in 0..100 {
        let version = ResourceVersion(2 + read * 100);
        let SnapshotAt::Found(state) = reader.state_at(version) else {
            panic!("{version} is lost")
        };
        assert_eq!((state.version(), state.len()), (version, OBJECTS));
        let first = state.runs_after(Some("ns-3"), None).next().unwrap();
        assert!(
            first
                .objects()
                .iter()
                .all(|object| object.version <= version)
        );
        visited += first.len();
    }
    let allocated = INSTRUMENTED_SYSTEM.stats().bytes_allocated - allocated;
    println!("{visited} objects visited, {allocated} bytes allocated");
    assert!(visited <= 100 * 128, "{visited}");
    assert!(allocated <= 100 * 200_000, "{allocated} bytes");
    assert!(held() - before < 10_000, "nothing is kept of what was read");
}

#[test]
fn an_event_takes_little_more_than_its_frame() {
    let _alone = ALONE.lock().unwrap();
    let fields = FieldTable::builtin(&GroupVersionResource::new("", "v1", "pods"), true).unwrap();
    let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &Bytes::from(LIST)).unwrap();
    let (mut writer, reader) = scope(&format, &fields, PODS, pod);
    let mut decoder = FrameDecoder::new(Encoding::Json, 1 << 20);
    let mut random = fastrand::Rng::with_seed(7);
    let (before, mut frames) = (held(), 0);
    for version in 2..EVENTS as u64 + 2 {
        let text = pod(random.usize(..PODS), version);
        frames += apply(&mut writer, &format, &fields, &mut decoder, &text);
    }
    let (taken, counted) = (held() - before, reader.stats().event_bytes);
    let ratio = taken as f64 / frames as f64;
    let each = frames / EVENTS;
    println!("{ratio:.2} bytes for each byte of a frame of {each}");
    assert!((4_000..5_000).contains(&each), "{each}");
    assert!(ratio <= 1.3, "{ratio:.2} times its frame of {each} bytes");
    let counted = counted as f64 / taken as f64;
    assert!(
        (0.9..=1.1).contains(&counted),
        "{counted:.2} of it is counted"
    );
}
