//! States at old versions and proven ones, and the order of keys.
use super::*;

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
            let again = found(&reader, *version);
            let items = state
                .items(None)
                .map(|object| (object.key(), object.version.0));
            let items: Vec<_> = items.map(|(key, at)| (key.to_owned(), at)).collect();
            assert_eq!(again.version(), ResourceVersion(*version));
            assert_eq!(again.len(), items.len(), "{version}");
            assert_eq!(objects_of(&again), items, "{version}");
        }
    }
    // Between two changes it is the state after the first.
    let between = found(&reader, 12);
    assert_eq!((between.version(), between.len()), (ResourceVersion(12), 2));
    assert!(matches!(
        reader.state_at(ResourceVersion(9)),
        SnapshotAt::Expired
    ));
    assert!(matches!(
        reader.state_at(ResourceVersion(120)),
        SnapshotAt::Future
    ));
    // After a fresh list nothing of before is certain.
    writer.replace(at(200, &[]));
    assert!(matches!(
        reader.state_at(ResourceVersion(20)),
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
        matches!(reader.state_at(ResourceVersion(20)), SnapshotAt::Found(state) if state.len() == 1)
    );
    assert!(matches!(
        reader.state_at(ResourceVersion(15)),
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
        matches!(reader.state_at(ResourceVersion(20)), SnapshotAt::Found(state) if objects_of(&state) == [("a/x".to_owned(), 5)])
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
    reader.pin(now, old, Box::new(()));
    assert_eq!(
        (reader.version(), reader.snapshot().len()),
        (ResourceVersion(15), 2)
    );
    assert!(matches!(
        reader.state_at(ResourceVersion(10)),
        SnapshotAt::Expired
    ));
}

#[test]
fn a_state_is_kept_for_the_window_although_no_bookmark_comes() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("a/x", 5)]));
    let owner = Arc::new(());
    let ahead = reader.snapshot().at_version(ResourceVersion(20));
    reader.pin(now, ahead, Box::new(Arc::clone(&owner)));
    reader.drop_old_pins(now + big().age);
    assert_eq!(Arc::strong_count(&owner), 2);
    reader.drop_old_pins(now + big().age + Duration::from_secs(1));
    assert_eq!(Arc::strong_count(&owner), 1);
    assert!(matches!(
        reader.state_at(ResourceVersion(20)),
        SnapshotAt::Future
    ));
}

#[test]
fn leaves_that_only_pinned_states_hold_are_counted_and_bounded() {
    const OBJECTS: u64 = 24_000;
    let key = |number| format!("a/x-{number:05}");
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    let listed = (1..=OBJECTS).map(|number| sized(&key(number), number, "n1", 1_000));
    writer.replace(Snapshot::new(ResourceVersion(OBJECTS), layout(), listed));
    let all = reader.snapshot().size();
    let pinned = ResourceVersion(OBJECTS + 1_000_000);
    let pinned_state = reader.snapshot().at_version(pinned);
    let leaves = |reader: &StoreReader| {
        let runs: Vec<_> = reader.snapshot().runs_after(None, None).collect();
        runs.len()
    };
    reader.pin(now, pinned_state, Box::new(()));
    let history_before = reader.held().history;
    // One small object for each leaf, which is packed for a reader and settled.
    let step = OBJECTS.div_ceil(leaves(&reader) as u64);
    let mut changed = (1..=OBJECTS).step_by(usize::try_from(step).unwrap());
    let mut version = OBJECTS;
    let mut change = |writer: &mut StoreWriter, number| {
        version += 1;
        put(
            writer,
            now,
            EventKind::Modified,
            &key(number),
            version,
            "n1",
        );
        for run in reader.snapshot().runs_after(None, None) {
            run.items();
        }
        writer.progress(now, ResourceVersion(version));
    };
    for number in changed.by_ref().take(100) {
        change(&mut writer, number);
    }
    let held = reader.held().history - history_before;
    assert!(held > 100 * 16 * 1024, "{held} bytes of some 100 leaves");
    assert!(matches!(reader.state_at(pinned), SnapshotAt::Found(_)));
    for number in changed {
        change(&mut writer, number);
    }
    assert!(
        matches!(reader.state_at(pinned), SnapshotAt::Future),
        "it would hold {all} bytes, which is too much"
    );
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

#[test]
fn creations_that_are_taken_back_are_walked_over_in_pieces() {
    const CREATED: usize = 10 * MAX_UNDONE;
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("ns/a", 5), ("ns/z", 6)]));
    for number in 0..CREATED {
        let (key, version) = (format!("ns/m{number:04}"), 11 + number as u64);
        put(&mut writer, now, EventKind::Added, &key, version, "n1");
    }
    let before = found(&reader, 10);
    let expected = [("ns/a".to_owned(), 5), ("ns/z".to_owned(), 6)];
    assert_eq!(objects_of(&before), expected);
    let pieces = before.runs_after(None, None).count();
    assert!(pieces >= CREATED / MAX_UNDONE, "{pieces} pieces");
}
