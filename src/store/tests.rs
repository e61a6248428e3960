//! The store as its readers see it.
mod deletions;
mod events;
mod frames;
mod informers;
mod random;
mod reprints;
mod versions;
mod watches;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use watershed_protocol::{
    Encoding, EventKind, FieldTable, Frame, GroupVersionResource, ResourceVersion, WireFormat, scan,
};

pub(super) fn fields() -> FieldTable {
    FieldTable::builtin(&GroupVersionResource::new("", "v1", "pods"), true).unwrap()
}

pub(super) fn layout() -> Layout {
    let list = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"9\"},\"items\":[]}\n";
    let (format, _) =
        WireFormat::learn(Encoding::Json, "Pod", &Bytes::from_static(list.as_bytes())).unwrap();
    Layout {
        format: Arc::new(format),
        indexed: fields().indexed(),
    }
}

fn object(key: &str, version: u64, node: &str) -> StoredObject {
    sized(key, version, node, 0)
}

/// An object with so many bytes more.
pub(super) fn sized(key: &str, version: u64, node: &str, more: usize) -> StoredObject {
    let (namespace, name) = key.split_once('/').unwrap();
    let more = "x".repeat(more);
    let text = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","resourceVersion":"{version}"}},"spec":{{"nodeName":"{node}","more":"{more}"}}}}"#
    );
    let scanned = scan(Encoding::Json, text.as_bytes(), &fields()).unwrap();
    let bytes = layout().format.item_bytes(&text.into()).into();
    StoredObject {
        bytes,
        version: scanned.version,
        attributes: scanned.attributes,
    }
}

fn frame(kind: EventKind, object: &StoredObject) -> Frame {
    let frame = layout().format.event(kind, &object.bytes.get());
    let head = format!("{{\"type\":\"{}\",\"object\":", kind.as_str()).len();
    Frame {
        kind,
        object: frame.slice(head..frame.len() - 2),
        frame,
    }
}

pub(super) fn put(
    writer: &mut StoreWriter,
    now: Instant,
    kind: EventKind,
    key: &str,
    version: u64,
    node: &str,
) {
    let object = object(key, version, node);
    writer.apply(now, frame(kind, &object), object).unwrap();
}

fn big() -> WindowLimits {
    WindowLimits {
        age: Duration::from_hours(1),
        least: 0,
        bytes: 1 << 30,
    }
}

fn at(version: u64, objects: &[(&str, u64)]) -> Snapshot {
    let objects = objects
        .iter()
        .map(|(key, version)| object(key, *version, "n1"));
    Snapshot::new(ResourceVersion(version), layout(), objects)
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Follower {
    subscription: Subscription,
    wakes: Arc<Counting>,
}

impl Follower {
    fn new(reader: &StoreReader, start: SubscriptionStart, interest: Interest) -> Self {
        Self {
            subscription: reader.subscribe(start, interest).0,
            wakes: Arc::default(),
        }
    }

    fn step(&mut self, most: usize) -> SubscriptionStep {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.subscription
            .step(&Context::from_waker(&waker), most, usize::MAX)
    }

    /// Versions until there is nothing more for now.
    fn drain(&mut self) -> (Vec<u64>, SubscriptionStep) {
        let mut versions = Vec::new();
        loop {
            match self.step(3) {
                SubscriptionStep::Events(events) => {
                    versions.extend(events.iter().map(|event| event.version.0));
                }
                end => return (versions, end),
            }
        }
    }

    fn woken(&self) -> usize {
        self.wakes.0.swap(0, Ordering::SeqCst)
    }
}

/// Returns the end of a subscription whose last step this is.
fn end_of(step: &SubscriptionStep) -> Option<SubscriptionEnd> {
    match step {
        SubscriptionStep::Ended(end) => Some(*end),
        _ => None,
    }
}

fn has_expired(step: &SubscriptionStep) -> bool {
    matches!(end_of(step), Some(SubscriptionEnd::Expired { .. }))
}

/// Returns the state at a version, which must be known.
fn found(reader: &StoreReader, version: u64) -> StateAt {
    match reader.state_at(ResourceVersion(version)) {
        SnapshotAt::Found(state) => state,
        other => panic!("{version}: {other:?}"),
    }
}

/// Returns the keys of a state's objects, with their versions.
fn objects_of(state: &StateAt) -> Vec<(String, u64)> {
    let runs: Vec<_> = state.runs_after(None, None).collect();
    let objects = runs.iter().flat_map(ObjectRun::objects);
    let objects = objects.map(|object| (object.key().to_owned(), object.version.0));
    objects.collect()
}
