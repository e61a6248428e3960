//! Objects that another release of upstream prints differently.
use super::*;

/// Prints an object as another release does.
fn reprinted(key: &str, version: u64) -> StoredObject {
    sized(key, version, "n1", 5)
}

/// Replaces objects, and returns how many differ.
fn reprint(writer: &mut StoreWriter, objects: Vec<StoredObject>) -> Option<usize> {
    let mut reprint = writer.begin_reprint(objects)?;
    while reprint.replace_next() {}
    Some(reprint.finish().0)
}

fn bytes_of(snapshot: &Snapshot, key: &str) -> Bytes {
    snapshot.get(key).unwrap().bytes.get().share()
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
    assert_eq!(reprint(&mut writer, printed()), Some(1));
    let new = reprinted("ns/a", 1).bytes.get().share();
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
        reprint(&mut writer, printed()),
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
    assert_eq!(reprint(&mut writer, vec![reprinted("ns/a", 1)]), Some(1));
    for follower in &mut concerned {
        assert_eq!(follower.woken(), 1);
        let oldest = ResourceVersion(11);
        assert!(matches!(
            follower.drain().1,
            SubscriptionStep::Ended(SubscriptionEnd::Expired { oldest: at, .. }) if at == oldest
        ));
    }
    // The event that it has not read has the old bytes.
    assert!(has_expired(&behind.drain().1));
    put(&mut writer, now, EventKind::Modified, "other/b", 12, "n2");
    put(&mut writer, now, EventKind::Modified, "ns/b", 13, "n2");
    for (follower, version) in others.iter_mut().zip([12, 13]) {
        assert!(follower.drain().0.contains(&version));
    }
    let start = |version| SubscriptionStart::After(ResourceVersion(version));
    let mut late = Follower::new(&reader, start(11), Interest::All);
    assert_eq!(late.drain().0, [12, 13]);
    let mut early = Follower::new(&reader, start(10), Interest::All);
    assert!(has_expired(&early.drain().1));
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
    assert_eq!(reprint(&mut writer, vec![object("ns/a", 1, "n2")]), Some(1));
    let is_expired = followers.map(|mut it| has_expired(&it.drain().1));
    assert_eq!(is_expired, [true, true, false]);
}
