//! Clients that list, then watch, and keep a copy: whatever happens between, the copy is right or
//! the watch expires.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// Objects by key: version and node.
type Copy = BTreeMap<String, (u64, String)>;

#[derive(Clone, Debug)]
enum Op {
    /// Key and node.
    Put(u8, u8),
    /// Deletes the objects whose bits are set, all at one version, as an expired lease does. A
    /// client lists after each of them.
    DeleteTogether(u16),
    /// Upstream tells how many objects it has at the newest version.
    Finish,
    Progress(u8),
    /// Shows that nothing changed for so many versions.
    Confirm(u8),
    /// Lists again, so many versions later.
    Relist(u8),
    /// Lists again at an older state: a restored backup.
    Rollback(u8),
    /// A client lists, and watches later.
    List,
    /// Clients that listed begin their watch.
    Watch,
    /// Watches read up to so many events.
    Read(usize),
    /// Somebody reads the state at a version so far back.
    ReadExactly(u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..10u8, 0..3u8).prop_map(|(key, node)| Op::Put(key, node)),
        3 => any::<u16>().prop_map(Op::DeleteTogether),
        2 => Just(Op::Finish),
        1 => (1..5u8).prop_map(Op::Progress),
        2 => (1..5u8).prop_map(Op::Confirm),
        1 => (1..5u8).prop_map(Op::Relist),
        1 => (0..8u8).prop_map(Op::Rollback),
        2 => Just(Op::List),
        3 => Just(Op::Watch),
        4 => (1..5usize).prop_map(Op::Read),
        2 => (0..8u8).prop_map(Op::ReadExactly),
    ];
    proptest::collection::vec(op, 1..80)
}

fn copy_of(state: impl Into<StateAt>) -> Copy {
    let position = fields().position("spec.nodeName").unwrap();
    let state = state.into();
    let runs: Vec<_> = state.runs_after(None, None).collect();
    let objects = runs.iter().flat_map(ObjectRun::objects);
    objects
        .map(|object| {
            let node = object.attributes.field(position).to_owned();
            (object.key().to_owned(), (object.version.0, node))
        })
        .collect()
}

/// A client with a copy of what it was told.
struct Informer {
    copy: Copy,
    version: ResourceVersion,
    watch: Option<Follower>,
    expired: bool,
}

impl Informer {
    fn list(reader: &StoreReader) -> Self {
        let snapshot = reader.snapshot();
        Self {
            copy: copy_of(snapshot.clone()),
            version: snapshot.version(),
            watch: None,
            expired: false,
        }
    }

    fn watch(&mut self, reader: &StoreReader) {
        let start = SubscriptionStart::After(self.version);
        self.watch
            .get_or_insert_with(|| Follower::new(reader, start, Interest::All));
    }

    /// Reads up to `limit` events. Returns `true` if there is nothing more to read.
    fn read(&mut self, limit: usize) -> bool {
        let Some(watch) = self.watch.as_mut().filter(|_| !self.expired) else {
            return true;
        };
        let position = fields().position("spec.nodeName").unwrap();
        match watch.step(limit) {
            SubscriptionStep::Events(events) => {
                for event in events {
                    let key = event.object.key().to_owned();
                    if event.kind == EventKind::Deleted {
                        self.copy.remove(&key);
                    } else {
                        let node = event.object.attributes.field(position).to_owned();
                        self.copy.insert(key, (event.version.0, node));
                    }
                }
                return false;
            }
            SubscriptionStep::Ended(
                SubscriptionEnd::Expired { .. } | SubscriptionEnd::Relisted,
            ) => {
                self.expired = true;
            }
            SubscriptionStep::CaughtUp(_)
            | SubscriptionStep::Unfinished
            | SubscriptionStep::Ended(SubscriptionEnd::Paused | SubscriptionEnd::Closed) => {}
        }
        true
    }
}

/// Upstream: its objects, and those at each version of the present timeline.
struct Upstream {
    version: u64,
    objects: Copy,
    history: BTreeMap<u64, Copy>,
}

impl Upstream {
    fn advance(&mut self, by: u8) -> u64 {
        for _ in 0..by {
            self.version += 1;
            self.history.insert(self.version, self.objects.clone());
        }
        self.version
    }

    fn snapshot(&self) -> Snapshot {
        let objects = self
            .objects
            .iter()
            .map(|(key, (version, node))| object(key, *version, node));
        Snapshot::new(ResourceVersion(self.version), layout(), objects)
    }

    /// Goes back to the state at the newest version that is at least `by` older.
    fn roll_back(&mut self, by: u8) {
        let Some(version) = self.version.checked_sub(u64::from(by)) else {
            return;
        };
        if let Some(objects) = self.history.get(&version) {
            self.objects = objects.clone();
            self.version = version;
            self.history.retain(|held, _| *held <= version);
        }
    }
}

proptest! {
    #[test]
    fn a_copy_is_right_or_its_watch_expires(ops in ops(), window in 2_000usize..20_000) {
        let (mut writer, reader) = new(WindowLimits { age: Duration::from_hours(1), least: 0, bytes: window });
        writer.expect_shared_deletions();
        let now = Instant::now();
        let objects = Copy::new();
        let history = BTreeMap::from([(20, Copy::new())]);
        let mut upstream = Upstream { version: 20, objects, history };
        writer.replace(upstream.snapshot());
        let mut informers: Vec<Informer> = Vec::new();
        for op in ops {
            match op {
                Op::Put(key, node) => {
                    let (key, node) = (format!("ns{}/p{key}", key % 3), format!("n{node}"));
                    let version = upstream.version + 1;
                    let old = upstream.objects.insert(key.clone(), (version, node.clone()));
                    upstream.advance(1);
                    let kind = if old.is_some() { EventKind::Modified } else { EventKind::Added };
                    put(&mut writer, now, kind, &key, version, &node);
                }
                Op::DeleteTogether(keys) => {
                    let gone: Vec<_> = (0..10u8)
                        .filter(|key| keys >> key & 1 == 1)
                        .map(|key| format!("ns{}/p{key}", key % 3))
                        .filter_map(|key| Some((upstream.objects.remove(&key)?.1, key)))
                        .collect();
                    if gone.is_empty() { continue; }
                    let version = upstream.advance(1);
                    for (node, key) in gone {
                        put(&mut writer, now, EventKind::Deleted, &key, version, &node);
                        let present = reader.snapshot();
                        prop_assert!(present.version().0 < version);
                        prop_assert_eq!(Some(&copy_of(present.clone())), upstream.history.get(&present.version().0));
                        let exact = reader.state_at(ResourceVersion(version));
                        prop_assert!(matches!(exact, SnapshotAt::Future));
                        informers.push(Informer::list(&reader));
                    }
                }
                Op::Finish => {
                    let (version, objects) = (ResourceVersion(upstream.version), upstream.objects.len());
                    writer.finish(UnfinishedVersion { version, objects });
                }
                Op::Progress(by) => writer.progress(now, ResourceVersion(upstream.advance(by))),
                Op::Confirm(by) => {
                    let version = ResourceVersion(upstream.advance(by));
                    reader.confirm(reader.followed(), version);
                }
                Op::Relist(by) => {
                    upstream.advance(by);
                    writer.replace(upstream.snapshot());
                }
                Op::Rollback(by) => {
                    upstream.roll_back(by);
                    writer.replace(upstream.snapshot());
                    // Clients that have not begun to watch know the lost timeline. A cache cannot
                    // tell that from the version they name.
                    informers.retain(|informer| informer.watch.is_some());
                }
                Op::List => informers.push(Informer::list(&reader)),
                Op::Watch => informers.iter_mut().for_each(|informer| informer.watch(&reader)),
                Op::Read(limit) => informers.iter_mut().for_each(|informer| {
                    informer.read(limit);
                }),
                Op::ReadExactly(back) => {
                    let version = upstream.version.saturating_sub(u64::from(back));
                    if let SnapshotAt::Found(state) = reader.state_at(ResourceVersion(version)) {
                        prop_assert_eq!(state.version().0, version);
                        prop_assert_eq!(state.len(), state.runs_after(None, None).map(|run| run.len()).sum::<usize>());
                        for namespace in ["ns0", "ns1", "ns2"] {
                            let objects = state.runs_after(Some(namespace), Some("p4"));
                            let objects: usize = objects.map(|run| run.len()).sum();
                            let count: isize = state.counts_after(Some(namespace), Some("p4")).sum();
                            prop_assert_eq!(count, objects.cast_signed());
                        }
                        prop_assert_eq!(Some(&copy_of(state)), upstream.history.get(&version));
                    }
                }
            }
            // Readers see the newest state, or the last one that is known to be complete.
            let present = reader.snapshot();
            prop_assert_eq!(upstream.history.get(&present.version().0), Some(&copy_of(present.clone())));
            if reader.unfinished().is_none() {
                prop_assert_eq!(&copy_of(present.clone()), &upstream.objects);
            }
        }
        for informer in &mut informers {
            informer.watch(&reader);
            while !informer.read(3) {}
            prop_assert!(
                informer.expired || informer.copy == upstream.objects,
                "from {}: {:?}, upstream has {:?}", informer.version, informer.copy, upstream.objects
            );
        }
    }
}
