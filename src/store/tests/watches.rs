//! Watches: their starts, their ends, and who is woken.
use super::*;

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
        least: 0,
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
            SubscriptionStep::Ended(SubscriptionEnd::Expired {
                version: ResourceVersion(200),
                ..
            })
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
        SubscriptionStep::Ended(SubscriptionEnd::Expired {
            version: ResourceVersion(9),
            oldest: ResourceVersion(10)
        })
    ));
    // Still so when asked again.
    assert!(has_expired(&old.drain().1));
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
        SubscriptionStep::Ended(SubscriptionEnd::Expired {
            version: ResourceVersion(10),
            oldest: ResourceVersion(40)
        })
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

#[test]
fn a_reader_in_the_midst_of_one_version_is_told_that_the_rest_is_lost() {
    let (mut writer, reader) = new(WindowLimits {
        age: Duration::from_secs(10),
        least: 0,
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
    assert!(has_expired(&follower.step(1)));
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
    assert!(has_expired(&caught_up.drain().1));
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
    assert!(has_expired(&caught_up.drain().1));
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
    let (seen, end) = ahead.drain();
    assert!(seen.is_empty() && has_expired(&end));
}

#[test]
fn a_list_for_another_schema_ends_open_watches_without_an_error_and_expires_late_ones() {
    let (mut writer, reader) = new(big());
    let after = |version| SubscriptionStart::After(ResourceVersion(version));
    writer.replace(at(10, &[("ns/a", 5)]));
    let follow = |version| Follower::new(&reader, after(version), Interest::All);
    let (mut caught_up, mut behind) = (follow(10), follow(10));
    caught_up.drain();
    put(
        &mut writer,
        Instant::now(),
        EventKind::Modified,
        "ns/a",
        11,
        "n1",
    );
    writer.replace_after_schema_change(at(20, &[("ns/a", 11)]));
    for open in [&mut caught_up, &mut behind] {
        let (seen, end) = open.drain();
        assert_eq!(
            (seen, end_of(&end)),
            (vec![], Some(SubscriptionEnd::Relisted))
        );
    }
    // Whoever goes on from there must not believe that nothing is missing.
    let (mut late, mut new) = (follow(11), follow(20));
    assert!(has_expired(&late.drain().1));
    assert!(matches!(new.drain().1, SubscriptionStep::CaughtUp(_)));
    writer.replace(at(30, &[]));
    assert!(has_expired(&new.drain().1));
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
    writer.progress(now, ResourceVersion(30));
    assert_eq!(reader.version(), ResourceVersion(0), "nothing is listed");
    // Neither goes on with the next list, and nothing that is known of before counts there.
    let mut meanwhile = [follow(11), follow(60)];
    writer.replace(at(40, &[("a/y", 39)]));
    for follower in [&mut behind, &mut ahead].into_iter().chain(&mut meanwhile) {
        let end = follower.drain();
        assert!(end.0.is_empty() && has_expired(&end.1), "{end:?}");
    }
    reader.confirm(before.clone(), ResourceVersion(45));
    reader.pin(now, before, Box::new(()));
    assert_eq!(reader.version(), ResourceVersion(40));
    assert!(matches!(
        reader.state_at(ResourceVersion(11)),
        SnapshotAt::Expired
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
    assert_eq!(end_of(&end), Some(SubscriptionEnd::Closed));
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
    assert_eq!(end_of(&idle.step(9)), Some(SubscriptionEnd::Paused));
    let (versions, end) = behind.drain();
    assert_eq!(versions, [11], "what is known is handed out first");
    assert_eq!(end_of(&end), Some(SubscriptionEnd::Paused));
    let mut early = watch(SubscriptionStart::Now);
    assert_eq!(end_of(&early.step(9)), Some(SubscriptionEnd::Paused));

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
    assert!(has_expired(&follower.step(9)));
}

#[test]
fn a_released_state_holds_nothing_and_ends_watches_that_are_behind() {
    let now = Instant::now();
    let (mut writer, reader) = new(big());
    writer.replace(at(10, &[("ns/a", 5), ("ns/b", 6)]));
    put(&mut writer, now, EventKind::Modified, "ns/a", 11, "n1");
    let follow = |version| {
        let start = SubscriptionStart::After(ResourceVersion(version));
        Follower::new(&reader, start, Interest::All)
    };
    let (mut behind, mut caught_up) = (follow(10), follow(11));
    caught_up.drain();
    let held = {
        let snapshot = reader.snapshot();
        ["ns/a", "ns/b"].map(|key| Arc::downgrade(snapshot.get(key).unwrap()))
    };
    drop(writer.release());
    drop(writer);
    assert!(held.iter().all(|object| object.upgrade().is_none()));
    assert_eq!(reader.held(), HeldBytes::default());
    assert_eq!(caught_up.woken(), 1);
    // One that begins now, too.
    for follower in [&mut behind, &mut caught_up, &mut follow(11)] {
        let (seen, end) = follower.drain();
        assert_eq!(
            (seen, end_of(&end)),
            (vec![], Some(SubscriptionEnd::Closed))
        );
    }
}
