//! The store as its readers see it.
mod informers;

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
    let bytes = layout().format.item_bytes(&text.into());
    StoredObject {
        bytes,
        version: scanned.version,
        attributes: scanned.attributes,
    }
}

fn frame(kind: EventKind, object: &StoredObject) -> Frame {
    let frame = layout().format.event(kind, &object.bytes);
    let head = format!("{{\"type\":\"{}\",\"object\":", kind.as_str()).len();
    Frame {
        kind,
        object: frame.slice(head..frame.len() - 2),
        frame,
    }
}

fn put(
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

#[test]
fn a_watch_from_a_version_sees_everything_after_it_once() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[]));
    for version in 11..=30 {
        put(
            &mut writer,
            now,
            EventKind::Added,
            &format!("ns/p{version}"),
            version,
            "n1",
        );
    }
    let mut follower = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(15)),
        Interest::All,
    );
    let (versions, end) = follower.drain();
    assert_eq!(versions, (16..=30).collect::<Vec<_>>());
    assert!(matches!(
        end,
        SubscriptionStep::CaughtUp(ResourceVersion(30))
    ));
    put(&mut writer, now, EventKind::Deleted, "ns/p20", 31, "n1");
    assert_eq!(follower.woken(), 1);
    assert_eq!(follower.drain().0, [31]);
}

#[test]
fn snapshot_and_subscription_are_of_one_moment() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5)]));
    put(&mut writer, now, EventKind::Added, "ns/b", 11, "n1");
    let (subscription, snapshot) = reader.subscribe(SubscriptionStart::Now, Interest::All);
    put(&mut writer, now, EventKind::Added, "ns/c", 12, "n1");
    assert_eq!(snapshot.version(), ResourceVersion(11));
    assert_eq!(
        snapshot
            .items(None)
            .map(|object| object.key())
            .collect::<Vec<_>>(),
        ["ns/a", "ns/b"]
    );
    let mut follower = Follower {
        subscription,
        wakes: Arc::default(),
    };
    assert_eq!(follower.drain().0, [12]);
}

#[test]
fn only_events_of_interest_wake() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5), ("other/b", 6)]));
    let node = fields().position("spec.nodeName").unwrap();
    let mut key = Follower::new(
        &reader,
        SubscriptionStart::Now,
        Interest::Key("ns/a".into()),
    );
    let mut namespace = Follower::new(
        &reader,
        SubscriptionStart::Now,
        Interest::Namespace("ns".into()),
    );
    let mut on_n1 = Follower::new(
        &reader,
        SubscriptionStart::Now,
        Interest::Field(node, "n1".into()),
    );
    for follower in [&mut key, &mut namespace, &mut on_n1] {
        assert!(matches!(follower.drain().1, SubscriptionStep::CaughtUp(_)));
    }
    put(&mut writer, now, EventKind::Modified, "other/b", 11, "n2");
    // It left n1: that concerns who watches n1.
    assert_eq!((key.woken(), namespace.woken(), on_n1.woken()), (0, 0, 1));
    assert_eq!(on_n1.drain().0, [11]);
    put(&mut writer, now, EventKind::Modified, "other/b", 12, "n3");
    assert_eq!((key.woken(), namespace.woken(), on_n1.woken()), (0, 0, 0));
    put(&mut writer, now, EventKind::Modified, "ns/a", 13, "n3");
    assert_eq!((key.woken(), namespace.woken(), on_n1.woken()), (1, 1, 1));
    // Sleepers skip what did not concern them, and only that.
    assert_eq!(key.drain().0, [13]);
    assert_eq!(namespace.drain().0, [13]);
}

#[test]
fn a_sleeper_is_not_expired_by_events_that_do_not_concern_it() {
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_hours(1),
        bytes: 2000,
    });
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5), ("other/b", 6)]));
    let mut follower = Follower::new(
        &reader,
        SubscriptionStart::Now,
        Interest::Namespace("ns".into()),
    );
    follower.drain();
    for version in 11..200 {
        put(
            &mut writer,
            now,
            EventKind::Modified,
            "other/b",
            version,
            "n1",
        );
    }
    put(&mut writer, now, EventKind::Modified, "ns/a", 200, "n1");
    assert_eq!(follower.drain().0, [200]);
    // But by losing one that does.
    put(&mut writer, now, EventKind::Modified, "ns/a", 201, "n1");
    for version in 202..400 {
        put(
            &mut writer,
            now,
            EventKind::Modified,
            "other/b",
            version,
            "n1",
        );
    }
    let (versions, end) = follower.drain();
    assert!(versions.is_empty());
    assert!(
        matches!(
            end,
            SubscriptionStep::Expired {
                version: ResourceVersion(200),
                ..
            }
        ),
        "{end:?}"
    );
}

#[test]
fn a_start_may_be_too_old_or_in_the_future() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[]));
    let mut old = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(9)),
        Interest::All,
    );
    assert!(matches!(
        old.drain().1,
        SubscriptionStep::Expired {
            version: ResourceVersion(9),
            oldest: ResourceVersion(10)
        }
    ));
    // Still so when asked again.
    assert!(matches!(old.drain().1, SubscriptionStep::Expired { .. }));
    let mut future = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(12)),
        Interest::All,
    );
    for version in 11..=14 {
        put(
            &mut writer,
            now,
            EventKind::Added,
            &format!("ns/p{version}"),
            version,
            "n1",
        );
    }
    assert_eq!(future.drain().0, [13, 14]);
}

#[test]
fn a_fresh_list_expires_watches_behind_it() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[]));
    let mut behind = Follower::new(
        &reader,
        SubscriptionStart::Now,
        Interest::Namespace("ns".into()),
    );
    let mut ahead = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(50)),
        Interest::All,
    );
    behind.drain();
    ahead.drain();
    writer.replace(at(40, &[("ns/a", 20)]));
    assert_eq!(behind.woken(), 1);
    assert!(matches!(
        behind.drain().1,
        SubscriptionStep::Expired {
            version: ResourceVersion(10),
            oldest: ResourceVersion(40)
        }
    ));
    assert!(matches!(ahead.drain().1, SubscriptionStep::CaughtUp(_)));
    put(
        &mut writer,
        Instant::now(),
        EventKind::Modified,
        "ns/a",
        51,
        "n1",
    );
    assert_eq!(ahead.drain().0, [51]);
}

/// Prints an object as another release does.
fn reprinted(key: &str, version: u64) -> StoredObject {
    sized(key, version, "n1", 5)
}

fn bytes_of(snapshot: &Snapshot, key: &str) -> Bytes {
    snapshot.get(key).unwrap().bytes.share()
}

#[test]
fn other_bytes_replace_those_of_unchanged_objects_alone() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("ns/a", 1), ("ns/b", 2), ("ns/c", 3)]));
    let taken = reader.snapshot();
    reader.confirm(taken.clone(), ResourceVersion(12));
    put(
        &mut writer,
        Instant::now(),
        EventKind::Modified,
        "ns/b",
        11,
        "n1",
    );
    let printed = || {
        vec![
            reprinted("ns/a", 1),
            // Memory knows a later version, and has never known the other object.
            reprinted("ns/b", 2),
            reprinted("ns/d", 9),
            object("ns/c", 3, "n1"),
        ]
    };
    assert_eq!(writer.reprint(printed()), Some(1));
    let new = reprinted("ns/a", 1).bytes.share();
    // The confirmed state shows it, too, and goes on to be the newest.
    assert_eq!(reader.version(), ResourceVersion(12));
    for snapshot in [reader.snapshot(), reader.followed()] {
        assert_eq!(snapshot.len(), 3);
        assert_eq!(bytes_of(&snapshot, "ns/a"), new);
        assert_eq!(bytes_of(&snapshot, "ns/c"), bytes_of(&taken, "ns/c"));
    }
    assert_eq!(
        reader.followed().get("ns/b").unwrap().version,
        ResourceVersion(11)
    );
    // What was taken before shows the old bytes, and is not confirmed any more.
    reader.confirm(taken, ResourceVersion(20));
    assert_eq!(reader.version(), ResourceVersion(12));
    reader.confirm(reader.snapshot(), ResourceVersion(21));
    assert_eq!(bytes_of(&reader.snapshot(), "ns/a"), new);
    assert_eq!(reader.version(), ResourceVersion(21));
    assert_eq!(
        writer.reprint(printed()),
        Some(0),
        "nothing differs any more"
    );
}

#[test]
fn other_bytes_end_the_watches_of_their_objects_alone() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("ns/a", 1), ("ns/b", 2), ("other/a", 3)]));
    let now = Instant::now();
    put(&mut writer, now, EventKind::Added, "other/b", 11, "n2");
    let follow = |interest| Follower::new(&reader, SubscriptionStart::Now, interest);
    let mut concerned = [
        follow(Interest::All),
        follow(Interest::Namespace("ns".into())),
        follow(Interest::Key("ns/a".into())),
    ];
    let mut others = [
        follow(Interest::Namespace("other".into())),
        follow(Interest::Key("ns/b".into())),
    ];
    let start = SubscriptionStart::After(ResourceVersion(10));
    let mut behind = Follower::new(&reader, start, Interest::Namespace("other".into()));
    concerned
        .iter_mut()
        .chain(&mut others)
        .for_each(|it| drop(it.drain()));
    assert_eq!(writer.reprint(vec![reprinted("ns/a", 1)]), Some(1));
    for follower in &mut concerned {
        assert_eq!(follower.woken(), 1);
        let oldest = ResourceVersion(11);
        assert!(matches!(
            follower.drain().1,
            SubscriptionStep::Expired { oldest: at, .. } if at == oldest
        ));
    }
    // The event that it has not read has the old bytes.
    assert!(matches!(behind.drain().1, SubscriptionStep::Expired { .. }));
    put(&mut writer, now, EventKind::Modified, "other/b", 12, "n2");
    put(&mut writer, now, EventKind::Modified, "ns/b", 13, "n2");
    for (follower, version) in others.iter_mut().zip([12, 13]) {
        assert!(follower.drain().0.contains(&version));
    }
    let start = |version| SubscriptionStart::After(ResourceVersion(version));
    let mut late = Follower::new(&reader, start(11), Interest::All);
    assert_eq!(late.drain().0, [12, 13]);
    let mut early = Follower::new(&reader, start(10), Interest::All);
    assert!(matches!(early.drain().1, SubscriptionStep::Expired { .. }));
}

#[test]
fn a_field_that_is_printed_differently_ends_watches_of_its_former_value() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("ns/a", 1), ("ns/b", 2)]));
    let node = fields().position("spec.nodeName").unwrap();
    let mut followers = ["n1", "n2", "n3"].map(|name| {
        let interest = Interest::Field(node, name.into());
        Follower::new(&reader, SubscriptionStart::Now, interest)
    });
    for follower in &mut followers {
        follower.drain();
    }
    assert_eq!(writer.reprint(vec![object("ns/a", 1, "n2")]), Some(1));
    let is_expired =
        followers.map(|mut it| matches!(it.drain().1, SubscriptionStep::Expired { .. }));
    assert_eq!(is_expired, [true, true, false]);
}

#[test]
fn age_bounds_the_window() {
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_secs(10),
        bytes: 1 << 30,
    });
    let start = Instant::now();
    writer.replace(at(10, &[]));
    put(&mut writer, start, EventKind::Added, "ns/a", 11, "n1");
    put(
        &mut writer,
        start + Duration::from_secs(5),
        EventKind::Added,
        "ns/b",
        12,
        "n1",
    );
    writer.progress(start + Duration::from_secs(12), ResourceVersion(13));
    assert_eq!(reader.stats().events, 1);
    let mut follower = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(11)),
        Interest::All,
    );
    assert_eq!(follower.drain().0, [12]);
    let mut follower = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(10)),
        Interest::All,
    );
    assert!(matches!(
        follower.drain().1,
        SubscriptionStep::Expired { .. }
    ));
}

#[test]
fn compressed_forms_count_with_their_events() {
    let mut limits = WindowLimits {
        age: Duration::from_secs(10),
        bytes: 1 << 30,
    };
    let start = Instant::now();
    let taken = |reader: &StoreReader| reader.stats().event_bytes;
    // Ten events, which somebody has wanted compressed or not.
    let fill = |limits, compressed: bool| {
        let (mut writer, reader) = new(limits);
        writer.replace(at(10, &[]));
        let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
        let mut bytes = 0;
        for version in 11..=20 {
            put(
                &mut writer,
                start,
                EventKind::Added,
                &format!("ns/p{version}"),
                version,
                "n1",
            );
            let SubscriptionStep::Events(events) = follower.step(1) else {
                panic!("no event")
            };
            bytes += events
                .iter()
                .filter(|_| compressed)
                .map(|event| event.compressed().len())
                .sum::<usize>();
        }
        (writer, reader, bytes)
    };
    let (_, reader, _) = fill(limits, false);
    let plain = taken(&reader);
    let (mut writer, reader, compressed) = fill(limits, true);
    assert!(compressed > 1000);
    assert_eq!(taken(&reader), plain + compressed);
    writer.progress(start + Duration::from_secs(11), ResourceVersion(21));
    assert_eq!(taken(&reader), 0);
    let (mut writer, reader, _) = fill(limits, true);
    writer.replace(at(30, &[]));
    assert_eq!(taken(&reader), 0);
    // They take the place of others.
    limits.bytes = plain + compressed / 2;
    let (mut writer, reader, _) = fill(limits, true);
    writer.progress(start, ResourceVersion(21));
    assert!(taken(&reader) <= limits.bytes);
    assert!((5..10).contains(&reader.stats().events));
}

#[test]
fn inconsistent_events_are_refused() {
    let (mut writer, _reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5)]));
    let mut try_to = |kind, key: &str, version| {
        let object = object(key, version, "n1");
        writer.apply(now, frame(kind, &object), object)
    };
    assert!(matches!(
        try_to(EventKind::Modified, "ns/a", 10),
        Err(InconsistentEvent::Order { .. })
    ));
    assert!(matches!(
        try_to(EventKind::Added, "ns/a", 11),
        Err(InconsistentEvent::Existence { .. })
    ));
    assert!(matches!(
        try_to(EventKind::Modified, "ns/b", 11),
        Err(InconsistentEvent::Existence { .. })
    ));
    assert!(matches!(
        try_to(EventKind::Deleted, "ns/b", 11),
        Err(InconsistentEvent::Existence { .. })
    ));
    assert!(matches!(
        try_to(EventKind::Bookmark, "ns/b", 11),
        Err(InconsistentEvent::NotAChange(_))
    ));
}

#[test]
fn deletions_of_one_version_are_all_seen() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6), ("ns/c", 7)]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    let mut narrow = Follower::new(
        &reader,
        SubscriptionStart::Now,
        Interest::Key("ns/c".into()),
    );
    put(&mut writer, now, EventKind::Deleted, "ns/a", 20, "n1");
    assert_eq!(follower.drain().0, [20]);
    // The watch was cut and resumed: what is known comes again.
    for key in ["ns/a", "ns/b", "ns/c"] {
        put(&mut writer, now, EventKind::Deleted, key, 20, "n1");
    }
    assert_eq!(follower.drain().0, [20, 20]);
    assert_eq!(narrow.drain().0.last(), Some(&20));
    assert_eq!(reader.stats().objects, 0);
    let object = object("ns/d", 20, "n1");
    assert!(matches!(
        writer.apply(now, frame(EventKind::Added, &object), object),
        Err(InconsistentEvent::Order { .. })
    ));
}

#[test]
fn readers_see_a_version_that_deletions_share_once_all_of_them_arrived() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.expect_shared_deletions();
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6), ("ns/c", 7)]));
    put(&mut writer, now, EventKind::Deleted, "ns/a", 20, "n1");
    let before = reader.snapshot();
    assert_eq!((before.version(), before.len()), (ResourceVersion(10), 3));
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(20)),
        SnapshotAt::Future
    ));
    // A watch from now on continues the state before.
    let mut now_on = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    // A client that got the first deletion was cut off, and returns.
    let start = SubscriptionStart::After(ResourceVersion(20));
    let mut returned = Follower::new(&reader, start, Interest::All);
    put(&mut writer, now, EventKind::Deleted, "ns/b", 20, "n1");
    for (follower, expected) in [(&mut now_on, &[20, 20][..]), (&mut returned, &[20])] {
        let (seen, end) = follower.drain();
        assert_eq!(seen, expected);
        assert!(matches!(end, SubscriptionStep::Unfinished), "{end:?}");
    }
    let count = |objects| UnfinishedVersion {
        version: ResourceVersion(20),
        objects,
    };
    assert!(!writer.finish(count(0)), "upstream has less objects left");
    assert_eq!(reader.snapshot().version(), ResourceVersion(10));
    assert!(writer.finish(count(1)));
    let after = reader.snapshot();
    assert_eq!((after.version(), after.len()), (ResourceVersion(20), 1));
    assert!(!writer.finish(count(1)), "nothing is unfinished any more");
}

#[test]
fn a_later_event_bookmark_list_or_confirmation_finishes_a_version() {
    type Finish = fn(&mut StoreWriter, &StoreReader);
    let ends: [(Finish, u64, usize); 4] = [
        (
            |writer, _| put(writer, Instant::now(), EventKind::Added, "ns/d", 21, "n1"),
            21,
            2,
        ),
        (
            |writer, _| writer.progress(Instant::now(), ResourceVersion(20)),
            20,
            1,
        ),
        (|writer, _| drop(writer.replace(at(22, &[]))), 22, 0),
        (
            |_, reader| reader.confirm(reader.followed(), ResourceVersion(23)),
            23,
            1,
        ),
    ];
    for (finish, version, objects) in ends {
        let (mut writer, reader) = new(big());
        writer.expect_shared_deletions();
        writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6)]));
        put(
            &mut writer,
            Instant::now(),
            EventKind::Deleted,
            "ns/a",
            20,
            "n1",
        );
        assert_eq!(reader.snapshot().version(), ResourceVersion(10));
        finish(&mut writer, &reader);
        let state = reader.snapshot();
        assert_eq!((state.version().0, state.len()), (version, objects));
        assert_eq!(reader.unfinished(), None);
    }
}

#[test]
fn deletions_that_share_a_version_are_learned_of() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6), ("ns/c", 7)]));
    put(&mut writer, now, EventKind::Deleted, "ns/a", 20, "n1");
    assert_eq!(reader.snapshot().version(), ResourceVersion(20));
    put(&mut writer, now, EventKind::Deleted, "ns/b", 20, "n1");
    put(&mut writer, now, EventKind::Deleted, "ns/c", 30, "n1");
    assert_eq!(reader.snapshot().version(), ResourceVersion(20));
}

#[test]
fn every_version_of_the_window_can_be_read() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6)]));
    let mut states = vec![(10, reader.snapshot())];
    let change = |writer: &mut StoreWriter, kind, key: &str, version| {
        put(writer, now, kind, key, version, "n1");
        (version, reader.snapshot())
    };
    states.push(change(&mut writer, EventKind::Modified, "ns/a", 11));
    states.push(change(&mut writer, EventKind::Deleted, "ns/b", 13));
    states.push(change(&mut writer, EventKind::Added, "ns/b", 14));
    for version in 20..120 {
        states.push(change(
            &mut writer,
            EventKind::Added,
            &format!("ns/p{version}"),
            version,
        ));
    }
    for _ in 0..2 {
        for (version, state) in &states {
            let SnapshotAt::Found(again) = reader.snapshot_at(now, ResourceVersion(*version))
            else {
                panic!("{version} is lost")
            };
            let of = |state: &Snapshot| {
                let items = state
                    .items(None)
                    .map(|object| (object.key().to_owned(), object.version));
                (state.version(), state.size(), items.collect::<Vec<_>>())
            };
            assert_eq!(of(&again), of(state), "{version}");
        }
    }
    // Between two changes it is the state after the first.
    let SnapshotAt::Found(between) = reader.snapshot_at(now, ResourceVersion(12)) else {
        panic!("12 is lost")
    };
    assert_eq!((between.version(), between.len()), (ResourceVersion(12), 2));
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(9)),
        SnapshotAt::Expired
    ));
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(120)),
        SnapshotAt::Future
    ));
    // After a fresh list nothing of before is certain.
    writer.replace(at(200, &[]));
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(20)),
        SnapshotAt::Expired
    ));
}

#[test]
fn a_confirmed_state_counts_as_newer_than_its_events() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("a/x", 5)]));
    let mut before = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    reader.confirm(reader.snapshot(), ResourceVersion(20));
    assert_eq!(
        (reader.version(), reader.event_version()),
        (ResourceVersion(20), ResourceVersion(10))
    );
    assert!(
        matches!(reader.snapshot_at(now, ResourceVersion(20)), SnapshotAt::Found(state) if state.len() == 1)
    );
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(15)),
        SnapshotAt::Future
    ));
    // An older proof, or one that comes late, changes nothing.
    reader.confirm(reader.snapshot(), ResourceVersion(18));
    assert_eq!(reader.version(), ResourceVersion(20));

    let mut after = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    let (_, snapshot) = reader.subscribe(SubscriptionStart::Now, Interest::All);
    assert_eq!(snapshot.version(), ResourceVersion(20));
    // Nothing of this was left at 20. Who watched before is owed it; who began at 20 must not see
    // it.
    put(&mut writer, now, EventKind::Added, "a/y", 12, "n1");
    put(&mut writer, now, EventKind::Deleted, "a/y", 13, "n1");
    let (seen, end) = before.drain();
    assert_eq!(seen, [12, 13]);
    assert!(
        matches!(end, SubscriptionStep::CaughtUp(ResourceVersion(13))),
        "{end:?}"
    );
    assert_eq!(after.drain().0, Vec::<u64>::new());
    assert_eq!(reader.version(), ResourceVersion(20));

    put(&mut writer, now, EventKind::Modified, "a/x", 25, "n1");
    assert_eq!((before.drain().0, after.drain().0), (vec![25], vec![25]));
    assert_eq!(
        (reader.version(), reader.event_version()),
        (ResourceVersion(25), ResourceVersion(25))
    );
    assert!(
        matches!(reader.snapshot_at(now, ResourceVersion(20)), SnapshotAt::Found(state) if state.get("a/x").unwrap().version.0 == 5)
    );
}

#[test]
fn a_confirmation_ends_with_its_list() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("a/x", 5)]));
    let old = reader.snapshot();
    reader.confirm(old.clone(), ResourceVersion(20));
    // Another server, which is behind.
    writer.replace(at(15, &[("a/x", 5), ("a/y", 12)]));
    assert_eq!(reader.version(), ResourceVersion(15));
    reader.confirm(old.clone(), ResourceVersion(30));
    reader.pin(now, old);
    assert_eq!(
        (reader.version(), reader.snapshot().len()),
        (ResourceVersion(15), 2)
    );
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(10)),
        SnapshotAt::Expired
    ));
}

#[test]
fn items_after_a_key_are_those_of_its_list() {
    let snapshot = at(9, &[("a/x", 1), ("a/y", 2), ("a-b/x", 3), ("b/x", 4)]);
    let keys = |namespace, after| {
        snapshot
            .items_after(namespace, Some(after))
            .map(|object| object.key())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(None, "a-b/x"), ["a/x", "a/y", "b/x"]);
    assert_eq!(keys(None, "a/x"), ["a/y", "b/x"]);
    assert_eq!(keys(Some("a"), "x"), ["a/y"]);
    assert!(keys(Some("a"), "y").is_empty());
    // A token of the list over all namespaces, used in one.
    assert!(keys(Some("a"), "zz/x").is_empty());
    assert!(keys(Some("a"), "\u{10ffff}").is_empty());
}

#[test]
fn a_reader_in_the_midst_of_one_version_is_told_that_the_rest_is_lost() {
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_secs(10),
        bytes: 1 << 30,
    });
    let now = Instant::now();
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6), ("ns/c", 7)]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    for key in ["ns/a", "ns/b", "ns/c"] {
        put(&mut writer, now, EventKind::Deleted, key, 20, "n1");
    }
    assert!(matches!(follower.step(1), SubscriptionStep::Events(events) if events.len() == 1));
    writer.progress(now + Duration::from_mins(1), ResourceVersion(21));
    assert!(matches!(follower.step(1), SubscriptionStep::Expired { .. }));
}

#[test]
fn a_fresh_list_ends_every_watch_from_before_it() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("ns/a", 5)]));
    let mut caught_up = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    put(
        &mut writer,
        Instant::now(),
        EventKind::Modified,
        "ns/a",
        11,
        "n1",
    );
    assert_eq!(caught_up.drain().0, [11]);
    // More may have happened at version 11 than was seen of it.
    writer.replace(at(11, &[]));
    assert!(matches!(
        caught_up.drain().1,
        SubscriptionStep::Expired { .. }
    ));
}

#[test]
fn a_list_at_an_older_version_ends_every_watch_too() {
    // A restored backup: versions begin again below.
    let (mut writer, reader) = new(big());
    writer.replace(at(1000, &[("ns/a", 5)]));
    let mut caught_up = Follower::new(
        &reader,
        SubscriptionStart::After(ResourceVersion(1000)),
        Interest::All,
    );
    caught_up.drain();
    writer.replace(at(500, &[]));
    assert!(matches!(
        caught_up.drain().1,
        SubscriptionStep::Expired { .. }
    ));
}

#[test]
fn a_watch_from_a_confirmed_version_expires_when_a_list_goes_back() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("a/x", 5)]));
    reader.confirm(reader.snapshot(), ResourceVersion(20));
    let start = SubscriptionStart::After(ResourceVersion(20));
    let mut ahead = Follower::new(&reader, start, Interest::All);
    put(&mut writer, now, EventKind::Modified, "a/x", 25, "n1");
    assert_eq!(ahead.drain().0, [25]);
    // Another timeline: 16 to 25 happen again, differently.
    writer.replace(at(15, &[("a/x", 5)]));
    put(&mut writer, now, EventKind::Modified, "a/x", 16, "n2");
    assert!(matches!(ahead.drain(), (seen, SubscriptionStep::Expired { .. }) if seen.is_empty()));
}

#[test]
fn a_reset_leaves_no_state_and_ends_every_watch() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("a/x", 5)]));
    put(&mut writer, now, EventKind::Modified, "a/x", 11, "n1");
    let follow = |version| {
        let start = SubscriptionStart::After(ResourceVersion(version));
        Follower::new(&reader, start, Interest::All)
    };
    let (mut behind, mut ahead) = (follow(10), follow(50));
    let before = reader.snapshot();
    writer.reset();
    assert!(!reader.snapshot().is_listed());
    assert_eq!(reader.version(), ResourceVersion(0));
    // Neither goes on with the next list, and nothing that is known of before counts there.
    let mut meanwhile = [follow(11), follow(60)];
    writer.replace(at(40, &[("a/y", 39)]));
    for follower in [&mut behind, &mut ahead].into_iter().chain(&mut meanwhile) {
        let end = follower.drain();
        assert!(
            matches!(&end, (seen, SubscriptionStep::Expired { .. }) if seen.is_empty()),
            "{end:?}"
        );
    }
    reader.confirm(before.clone(), ResourceVersion(45));
    reader.pin(now, before);
    assert_eq!(reader.version(), ResourceVersion(40));
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(11)),
        SnapshotAt::Expired
    ));
}

#[test]
fn a_repeated_event_is_ignored_and_a_different_one_is_refused() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("a/x", 5), ("a/y", 6)]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    put(&mut writer, now, EventKind::Deleted, "a/y", 11, "n1");
    put(&mut writer, now, EventKind::Modified, "a/x", 12, "n1");
    writer.progress(now, ResourceVersion(20));
    assert_eq!(follower.drain().0, [11, 12]);
    put(&mut writer, now, EventKind::Deleted, "a/y", 11, "n1");
    put(&mut writer, now, EventKind::Modified, "a/x", 12, "n1");
    assert!(follower.drain().0.is_empty(), "everybody has them");
    let rewritten = object("a/x", 12, "n2");
    assert!(matches!(
        writer.apply(now, frame(EventKind::Modified, &rewritten), rewritten),
        Err(InconsistentEvent::Rewritten { .. })
    ));
    for (kind, key, version, node) in [
        (EventKind::Modified, "a/x", 13, "n1"),
        (EventKind::Added, "a/y", 13, "n1"),
        (EventKind::Deleted, "a/x", 13, "n1"),
    ] {
        let object = object(key, version, node);
        let refused = writer.apply(now, frame(kind, &object), object);
        assert!(
            matches!(refused, Err(InconsistentEvent::Order { .. })),
            "{kind:?} {key} {version} {node}: {refused:?}"
        );
    }
}

/// A client that resumes from its last event names such a version. It would list for nothing if its
/// watch expired, and a list at that version would lead it there again.
#[test]
fn a_watch_from_a_version_that_several_deletions_share_goes_on_behind_them() {
    let limits = WindowLimits {
        age: Duration::from_secs(10),
        bytes: 1 << 30,
    };
    let (mut writer, reader) = new(limits);
    let now = Instant::now();
    writer.replace(at(
        10,
        &[("ns/a", 5), ("ns/b", 6), ("ns/c", 7), ("ns/d", 8)],
    ));
    let follow_from = |version| {
        let start = SubscriptionStart::After(ResourceVersion(version));
        Follower::new(&reader, start, Interest::All)
    };
    put(&mut writer, now, EventKind::Deleted, "ns/a", 20, "n1");
    let mut between = follow_from(20);
    put(&mut writer, now, EventKind::Deleted, "ns/b", 20, "n1");
    put(&mut writer, now, EventKind::Deleted, "ns/c", 20, "n1");
    assert_eq!(between.drain().0, [20, 20]);
    let mut behind = follow_from(20);
    assert_eq!(follow_from(19).drain().0, [20, 20, 20]);
    assert!(matches!(
        reader.snapshot_at(now, ResourceVersion(20)),
        SnapshotAt::Found(state) if state.len() == 1
    ));
    put(&mut writer, now, EventKind::Deleted, "ns/d", 30, "n1");
    assert_eq!(behind.drain().0, [30]);
    // It stays so when they have left the window.
    let later = now + Duration::from_mins(1);
    writer.progress(later, ResourceVersion(31));
    assert!(matches!(
        follow_from(30).drain(),
        (seen, SubscriptionStep::CaughtUp(_)) if seen.is_empty()
    ));
    assert!(matches!(
        follow_from(20).drain().1,
        SubscriptionStep::Expired { .. }
    ));
}

#[test]
fn a_step_hands_out_no_more_bytes_than_asked_for() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    for version in 11..=20 {
        put(
            &mut writer,
            Instant::now(),
            EventKind::Added,
            &format!("ns/p{version}"),
            version,
            "n1",
        );
    }
    let size = reader.stats().event_bytes / 10;
    let mut sizes = Vec::new();
    loop {
        let waker = Waker::from(Arc::clone(&follower.wakes));
        match follower
            .subscription
            .step(&Context::from_waker(&waker), 64, 1)
        {
            SubscriptionStep::Events(events) => sizes.push(events.len()),
            end => {
                break assert!(matches!(
                    end,
                    SubscriptionStep::CaughtUp(ResourceVersion(20))
                ));
            }
        }
    }
    assert!(size > 1);
    assert_eq!(sizes, [1; 10]);
}

#[test]
fn the_end_of_the_writer_ends_the_readers() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    follower.drain();
    put(
        &mut writer,
        Instant::now(),
        EventKind::Added,
        "ns/a",
        11,
        "n1",
    );
    drop(writer);
    let (versions, end) = follower.drain();
    assert_eq!(versions, [11]);
    assert!(matches!(end, SubscriptionStep::Closed));
}

#[test]
fn a_pause_ends_watches_that_have_everything_and_later_ones_lose_nothing() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.replace(at(10, &[]));
    let watch = |start| Follower::new(&reader, start, Interest::All);
    let (mut idle, mut behind) = (watch(SubscriptionStart::Now), watch(SubscriptionStart::Now));
    idle.drain();
    put(&mut writer, now, EventKind::Added, "ns/a", 11, "n1");
    idle.drain();
    idle.woken();
    writer.pause();
    assert_eq!(idle.woken(), 1);
    assert!(matches!(idle.step(9), SubscriptionStep::Paused));
    let (versions, end) = behind.drain();
    assert_eq!(versions, [11], "what is known is handed out first");
    assert!(matches!(end, SubscriptionStep::Paused));
    let mut early = watch(SubscriptionStart::Now);
    assert!(matches!(early.step(9), SubscriptionStep::Paused));

    writer.resume();
    let mut later = watch(SubscriptionStart::After(ResourceVersion(11)));
    put(&mut writer, now, EventKind::Added, "ns/b", 12, "n1");
    let (versions, end) = later.drain();
    assert_eq!(versions, [12]);
    assert!(matches!(end, SubscriptionStep::CaughtUp(_)));
    writer.pause();
    writer.replace(at(20, &[]));
    let mut listed = watch(SubscriptionStart::Now);
    assert!(matches!(listed.step(9), SubscriptionStep::CaughtUp(_)));
}

#[test]
fn watches_that_may_be_wrong_are_expired_at_once() {
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    follower.drain();
    writer.expire();
    assert_eq!(follower.woken(), 1);
    assert!(matches!(follower.step(9), SubscriptionStep::Expired { .. }));
}

#[test]
fn namespaces_with_a_common_beginning_are_kept_apart() {
    let snapshot = at(
        9,
        &[
            ("nsa/x", 1),
            ("nsa-b/x", 2),
            ("nsa.c/x", 3),
            ("nsab/x", 4),
            ("ns/x", 5),
        ],
    );
    let keys = |namespace| {
        snapshot
            .items(namespace)
            .map(|object| object.key())
            .collect::<Vec<_>>()
    };
    // In the order of upstream's storage keys: '-' and '.' come before '/'.
    assert_eq!(
        keys(None),
        ["ns/x", "nsa-b/x", "nsa.c/x", "nsa/x", "nsab/x"]
    );
    assert_eq!(keys(Some("nsa")), ["nsa/x"]);
    assert_eq!(keys(Some("ns")), ["ns/x"]);
    assert!(keys(Some("n")).is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u8),
    Delete(u8),
    Progress(u8),
    Relist,
    Read(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..12u8, 0..3u8).prop_map(|(key, node)| Op::Put(key, node)),
        2 => (0..12u8).prop_map(Op::Delete),
        1 => (1..5u8).prop_map(Op::Progress),
        1 => Just(Op::Relist),
        4 => (1..5usize).prop_map(Op::Read),
    ];
    proptest::collection::vec(op, 1..120)
}

proptest! {
    /// Random changes, read at random moments by watches of every interest: each sees exactly the
    /// events of its interest after its start, in order, until it is told that it expired.
    #[test]
    fn no_silent_gap(ops in ops(), window in 500usize..20_000, from in 0u64..30) {
        let (mut writer, reader) = new(WindowLimits { age: Duration::from_hours(1), bytes: window });
        let now = Instant::now();
        let mut version = 20;
        writer.replace(at(version, &[]));
        let node = fields().position("spec.nodeName").unwrap();
        let interests = [
            Interest::All,
            Interest::Namespace("ns1".into()),
            Interest::Key("ns1/p1".into()),
            Interest::Field(node, "n1".into()),
        ];
        let mut followers: Vec<_> = interests
            .into_iter()
            .map(|interest| (Follower::new(&reader, SubscriptionStart::After(ResourceVersion(from)), interest), from, Vec::new(), false))
            .collect();
        let mut model: BTreeMap<String, (u64, String)> = BTreeMap::new();
        let mut history: Vec<(u64, String, Option<String>, String)> = Vec::new();
        for op in ops {
            match op {
                Op::Put(key, node) => {
                    version += 1;
                    let (key, node) = (format!("ns{}/p{}", key % 3, key), format!("n{node}"));
                    let old = model.insert(key.clone(), (version, node.clone()));
                    let kind = if old.is_some() { EventKind::Modified } else { EventKind::Added };
                    put(&mut writer, now, kind, &key, version, &node);
                    history.push((version, key, old.map(|(_, node)| node), node));
                }
                Op::Delete(key) => {
                    let key = format!("ns{}/p{}", key % 3, key);
                    if let Some((_, node)) = model.remove(&key) {
                        version += 1;
                        put(&mut writer, now, EventKind::Deleted, &key, version, &node);
                        history.push((version, key, Some(node.clone()), node));
                    }
                }
                Op::Progress(by) => {
                    version += u64::from(by);
                    writer.progress(now, ResourceVersion(version));
                }
                Op::Relist => {
                    version += 3;
                    let objects = model.iter().map(|(key, (at, node))| object(key, *at, node));
                    writer.replace(Snapshot::new(ResourceVersion(version), layout(), objects));
                    // What happened before is known to nobody who had not read it.
                    history.push((version, "relist".into(), None, String::new()));
                }
                Op::Read(most) => {
                    for (follower, _, seen, expired) in &mut followers {
                        if *expired { continue; }
                        match follower.step(most) {
                            SubscriptionStep::Events(events) => seen.extend(events.iter().map(|event| event.version.0)),
                            SubscriptionStep::Expired { .. } => *expired = true,
                            SubscriptionStep::CaughtUp(at) => prop_assert_eq!(at.0, version),
                            SubscriptionStep::Unfinished
                            | SubscriptionStep::Paused
                            | SubscriptionStep::Closed => prop_assert!(false),
                        }
                    }
                }
            }
            let snapshot = reader.snapshot();
            let held: Vec<_> = snapshot.items(None).map(|object| (object.key().to_owned(), object.version.0)).collect();
            let wanted: Vec<_> = model.iter().map(|(key, (at, _))| (key.clone(), *at)).collect();
            prop_assert_eq!(held, wanted);
        }
        for (follower, start, seen, expired) in &mut followers {
            if !*expired {
                let (rest, end) = follower.drain();
                seen.extend(rest);
                *expired = matches!(end, SubscriptionStep::Expired { .. });
            }
            let concerns = |(at, key, old, new): &&(u64, String, Option<String>, String)| {
                *at > *start && key != "relist" && match &*follower.subscription.membership.interest {
                    Interest::All => true,
                    Interest::Namespace(namespace) => key.starts_with(&format!("{namespace}/")),
                    Interest::Key(wanted) => **wanted == *key.as_str(),
                    Interest::Field(_, node) => **node == *new.as_str() || old.as_deref() == Some(&**node),
                }
            };
            // A watch may also be shown events that do not concern it, never fewer.
            let concerning: Vec<_> = history.iter().filter(concerns).map(|event| event.0).collect();
            prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "order: {seen:?}");
            let last = seen.last().copied().unwrap_or(*start);
            let owed: Vec<_> = concerning.iter().copied().filter(|at| !*expired || *at <= last).collect();
            prop_assert!(owed.iter().all(|at| seen.contains(at)), "owed {owed:?}, seen {seen:?}");
        }
    }
}
