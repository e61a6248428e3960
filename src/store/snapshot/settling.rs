//! Settles leaves that hold more than their objects, some at a time.
//!
//! Putting leaves together copies bytes and objects, so it is done without the store's lock: leaves
//! are found in a copy of the snapshot and settled, and then take the place of those in the store.
//! A leaf that has changed meanwhile stays as it is.
use std::sync::Arc;

use super::objects::Snapshot;
use crate::store::leaf::Leaf;

/// Objects that are settled, or looked at, in one turn. The last leaf may go beyond it.
const OBJECTS_AT_ONCE: usize = 2048;
/// Bytes that are copied in one turn: some milliseconds of work.
const BYTES_AT_ONCE: usize = 2 << 20;

/// A leaf, and the same objects with their bytes in one place.
#[derive(Debug)]
pub(in crate::store) struct SettledLeaf {
    before: Arc<Leaf>,
    after: Leaf,
}

/// Leaves that are no part of the snapshot any more.
///
/// Dropping them takes a moment for each object, so they are dropped after the lock is released.
#[derive(Debug)]
#[must_use = "they are dropped without the lock"]
pub(in crate::store) struct ReplacedLeaves {
    _leaves: Vec<Arc<Leaf>>,
}

impl SettledLeaf {
    fn of(before: Arc<Leaf>) -> Self {
        let after = before.settle();
        Self { before, after }
    }
}

impl Snapshot {
    /// Settles leaves that are held twice, as they were packed for a reader, among the next `count`
    /// behind `key`. Moves `key` to the last one, and from the end back to the beginning.
    pub(in crate::store) fn settle_held_twice(
        &self,
        key: &mut String,
        count: usize,
    ) -> Vec<SettledLeaf> {
        let (mut twice, mut objects) = (Vec::new(), 0);
        let mut last = None;
        let mut next = self.leaves.behind(key);
        for leaf in next.by_ref().take(count) {
            last = Some(leaf);
            if leaf.is_held_twice() {
                objects += leaf.objects().len();
                twice.push(Arc::clone(leaf));
            }
            if objects >= OBJECTS_AT_ONCE {
                break;
            }
        }
        go_on_behind(last.filter(|_| next.next().is_some()), key);
        twice.into_iter().map(SettledLeaf::of).collect()
    }

    /// Settles leaves that hold frames of events which no history has any more, among the next ones
    /// behind `key`, which it moves like [`Snapshot::settle_held_twice`]. Also returns the number of
    /// objects that it looked at. A leaf without changes counts as one.
    pub(in crate::store) fn settle_outlived(&self, key: &mut String) -> (Vec<SettledLeaf>, usize) {
        let (mut outlived, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        let mut last = None;
        let mut next = self.leaves.behind(key);
        // Of large objects, one alone may be more than what is settled at a time.
        while looked_at < OBJECTS_AT_ONCE
            && bytes < BYTES_AT_ONCE
            && let Some(leaf) = next.next()
        {
            last = Some(leaf);
            looked_at += if leaf.is_settled() {
                1
            } else {
                leaf.objects().len()
            };
            if leaf.outlived(self.outlived_until).count > 0 {
                bytes += leaf.lengths.objects;
                outlived.push(Arc::clone(leaf));
            }
        }
        go_on_behind(last.filter(|_| next.next().is_some()), key);
        let settled = outlived.into_iter().map(SettledLeaf::of).collect();
        (settled, looked_at)
    }

    /// Puts settled leaves in the place of those that they were made from.
    pub(in crate::store) fn replace_by_settled(
        &mut self,
        settled: Vec<SettledLeaf>,
    ) -> ReplacedLeaves {
        let replace = |SettledLeaf { before, after }| {
            let present = self.leaves.around(before.first_key());
            if present.is_some_and(|present| Arc::ptr_eq(present, &before)) {
                self.replace(&before, after);
            }
            before
        };
        ReplacedLeaves {
            _leaves: settled.into_iter().map(replace).collect(),
        }
    }

    /// Settles all leaves that are not.
    pub(super) fn settle_all(&mut self) {
        let leaves = self.leaves.iter().filter(|leaf| !leaf.is_settled());
        let unsettled: Vec<_> = leaves.cloned().collect();
        for leaf in unsettled {
            self.replace(&leaf, leaf.settle());
        }
    }
}

/// Records the last leaf of a turn, or none if the next turn starts at the beginning.
fn go_on_behind(last: Option<&Arc<Leaf>>, key: &mut String) {
    key.clear();
    if let Some(last) = last {
        key.push_str(last.first_key());
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use watershed_protocol::{EventKind, ResourceVersion};

    use super::*;
    use crate::store::leaf::FULL_OBJECTS;
    use crate::store::tests::{layout, put, sized};
    use crate::store::{WindowLimits, new};

    const OBJECTS: u64 = 20_000;

    fn key(n: u64) -> String {
        format!("ns/p{n:05}")
    }

    /// Returns a state in which an object of each leaf has changed at version 2.
    fn changed() -> Snapshot {
        let listed = (0..OBJECTS).map(|n| sized(&key(n), 1, "n1", 10));
        let mut snapshot = Snapshot::new(ResourceVersion(1), layout(), listed);
        for n in (0..OBJECTS).step_by(FULL_OBJECTS / 2) {
            snapshot.insert(Arc::new(sized(&key(n), 2, "n1", 10)));
        }
        snapshot
    }

    fn objects(settled: &[SettledLeaf]) -> usize {
        settled.iter().map(|leaf| leaf.after.objects().len()).sum()
    }

    /// Settles by turns until all leaves were looked at. Returns the turns' objects.
    fn by_turns(
        snapshot: &mut Snapshot,
        turn: impl Fn(&Snapshot, &mut String) -> Vec<SettledLeaf>,
    ) -> Vec<usize> {
        let (mut place, mut turns) = (String::new(), Vec::new());
        loop {
            let settled = turn(snapshot, &mut place);
            turns.push(objects(&settled));
            drop(snapshot.replace_by_settled(settled));
            if place.is_empty() {
                return turns;
            }
        }
    }

    #[test]
    fn frames_without_history_are_dropped_by_turns() {
        let mut snapshot = changed();
        snapshot.outlive_all(ResourceVersion(2));
        // All other objects of a leaf that has changed are looked at, too.
        let turns = by_turns(&mut snapshot, |snapshot, place| {
            let (settled, looked_at) = snapshot.settle_outlived(place);
            assert!(
                looked_at < OBJECTS_AT_ONCE + 2 * FULL_OBJECTS,
                "{looked_at}"
            );
            settled
        });
        let most = turns.iter().copied().max().unwrap();
        assert!(most < OBJECTS_AT_ONCE + 2 * FULL_OBJECTS, "{most}");
        assert!(turns.len() > 5, "{turns:?}");
        assert!(snapshot.leaves.iter().all(|leaf| leaf.is_settled()));
        let (settled, looked_at) = snapshot.settle_outlived(&mut String::new());
        assert!(settled.is_empty());
        let leaves = snapshot.leaves.len();
        assert_eq!(looked_at, leaves, "a leaf without changes counts as one");
    }

    #[test]
    fn what_is_held_twice_is_dropped_by_turns() {
        let mut snapshot = changed();
        // A reader puts all leaves together.
        snapshot.runs_after(None, None).for_each(|run| {
            run.items();
        });
        assert!(snapshot.leaves.iter().all(|leaf| leaf.is_held_twice()));
        let turns = by_turns(&mut snapshot, |snapshot, place| {
            snapshot.settle_held_twice(place, 64)
        });
        let most = turns.iter().copied().max().unwrap();
        assert!(most < OBJECTS_AT_ONCE + 2 * FULL_OBJECTS, "{most}");
        assert_eq!(turns.iter().sum::<usize>(), OBJECTS as usize);
        assert!(snapshot.leaves.iter().all(|leaf| leaf.is_settled()));
    }

    #[test]
    fn a_leaf_that_changed_since_it_was_settled_stays_as_it_is() {
        let mut snapshot = changed();
        snapshot.outlive_all(ResourceVersion(2));
        let (settled, _) = snapshot.settle_outlived(&mut String::new());
        assert!(settled.len() > 2);
        snapshot.insert(Arc::new(sized(&key(0), 3, "n1", 10)));
        snapshot.remove(&key(70));
        drop(snapshot.replace_by_settled(settled));
        assert_eq!(snapshot.get(&key(0)).unwrap().version, ResourceVersion(3));
        assert!(snapshot.get(&key(70)).is_none());
        let unsettled = snapshot.leaves.iter().filter(|leaf| !leaf.is_settled());
        assert!(unsettled.count() > 2, "they are the next turn's");
        let counted = snapshot.leaves.iter().map(|leaf| leaf.objects().len());
        assert_eq!(counted.sum::<usize>(), snapshot.len());
    }

    #[test]
    fn readers_do_not_wait_while_a_bookmark_puts_leaves_together() {
        let (mut writer, reader) = new(WindowLimits {
            age: Duration::ZERO,
            least: 0,
            bytes: 0,
        });
        let listed = ["ns/a", "ns/b"].map(|key| sized(key, 1, "n1", 10));
        drop(writer.replace(Snapshot::new(ResourceVersion(1), layout(), listed)));
        let packed = Arc::clone(reader.snapshot().leaves.first().unwrap().packed());
        let now = Instant::now();
        put(&mut writer, now, EventKind::Modified, "ns/a", 2, "n2");

        // The other object's bytes are there, so that the leaf cannot be put together.
        let blocked = packed.block_readers();
        let settling = thread::spawn(move || {
            writer.progress(now, ResourceVersion(9));
            writer
        });
        let (tell, told) = mpsc::channel();
        let others = reader.clone();
        let reading = thread::spawn(move || {
            while others.version() < ResourceVersion(9) {
                thread::yield_now();
            }
            tell.send(())
        });
        let told = told.recv_timeout(Duration::from_mins(1));
        told.expect("a reader waits for the leaf");
        drop(blocked);
        reading.join().unwrap().unwrap();
        let _writer = settling.join().unwrap();
        let snapshot = reader.snapshot();
        assert!(snapshot.leaves.iter().all(|leaf| leaf.is_settled()));
    }
}
