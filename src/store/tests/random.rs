//! Random changes, beside a plain history.
use super::*;

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
        let (mut writer, reader) = new(WindowLimits { age: Duration::from_hours(1), least: 0, bytes: window });
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
                            SubscriptionStep::Ended(SubscriptionEnd::Expired { .. }) => *expired = true,
                            SubscriptionStep::CaughtUp(at) => prop_assert_eq!(at.0, version),
                            SubscriptionStep::Unfinished | SubscriptionStep::Ended(_) => prop_assert!(false),
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
                *expired = has_expired(&end);
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

    /// Whatever is deleted together, confirmed and proven meanwhile: readers never see an older
    /// version than before.
    #[test]
    fn shown_versions_never_go_back(ops in proptest::collection::vec((0..5u8, 0..8u8), 1..60)) {
        let (mut writer, reader) = new(big());
        let now = Instant::now();
        // Events are far enough apart for confirmations between them.
        let (mut version, mut is_deletion) = (1_000, false);
        let keys: Vec<_> = (0..8).map(|key| format!("ns/p{key}")).collect();
        let mut held: BTreeMap<&str, u64> = keys.iter().map(|key| (key.as_str(), 5)).collect();
        let objects: Vec<_> = held.iter().map(|(key, at)| (*key, *at)).collect();
        writer.replace(at(version, &objects));
        let (mut shown, mut compared) = (reader.snapshot(), reader.snapshot());
        for (op, key) in ops {
            let key = keys[usize::from(key)].as_str();
            match op {
                0 => compared = reader.snapshot(),
                1 => reader.confirm(compared.clone(), ResourceVersion(compared.version().0 + 1)),
                2 => {
                    version += 1_000;
                    is_deletion = false;
                    let kind = if held.insert(key, version).is_some() {
                        EventKind::Modified
                    } else {
                        EventKind::Added
                    };
                    put(&mut writer, now, kind, key, version, "n1");
                }
                3 if held.remove(key).is_some() => {
                    version += if is_deletion { 0 } else { 1_000 };
                    is_deletion = true;
                    put(&mut writer, now, EventKind::Deleted, key, version, "n1");
                }
                _ => {
                    version += 1_000;
                    is_deletion = false;
                    writer.progress(now, ResourceVersion(version));
                }
            }
            let now_shown = reader.snapshot();
            prop_assert!(now_shown.version() >= shown.version(), "{now_shown:?} after {shown:?}");
            shown = now_shown;
        }
    }
}
