//! Objects that get other bytes in the same version, as another release of upstream prints them.
use std::sync::Arc;
use std::vec;

use super::object::StoredObject;
use super::snapshot::Snapshot;
use super::state::Discarded;
use super::subscribers::ConcernedInterests;
use super::writer::{StoreWriter, wake};

/// A state whose objects are replaced by what another release prints, one at a time.
///
/// They may be many, so it is done by turns and without the lock, in a copy that is shown at the
/// end. The writer cannot make another change in between.
#[derive(Debug)]
pub struct Reprint<'a> {
    writer: &'a mut StoreWriter,
    before: Snapshot,
    after: Snapshot,
    /// The confirmed state, if its objects are not those of the followed one.
    confirmed: Option<ReprintedCopy>,
    left: vec::IntoIter<StoredObject>,
    changed: Vec<Arc<StoredObject>>,
    concerned: ConcernedInterests,
}

/// A state and its copy with the replaced objects.
#[derive(Debug)]
struct ReprintedCopy {
    before: Snapshot,
    after: Snapshot,
}

impl StoreWriter {
    /// Begins to replace the bytes of objects that have not changed, as another release of upstream
    /// prints them differently. Returns `None` while a version is unfinished.
    pub fn begin_reprint(&mut self, objects: Vec<StoredObject>) -> Option<Reprint<'_>> {
        let state = self.state.read();
        if state.unfinished.is_some() {
            return None;
        }
        let (followed, confirmed) = (state.snapshot.clone(), state.confirmed.clone());
        let concerned = state.subscribers.interests_concerned();
        drop(state);
        Some(Reprint::new(self, followed, confirmed, objects, concerned))
    }
}

impl<'a> Reprint<'a> {
    /// Begins with the followed state, and with the confirmed one if there is one.
    fn new(
        writer: &'a mut StoreWriter,
        followed: Snapshot,
        confirmed: Option<Snapshot>,
        objects: Vec<StoredObject>,
        concerned: ConcernedInterests,
    ) -> Self {
        let other = confirmed.filter(|confirmed| !confirmed.has_objects_of(&followed));
        Self {
            writer,
            before: followed.clone(),
            after: followed,
            confirmed: other.map(|before| ReprintedCopy {
                after: before.clone(),
                before,
            }),
            left: objects.into_iter(),
            changed: Vec::new(),
            concerned,
        }
    }

    /// Replaces the next object, unless it is gone or has another version by now. Returns `false`
    /// if there is no object left.
    pub fn replace_next(&mut self) -> bool {
        let Some(object) = self.left.next() else {
            return false;
        };
        let object = Arc::new(object);
        if let Some(old) = self.after.reprint(&object) {
            // Watches select by fields as well, which a release can print otherwise, too.
            self.concerned.add(&old.attributes);
            self.concerned.add(&object.attributes);
            if let Some(confirmed) = &mut self.confirmed {
                confirmed.after.reprint(&object);
            }
            self.changed.push(object);
        }
        true
    }

    /// Shows the objects that were replaced. Returns the number of those whose bytes differ, and
    /// what was held before.
    ///
    /// The history has the old bytes, so it is dropped. A watch that has got all of it goes on,
    /// unless it is about one of the objects: its client would not learn the new bytes.
    pub fn finish(mut self) -> (usize, Discarded) {
        if self.changed.is_empty() {
            return (0, Discarded::default());
        }
        self.after.outlive_all(self.after.version());
        // What readers took before must not be confirmed any more.
        let generation = self.before.generation() + 1;
        let mut state = self.writer.state.write();
        let confirmed = state.confirmed.take();
        let reprinted = confirmed.as_ref().map(|known| self.reprinted(known));
        state.confirmed = reprinted.map(|snapshot| snapshot.of_generation(generation));
        state.snapshot = self.after.of_generation(generation);
        let reached = state.snapshot.version();
        let copy = self.confirmed.map(|copy| (copy.before, copy.after));
        let (copied, copy) = copy.unzip();
        let changed = self.changed.len();
        let discarded = Discarded {
            _snapshots: [Some(self.before), confirmed, copied, copy],
            _objects: self.changed,
            _pins: std::mem::take(&mut state.pins),
            _events: state.window.reset(reached),
        };
        let wakers = state.subscribers.expire_concerned(&self.concerned);
        drop(state);
        wake(wakers);
        (changed, discarded)
    }

    /// Returns the state that is confirmed now with the replaced objects.
    fn reprinted(&self, now: &Snapshot) -> Snapshot {
        let known = self.confirmed.as_ref();
        let after = if now.has_objects_of(&self.before) {
            self.after.clone()
        } else if let Some(copy) = known.filter(|copy| now.has_objects_of(&copy.before)) {
            copy.after.clone()
        } else {
            // A reader took it before the last change, and confirmed it meanwhile.
            let mut copy = now.clone();
            for object in &self.changed {
                copy.reprint(object);
            }
            copy
        };
        after.at_version(now.version())
    }
}
