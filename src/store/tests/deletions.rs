//! Deletions that share a version.
use super::*;

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
        reader.state_at(ResourceVersion(20)),
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
fn a_confirmation_between_deletions_of_one_version_is_not_taken_back() {
    let (mut writer, reader) = new(big());
    let now = Instant::now();
    writer.expect_shared_deletions();
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6), ("ns/c", 7)]));
    let compared = reader.snapshot();
    put(&mut writer, now, EventKind::Deleted, "ns/a", 20, "n1");
    reader.confirm(compared, ResourceVersion(15));
    for key in ["ns/b", "ns/c"] {
        let shown = reader.snapshot();
        assert_eq!((shown.version(), shown.len()), (ResourceVersion(15), 3));
        put(&mut writer, now, EventKind::Deleted, key, 20, "n1");
    }
    writer.progress(now, ResourceVersion(21));
    assert_eq!(reader.snapshot().len(), 0);
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

/// A client that resumes from its last event names such a version. It would list for nothing if its
/// watch expired, and a list at that version would lead it there again.
#[test]
fn a_watch_from_a_version_that_several_deletions_share_goes_on_behind_them() {
    let limits = WindowLimits {
        age: Duration::from_secs(10),
        least: 0,
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
        reader.state_at(ResourceVersion(20)),
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
    assert!(has_expired(&follow_from(20).drain().1));
}
