//! The request bodies of a connection that are not read to their ends, and what they may keep.
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::activity::Activity;
use crate::body::BodyReader;

/// The bodies of one connection over HTTP/2.
#[derive(Debug, Default)]
pub(super) struct UnreadBodies(Mutex<OpenBodies>);

#[derive(Debug, Default)]
struct OpenBodies {
    /// Bytes that all pieces so far may have kept, if none of them was read.
    kept: u64,
    /// The same when all that had come of a body was read, by the number of the body.
    read: BTreeMap<u64, u64>,
    /// The number of the next body.
    next: u64,
}

/// A request body that may have pieces which nobody has read.
pub(super) struct OpenBody {
    activity: Arc<Activity>,
    number: u64,
}

impl UnreadBodies {
    /// Notes the bytes that all pieces so far may have kept. Passes on how many of them are kept.
    pub(super) fn set_kept(&self, kept: u64, count: impl FnOnce(usize)) {
        let mut bodies = self.0.lock();
        if kept != bodies.kept {
            bodies.kept = kept;
            count(bodies.unread());
        }
    }

    fn begin(&self) -> u64 {
        let mut bodies = self.0.lock();
        let (number, kept) = (bodies.next, bodies.kept);
        bodies.next += 1;
        bodies.read.insert(number, kept);
        number
    }

    fn change(&self, change: impl FnOnce(&mut OpenBodies), count: impl FnOnce(usize)) {
        let mut bodies = self.0.lock();
        let before = bodies.unread();
        change(&mut bodies);
        let now = bodies.unread();
        if now != before {
            count(now);
        }
    }
}

impl OpenBodies {
    /// Returns the bytes that are kept: all since a body was read last.
    fn unread(&self) -> usize {
        let first = self.read.values().min();
        let unread = first.map_or(0, |first| self.kept - first);
        usize::try_from(unread).unwrap_or(usize::MAX)
    }
}

impl OpenBody {
    /// Begins a body of which nothing was read.
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self {
            activity: Arc::clone(activity),
            number: activity.unread_bodies().begin(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut OpenBodies)) {
        let bodies = self.activity.unread_bodies();
        bodies.change(change, |unread| self.activity.note_unread(unread));
    }
}

impl BodyReader for OpenBody {
    fn has_read_all(&self) {
        self.change(|bodies| {
            bodies.read.insert(self.number, bodies.kept);
        });
    }
}

impl Drop for OpenBody {
    fn drop(&mut self) {
        self.change(|bodies| {
            bodies.read.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::fresh_streams::FreshStreams;
    use super::super::input_memory::InputMemory;
    use super::super::metrics::Cut;
    use super::*;
    use crate::budget::MemoryBudget;

    /// Returns the activity of a connection whose unread bodies may have 100,000 bytes, besides some thousands.
    fn activity() -> Arc<Activity> {
        let budget = MemoryBudget::new(Some(32 * 100_000));
        Activity::new(
            &InputMemory::within(&budget),
            &FreshStreams::within(&budget),
        )
    }

    #[test]
    fn pieces_count_until_they_are_read() {
        let activity = activity();
        activity.note_pieces(1 << 30);
        let [one, two] = [(); 2].map(|()| OpenBody::new(&activity));
        for _ in 0..100 {
            let before = activity.unread_bodies().0.lock().kept;
            activity.note_pieces(before + 30_000);
            one.has_read_all();
            two.has_read_all();
        }
        drop(one);
        activity.note_pieces((1 << 30) + 3_030_000);
        drop(two);
        activity.note_pieces(1 << 40);
        assert_eq!(activity.condemned(), None);
        assert!(!activity.is_leaving());
    }

    #[test]
    fn a_connection_with_much_that_nobody_has_read_ends() {
        let activity = activity();
        let unread = OpenBody::new(&activity);
        let read = OpenBody::new(&activity);
        for bytes in 1..=4 {
            activity.note_pieces(bytes * 10_000);
            read.has_read_all();
            assert_eq!(activity.condemned(), None);
        }
        activity.note_pieces(50_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
        drop(unread);
    }

    #[test]
    fn a_known_client_takes_another_connection_first() {
        let activity = activity();
        activity.set_known();
        let _unread = OpenBody::new(&activity);
        activity.note_pieces(60_000);
        assert!(!activity.is_leaving());
        activity.note_pieces(70_000);
        assert!(activity.is_leaving());
        assert_eq!(activity.condemned(), None);
        activity.note_pieces(120_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
    }
}
