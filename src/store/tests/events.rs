//! Events that do not fit to what is known.
use super::*;

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
