//! The bounds of the window.
use super::*;

#[test]
fn age_bounds_the_window() {
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_secs(10),
        least: 0,
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
    assert!(has_expired(&follower.drain().1));
}

/// Events of a type that rarely changes, as kube-apiserver has them.
#[test]
fn the_newest_events_are_kept_beyond_their_age() {
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_secs(10),
        least: 3,
        bytes: 1 << 30,
    });
    let start = Instant::now();
    let year = Duration::from_hours(24 * 365);
    let kept = |since| {
        let start = SubscriptionStart::After(ResourceVersion(since));
        Follower::new(&reader, start, Interest::All).drain()
    };
    let is_expired = |since| has_expired(&kept(since).1);
    writer.replace(at(10, &[]));
    for version in 11..=14 {
        let key = format!("ns/p{version}");
        put(&mut writer, start, EventKind::Added, &key, version, "n1");
    }
    assert_eq!(kept(10).0, [11, 12, 13, 14], "they are young");
    writer.progress(start + year, ResourceVersion(15));
    assert!(is_expired(10));
    assert_eq!(kept(11).0, [12, 13, 14]);
    let later = start + year * 2;
    put(&mut writer, later, EventKind::Added, "ns/new", 16, "n1");
    assert!(is_expired(11));
    assert_eq!(kept(12).0, [13, 14, 16]);

    // Not beside a large event, and not while memory is short.
    let large = sized("ns/large", 17, "n1", 2 << 20);
    let event = frame(EventKind::Added, &large);
    writer.apply(later, event, large).unwrap();
    assert!(is_expired(13));
    assert_eq!(kept(14).0, [16, 17], "they are young");
    writer.progress(later + year, ResourceVersion(18));
    assert!(is_expired(16));
    put(
        &mut writer,
        later + year,
        EventKind::Added,
        "ns/last",
        19,
        "n1",
    );
    assert_eq!(kept(18).0, [19]);
    reader.release_history(later + year * 2, Duration::from_mins(1));
    assert!(is_expired(18));
}

#[test]
fn the_last_event_is_known_beyond_the_window() {
    let age = Duration::from_secs(10);
    let (mut writer, reader) = new(WindowLimits {
        age,
        least: 0,
        bytes: 1 << 30,
    });
    let start = Instant::now();
    writer.replace(at(11, &[("ns/a", 11)]));
    assert_eq!(reader.last_shown_event(), None);
    // A watch that resumes begins with the last event.
    put(&mut writer, start, EventKind::Added, "ns/a", 11, "n1");
    assert_eq!(reader.last_shown_event(), Some(ResourceVersion(11)));
    put(&mut writer, start, EventKind::Added, "ns/b", 12, "n1");
    writer.progress(start + age * 2, ResourceVersion(13));
    assert_eq!(reader.last_event_version(), None);
    assert_eq!(reader.last_shown_event(), Some(ResourceVersion(12)));
    writer.replace(at(20, &[]));
    assert_eq!(reader.last_shown_event(), None);
}

#[test]
fn events_that_have_left_the_window_are_dropped() {
    const AGE: u64 = 100;
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_secs(AGE),
        least: 0,
        bytes: 1 << 30,
    });
    let start = Instant::now();
    writer.replace(at(10, &[]));
    let mut follower = Follower::new(&reader, SubscriptionStart::Now, Interest::All);
    let mut events = Vec::new();
    for n in 0..1_000 {
        let key = format!("ns/p{:03}", n * 7_919 % 1_000);
        let now = start + Duration::from_secs(n);
        put(&mut writer, now, EventKind::Added, &key, 11 + n, "n1");
        let SubscriptionStep::Events(new) = follower.step(1) else {
            panic!("no event")
        };
        events.extend(new.iter().map(Arc::downgrade));
    }
    let held = events.iter().filter(|event| event.strong_count() > 0);
    assert_eq!(held.count() as u64, AGE + 1);
}

#[test]
fn compressed_forms_count_with_their_events() {
    let mut limits = WindowLimits {
        age: Duration::from_secs(10),
        least: 0,
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
