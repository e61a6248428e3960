//! Frames that are made again when they are needed after they were released.
use super::*;

const AGE: Duration = Duration::from_secs(2);

/// Makes a frame again, and counts how often.
#[derive(Debug)]
struct CountedOrigin {
    frame: Vec<u8>,
    made: Arc<AtomicUsize>,
}

impl FrameOrigin for CountedOrigin {
    fn frame(&self) -> Bytes {
        self.made.fetch_add(1, Ordering::SeqCst);
        self.frame.clone().into()
    }

    fn size(&self) -> usize {
        100
    }

    fn shared(&self) -> usize {
        60
    }
}

/// A store whose events' frames can be made again.
struct Derived {
    writer: StoreWriter,
    reader: StoreReader,
    made: Arc<AtomicUsize>,
    start: Instant,
}

impl Derived {
    fn new() -> Self {
        Self::within(big())
    }

    fn within(limits: WindowLimits) -> Self {
        let (mut writer, reader) = new(limits);
        let keys: Vec<_> = (0..200).map(|n| format!("ns/p{n:03}")).collect();
        let objects: Vec<_> = keys.iter().map(|key| (&**key, 1)).collect();
        writer.replace(at(10, &objects));
        Self {
            writer,
            reader,
            made: Arc::default(),
            start: Instant::now(),
        }
    }

    /// Changes an object, and returns the frame.
    fn change(&mut self, number: u64, version: u64, node: &str) -> Bytes {
        let key = format!("ns/p{number:03}");
        let StoredObject { attributes, .. } = object(&key, version, node);
        let frame = frame(EventKind::Modified, &sized(&key, version, node, 1000));
        // As it is printed: the object is a part of the frame.
        let object = StoredObject {
            bytes: layout().format.item_bytes(&frame.object).into(),
            version: ResourceVersion(version),
            attributes,
        };
        let origin = CountedOrigin {
            frame: frame.frame.to_vec(),
            made: Arc::clone(&self.made),
        };
        let whole = frame.frame.clone();
        self.writer
            .apply_from(self.start, frame, object, None, Some(Box::new(origin)))
            .unwrap();
        whole
    }

    /// Releases what is older than [`AGE`] after so many seconds. Returns the bytes.
    fn release_after(&self, seconds: u64) -> usize {
        let now = self.start + Duration::from_secs(seconds);
        self.reader.release_frames(now, AGE)
    }

    fn made(&self) -> usize {
        self.made.swap(0, Ordering::SeqCst)
    }

    /// Returns the frames behind a version, as a watch gets them.
    fn frames_after(&self, version: u64) -> Vec<Bytes> {
        let start = SubscriptionStart::After(ResourceVersion(version));
        let mut follower = Follower::new(&self.reader, start, Interest::All);
        let mut frames = Vec::new();
        while let SubscriptionStep::Events(events) = follower.step(64) {
            frames.extend(events.iter().map(|event| event.frame()));
        }
        frames
    }
}

#[test]
fn frames_of_delivered_events_are_released_and_made_again_for_late_watches() {
    let mut derived = Derived::new();
    let sent: Vec<_> = (0..50).map(|n| derived.change(n, 11 + n, "n1")).collect();
    let bytes = sent.iter().map(Bytes::len).sum::<usize>();
    let before = derived.reader.stats().event_bytes;
    assert_eq!(derived.frames_after(10), sent);
    assert_eq!(derived.release_after(1), 0, "too young");
    assert_eq!(derived.release_after(3), 0, "just used");
    assert_eq!(derived.release_after(3), bytes);
    assert_eq!(before - derived.reader.stats().event_bytes, bytes);
    assert_eq!(derived.made(), 0);
    // All watches of that moment share what is made again.
    for _ in 0..3 {
        assert_eq!(derived.frames_after(30), sent[20..]);
    }
    assert_eq!(derived.made(), 30);
    let made = sent[20..].iter().map(Bytes::len).sum::<usize>();
    assert_eq!(derived.release_after(3), 0, "just used");
    assert_eq!(derived.release_after(3), made);
    assert_eq!(before - derived.reader.stats().event_bytes, bytes);
}

#[test]
fn a_late_watch_costs_no_history() {
    let mut unlimited = Derived::new();
    for n in 0..50 {
        unlimited.change(n, 11 + n, "n1");
    }
    unlimited.release_after(3);
    unlimited.release_after(3);
    let released = unlimited.reader.stats().event_bytes;
    let mut derived = Derived::within(WindowLimits {
        bytes: released + released / 10,
        ..big()
    });
    for n in 0..50 {
        derived.change(n, 11 + n, "n1");
    }
    derived.release_after(3);
    derived.release_after(3);
    assert_eq!(derived.frames_after(10).len(), 50);
    assert!(derived.reader.stats().event_bytes > released + 50_000);
    derived.change(50, 61, "n1");
    assert_eq!(derived.frames_after(10).len(), 51);
}

#[test]
fn readers_of_a_confirmed_state_need_no_frames() {
    let mut derived = Derived::new();
    let read = |derived: &Derived| {
        let snapshot = derived.reader.snapshot();
        drop(snapshot.get("ns/p003").unwrap().bytes.get());
        derived.made()
    };
    for (n, kind) in (0..).zip(["before", "while", "after"]) {
        derived.change(3, 20 + 10 * n, "n1");
        let version = ResourceVersion(25 + 10 * n);
        let taken = derived.reader.snapshot();
        if kind == "before" {
            derived.reader.confirm(taken.clone(), version);
        }
        derived.release_after(3);
        if kind == "while" {
            derived.reader.confirm(taken.clone(), version);
        }
        assert!(derived.release_after(3) > 0);
        if kind == "after" {
            derived.reader.confirm(taken, version);
        }
        assert_eq!(derived.reader.version(), version);
        assert_eq!(read(&derived), 0, "confirmed {kind} the release");
        assert!(derived.reader.holds(&derived.reader.snapshot()), "{kind}");
    }
}

#[test]
fn objects_and_old_states_outlive_the_frames_that_they_came_in() {
    let mut derived = Derived::new();
    let mut sent = BTreeMap::new();
    for (version, number) in (11..).zip([3, 4, 3, 150, 4, 150, 199]) {
        let node = format!("n{}", version % 2);
        let frame = derived.change(number, version, &node);
        sent.insert(number, frame);
    }
    derived.release_after(3);
    assert!(derived.release_after(3) > 0);
    // Objects have a place in their leaf, so that no list makes frames again.
    let snapshot = derived.reader.snapshot();
    for (number, frame) in &sent {
        let object = snapshot.get(&format!("ns/p{number:03}")).unwrap();
        let text = object.bytes.get().text().into_owned();
        let text = String::from_utf8(text).unwrap();
        let whole = String::from_utf8(frame.to_vec()).unwrap();
        assert!(whole.ends_with(&format!("{}}}\n", &text[1..])), "{text}");
    }
    assert_eq!(derived.made(), 0);
    // The state before each change, and what a watch with a selector knows of it.
    let nodes = |version: u64| {
        let state = found(&derived.reader, version);
        let runs: Vec<_> = state.runs_after(None, None).collect();
        let nodes = runs.iter().flat_map(ObjectRun::objects);
        let nodes = nodes.map(|object| {
            let text = object.bytes.get().text().into_owned();
            let text = String::from_utf8(text).unwrap();
            let (_, node) = text.split_once(r#""nodeName":""#).unwrap();
            (object.version.0, node.split('"').next().unwrap().to_owned())
        });
        nodes
            .filter(|(version, _)| *version > 1)
            .collect::<Vec<_>>()
    };
    let of = |known: &[u64]| {
        let known = known.iter().map(|it| (*it, format!("n{}", it % 2)));
        known.collect::<Vec<_>>()
    };
    assert_eq!(nodes(17), of(&[13, 15, 16, 17]));
    assert_eq!(nodes(14), of(&[13, 12, 14]));
    assert_eq!(nodes(11), of(&[11]));
    assert!(derived.made() > 0);
    // What was made for that is not held.
    assert_eq!(derived.release_after(3), 0);
}

#[test]
fn a_list_and_the_end_of_history_drop_frames_that_were_made_again() {
    let mut derived = Derived::new();
    for n in 0..50 {
        derived.change(n, 11 + n, "n1");
    }
    derived.release_after(3);
    derived.release_after(3);
    derived.frames_after(10);
    let hour = derived.start + Duration::from_hours(2);
    derived.writer.progress(hour, ResourceVersion(70));
    assert_eq!(derived.reader.stats().event_bytes, 0);
    derived.change(1, 71, "n2");
    assert!(derived.reader.stats().event_bytes > 1000);
    derived.writer.replace(at(80, &[]));
    assert_eq!(derived.reader.stats().event_bytes, 0);
}

#[test]
fn bytes_that_two_histories_hold_are_those_of_events_that_both_have() {
    let mut derived = Derived::new();
    assert_eq!(derived.reader.shared_after(ResourceVersion(0)), 0);
    for n in 0..50 {
        derived.change(n, 11 + n, "n1");
    }
    let shared = |derived: &Derived, version| derived.reader.shared_after(ResourceVersion(version));
    assert_eq!(shared(&derived, 10), 50 * 60);
    assert_eq!(shared(&derived, 30), 30 * 60);
    assert_eq!(shared(&derived, 60), 0);
    // What this history has dropped is not shared any more.
    let later = derived.start + Duration::from_mins(2);
    assert!(
        derived
            .reader
            .release_history(later, Duration::from_mins(1))
            > 0
    );
    assert_eq!(shared(&derived, 10), 0);
    derived.change(1, 71, "n2");
    assert_eq!(shared(&derived, 10), 60);
}
