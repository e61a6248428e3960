//! Threads that write, subscribe, read, prove and list at the same time, in all interleavings.
//!
//! Each test has a short history of versions. A reader of any version must see the state of that
//! version. A watch must get the events after its start, in order, until it is ended. A wake-up
//! that is lost is a deadlock, which loom reports.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use loom::sync::Notify;
use loom::thread;
use watershed_interleavings::store::{
    self, InconsistentEvent, Interest, Layout, ObjectRun, Snapshot, SnapshotAt, StateAt,
    StoreReader, StoreWriter, StoredObject, Subscription, SubscriptionEnd, SubscriptionStart,
    SubscriptionStep, WindowLimits,
};
use watershed_protocol::{
    Encoding, EventKind, FieldTable, Frame, GroupVersionResource, ResourceVersion, WireFormat, scan,
};

/// A state: the keys of the objects with their versions.
type State = &'static [(&'static str, u64)];
/// A change: kind, key and version.
type Change = (EventKind, &'static str, u64);

/// Upstream's history: the state at the first version, and the changes after it.
#[derive(Clone, Copy)]
struct Timeline {
    first: (u64, State),
    changes: &'static [Change],
}

/// Notices that it was woken.
struct Alarm(Notify);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

impl Timeline {
    fn state_at(&self, version: u64) -> Vec<(String, u64)> {
        let mut state: Vec<_> = self.first.1.to_vec();
        for (kind, key, at) in self.changes.iter().filter(|change| change.2 <= version) {
            state.retain(|(held, _)| held != key);
            if *kind != EventKind::Deleted {
                state.push((key, *at));
            }
        }
        state.sort_unstable();
        state
            .into_iter()
            .map(|(key, at)| (key.to_owned(), at))
            .collect()
    }

    /// Starts a store that knows the first state.
    fn open(&self, bytes: usize) -> (StoreWriter, StoreReader) {
        let (mut writer, reader) = store::new(WindowLimits {
            age: Duration::from_hours(1),
            least: 0,
            bytes,
        });
        writer.replace(snapshot(self.first.0, self.first.1));
        (writer, reader)
    }

    /// Checks that a snapshot is the state at its version.
    fn judge(&self, seen: &Snapshot) {
        let version = seen.version().0;
        let objects: Vec<_> = seen
            .items(None)
            .map(|object| (object.key().to_owned(), object.version.0))
            .collect();
        assert_eq!(objects, self.state_at(version), "the state at {version}");
        for wanted in ["n1", "n2"] {
            let interest = Interest::Field(node_field(), wanted.into());
            let runs: Vec<_> = seen.clone().into_runs(&interest).collect();
            let found = runs.iter().flat_map(ObjectRun::objects);
            let found: Vec<_> = found.map(|object| object.key()).collect();
            let expected = objects.iter().filter(|(_, at)| node(*at) == wanted);
            let expected: Vec<_> = expected.map(|(key, _)| key.as_str()).collect();
            assert_eq!(found, expected, "the objects on {wanted} at {version}");
        }
        if let Some((first, _)) = objects.first() {
            let after = first.strip_prefix("n/");
            let page = seen.items_after(Some("n"), after);
            assert_eq!(page.count(), objects.len() - 1, "a page at {version}");
        }
        let bytes: Vec<_> = seen.runs_after(None, None).map(|run| run.items()).collect();
        let text = String::from_utf8(bytes.concat()).unwrap();
        let versions = text.split(r#""resourceVersion":""#).skip(1);
        let versions: Vec<_> = versions
            .map(|rest| rest.split('"').next().unwrap().parse::<u64>().unwrap())
            .collect();
        let expected: Vec<_> = objects.iter().map(|(_, at)| *at).collect();
        assert_eq!(versions, expected, "the bytes of a list at {version}");
    }

    /// Checks that the state at a version is that, whole and page by page.
    fn judge_past(&self, seen: &StateAt) {
        let version = seen.version().0;
        let expected = self.state_at(version);
        assert_eq!(seen.len(), expected.len(), "objects at {version}");
        let mut after = None;
        for left in (0..=expected.len()).rev() {
            let runs: Vec<_> = seen.runs_after(Some("n"), after).collect();
            let objects = runs.iter().flat_map(ObjectRun::objects);
            let objects: Vec<_> = objects
                .map(|object| (object.key().to_owned(), object.version.0))
                .collect();
            let page = &expected[expected.len() - left..];
            assert_eq!(objects, page, "a page at {version}");
            let count: isize = seen.counts_after(Some("n"), after).sum();
            assert_eq!(count, left.cast_signed(), "objects of a page at {version}");
            let bytes: Vec<_> = runs.iter().map(ObjectRun::items).collect();
            let text = String::from_utf8(bytes.concat()).unwrap();
            for (_, at) in page {
                let printed = format!(r#""resourceVersion":"{at}""#);
                assert!(text.contains(&printed), "the bytes of a list at {version}");
            }
            after = page.first().and_then(|(key, _)| key.strip_prefix("n/"));
        }
    }

    /// Checks that a watch got the changes after `start`, without a gap up to its last one.
    fn judge_watch(&self, start: u64, seen: &[(EventKind, String, u64)]) {
        let expected = self.changes.iter().filter(|change| change.2 > start);
        let expected: Vec<_> = expected
            .take(seen.len())
            .map(|(kind, key, version)| (*kind, (*key).to_owned(), *version))
            .collect();
        assert_eq!(seen, expected, "the events after {start}");
    }
}

fn fields() -> FieldTable {
    FieldTable::builtin(&GroupVersionResource::new("", "v1", "pods"), true).unwrap()
}

/// Returns the position of `spec.nodeName` among the fields.
fn node_field() -> usize {
    fields().indexed().unwrap()
}

/// Returns the node of an object at a version: with some changes it moves.
fn node(version: u64) -> &'static str {
    if (version / 2).is_multiple_of(2) {
        "n1"
    } else {
        "n2"
    }
}

fn layout() -> Layout {
    let list = concat!(
        r#"{"kind":"PodList","apiVersion":"v1","#,
        r#""metadata":{"resourceVersion":"9"},"items":[]}"#,
        "\n"
    );
    let list = Bytes::from_static(list.as_bytes());
    let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list).unwrap();
    Layout {
        format: Arc::new(format),
        indexed: fields().indexed(),
    }
}

fn object(key: &str, version: u64) -> StoredObject {
    let (namespace, name) = key.split_once('/').unwrap();
    let text = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","resourceVersion":"{version}"}},"spec":{{"nodeName":"{}"}}}}"#,
        node(version)
    );
    let scanned = scan(Encoding::Json, text.as_bytes(), &fields()).unwrap();
    StoredObject {
        bytes: layout().format.item_bytes(&text.into()).into(),
        version: scanned.version,
        attributes: scanned.attributes,
    }
}

fn snapshot(version: u64, state: State) -> Snapshot {
    let objects = state.iter().map(|(key, at)| object(key, *at));
    Snapshot::new(ResourceVersion(version), layout(), objects)
}

fn apply(writer: &mut StoreWriter, change: Change) {
    try_apply(writer, change).unwrap();
}

fn try_apply(
    writer: &mut StoreWriter,
    (kind, key, version): Change,
) -> Result<(), InconsistentEvent> {
    let object = object(key, version);
    let frame = layout().format.event(kind, &object.bytes.get());
    let head = format!("{{\"type\":\"{}\",\"object\":", kind.as_str()).len();
    let frame = Frame {
        kind,
        object: frame.slice(head..frame.len() - 2),
        frame,
    };
    writer.apply(Instant::now(), frame, object)
}

/// Follows a subscription to its end. Returns the events and the end.
fn follow(subscription: &mut Subscription) -> (Vec<(EventKind, String, u64)>, SubscriptionEnd) {
    let alarm = Arc::new(Alarm(Notify::new()));
    let waker = Waker::from(Arc::clone(&alarm));
    let context = Context::from_waker(&waker);
    let mut seen = Vec::new();
    loop {
        match subscription.step(&context, 1, usize::MAX) {
            SubscriptionStep::Events(events) => seen.extend(
                events
                    .iter()
                    .map(|event| (event.kind, event.object.key().to_owned(), event.version.0)),
            ),
            SubscriptionStep::CaughtUp(_) | SubscriptionStep::Unfinished => alarm.0.wait(),
            SubscriptionStep::Ended(end) => return (seen, end),
        }
    }
}

/// Runs a model in every interleaving with at most three preemptions, or with as many as
/// `LOOM_MAX_PREEMPTIONS` says. More are rarely needed to show a race.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

const AMPLE: usize = 1 << 30;

const WRITES: Timeline = Timeline {
    first: (10, &[("n/a", 5)]),
    changes: &[
        (EventKind::Added, "n/b", 11),
        (EventKind::Modified, "n/a", 12),
        (EventKind::Deleted, "n/b", 13),
    ],
};

#[test]
fn a_watch_that_begins_during_writes_gets_all_of_them() {
    explore(|| {
        let (mut writer, reader) = WRITES.open(AMPLE);
        let watching = thread::spawn(move || {
            let (mut now, state) = reader.subscribe(SubscriptionStart::Now, Interest::All);
            WRITES.judge(&state);
            let (seen, end) = follow(&mut now);
            assert_eq!(end, SubscriptionEnd::Closed);
            WRITES.judge_watch(state.version().0, &seen);
            assert_eq!(seen.last().map_or(state.version().0, |last| last.2), 13);
        });
        for change in WRITES.changes {
            apply(&mut writer, *change);
        }
        writer.close();
        watching.join().unwrap();
    });
}

#[test]
fn a_watch_from_a_version_that_is_being_written_begins_behind_it() {
    explore(|| {
        let (mut writer, reader) = WRITES.open(AMPLE);
        let watching = thread::spawn(move || {
            let start = SubscriptionStart::After(ResourceVersion(11));
            let (mut watch, _) = reader.subscribe(start, Interest::All);
            let (seen, end) = follow(&mut watch);
            assert_eq!(end, SubscriptionEnd::Closed);
            assert_eq!(seen.len(), 2);
            WRITES.judge_watch(11, &seen);
        });
        for change in WRITES.changes {
            apply(&mut writer, *change);
        }
        writer.close();
        watching.join().unwrap();
    });
}

#[test]
fn a_watch_of_a_node_is_told_that_its_pod_has_left() {
    const MOVES: Timeline = Timeline {
        first: (10, &[("n/a", 5)]),
        changes: &[(EventKind::Modified, "n/a", 11)],
    };
    explore(|| {
        let (mut writer, reader) = MOVES.open(AMPLE);
        let watching = thread::spawn(move || {
            let interest = Interest::Field(node_field(), node(5).into());
            let (mut watch, state) = reader.subscribe(SubscriptionStart::Now, interest);
            MOVES.judge(&state);
            let (seen, _) = follow(&mut watch);
            assert_eq!(seen.last().map_or(state.version().0, |last| last.2), 11);
        });
        apply(&mut writer, MOVES.changes[0]);
        writer.close();
        watching.join().unwrap();
    });
}

#[test]
fn old_versions_are_read_as_they_were_while_others_are_written() {
    explore(|| {
        let (mut writer, reader) = WRITES.open(AMPLE);
        let reading = thread::spawn(move || {
            for version in 10..=13 {
                let seen = reader.state_at(ResourceVersion(version));
                if let SnapshotAt::Found(state) = seen {
                    WRITES.judge_past(&state);
                }
            }
            WRITES.judge(&reader.snapshot());
        });
        apply(&mut writer, WRITES.changes[0]);
        apply(&mut writer, WRITES.changes[1]);
        let repeated = (EventKind::Modified, "n/a", 11);
        assert!(try_apply(&mut writer, repeated).is_err());
        apply(&mut writer, WRITES.changes[2]);
        reading.join().unwrap();
    });
}

#[test]
fn an_expired_watch_has_no_gap_before_its_end() {
    explore(|| {
        let (mut writer, reader) = WRITES.open(AMPLE);
        let watching = thread::spawn(move || {
            let start = SubscriptionStart::After(ResourceVersion(10));
            let (mut watch, _) = reader.subscribe(start, Interest::All);
            let (seen, end) = follow(&mut watch);
            WRITES.judge_watch(10, &seen);
            match end {
                SubscriptionEnd::Expired { version, .. } => {
                    assert!(seen.iter().all(|event| event.2 <= version.0));
                }
                end => assert!(end == SubscriptionEnd::Closed && seen.len() == 3),
            }
        });
        apply(&mut writer, WRITES.changes[0]);
        apply(&mut writer, WRITES.changes[1]);
        writer.expire();
        apply(&mut writer, WRITES.changes[2]);
        writer.close();
        watching.join().unwrap();
    });
}

#[test]
fn a_watch_that_is_overtaken_by_the_window_expires() {
    explore(|| {
        // One event fills the window.
        let (mut writer, reader) = WRITES.open(1);
        let watching = thread::spawn(move || {
            let start = SubscriptionStart::After(ResourceVersion(10));
            let (mut watch, _) = reader.subscribe(start, Interest::All);
            let (seen, end) = follow(&mut watch);
            WRITES.judge_watch(10, &seen);
            assert!(matches!(end, SubscriptionEnd::Expired { .. }));
        });
        for change in WRITES.changes {
            apply(&mut writer, *change);
        }
        watching.join().unwrap();
        drop(writer);
    });
}

#[test]
fn a_watch_of_a_released_scope_does_not_expire() {
    explore(|| {
        let (mut writer, reader) = WRITES.open(AMPLE);
        let watching = thread::spawn(move || {
            let start = SubscriptionStart::After(ResourceVersion(10));
            let (mut watch, _) = reader.subscribe(start, Interest::All);
            let (_, end) = follow(&mut watch);
            assert_eq!(end, SubscriptionEnd::Closed, "its client can go on");
        });
        apply(&mut writer, WRITES.changes[0]);
        drop(writer.release());
        watching.join().unwrap();
    });
}

/// The state at 12 is that at 11: another type was written then.
const PROVEN: Timeline = Timeline {
    first: (10, &[("n/a", 5)]),
    changes: &[
        (EventKind::Added, "n/b", 11),
        (EventKind::Modified, "n/a", 13),
        (EventKind::Added, "n/c", 14),
    ],
};

#[test]
fn proofs_and_lists_never_show_a_state_that_upstream_did_not_have() {
    explore(|| {
        let (mut writer, reader) = PROVEN.open(AMPLE);
        let prover = reader.clone();
        let proving = thread::spawn(move || {
            let first = prover.state_at(ResourceVersion(11));
            if let SnapshotAt::Found(state) = first {
                PROVEN.judge_past(&state);
            }
            let known = prover.followed();
            PROVEN.judge(&known);
            if known.version() == ResourceVersion(11) {
                prover.confirm(known, ResourceVersion(12));
            }
        });
        let watching = thread::spawn(move || {
            let (mut watch, state) = reader.subscribe(SubscriptionStart::Now, Interest::All);
            PROVEN.judge(&state);
            let (seen, _) = follow(&mut watch);
            PROVEN.judge_watch(state.version().0, &seen);
        });
        apply(&mut writer, PROVEN.changes[0]);
        writer.replace(snapshot(13, &[("n/a", 13), ("n/b", 11)]));
        apply(&mut writer, PROVEN.changes[2]);
        writer.close();
        proving.join().unwrap();
        watching.join().unwrap();
    });
}

#[test]
fn a_proof_takes_no_list_back() {
    explore(|| {
        let (mut writer, reader) = PROVEN.open(AMPLE);
        let prover = reader.clone();
        let proving = thread::spawn(move || {
            let known = prover.followed();
            if known.version() == ResourceVersion(11) {
                prover.confirm(known, ResourceVersion(12));
            }
        });
        apply(&mut writer, PROVEN.changes[0]);
        writer.replace(snapshot(13, &[("n/a", 13), ("n/b", 11)]));
        proving.join().unwrap();
        assert_eq!(reader.version(), ResourceVersion(13));
        let (mut watch, state) = reader.subscribe(SubscriptionStart::Now, Interest::All);
        apply(&mut writer, PROVEN.changes[2]);
        writer.close();
        let (seen, _) = follow(&mut watch);
        PROVEN.judge_watch(state.version().0, &seen);
    });
}

/// Both objects are deleted at one version, as those of an expired lease are.
const LEASE: Timeline = Timeline {
    first: (10, &[("n/a", 5), ("n/b", 6)]),
    changes: &[
        (EventKind::Deleted, "n/a", 11),
        (EventKind::Deleted, "n/b", 11),
    ],
};

#[test]
fn deletions_of_one_version_are_read_together() {
    explore(|| {
        let (mut writer, reader) = LEASE.open(AMPLE);
        writer.expect_shared_deletions();
        let reading = thread::spawn(move || {
            LEASE.judge(&reader.snapshot());
            let (mut watch, state) = reader.subscribe(SubscriptionStart::Now, Interest::All);
            LEASE.judge(&state);
            let (seen, _) = follow(&mut watch);
            LEASE.judge_watch(state.version().0, &seen);
        });
        for change in LEASE.changes {
            apply(&mut writer, *change);
        }
        writer.progress(Instant::now(), ResourceVersion(12));
        writer.close();
        reading.join().unwrap();
    });
}

/// Shows that these tests see a race: this client takes the state and the events in two steps.
#[test]
#[should_panic(expected = "the events after")]
fn a_planted_race_is_found() {
    explore(|| {
        let (mut writer, reader) = WRITES.open(AMPLE);
        let watching = thread::spawn(move || {
            let state = reader.snapshot();
            let (mut watch, _) = reader.subscribe(SubscriptionStart::Now, Interest::All);
            let (seen, _) = follow(&mut watch);
            WRITES.judge_watch(state.version().0, &seen);
        });
        apply(&mut writer, WRITES.changes[0]);
        apply(&mut writer, WRITES.changes[1]);
        writer.close();
        watching.join().unwrap();
    });
}
