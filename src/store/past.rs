//! States at versions in the window.
use std::sync::Arc;

use watershed_protocol::ResourceVersion;

use super::changes::ChangesByKey;
use super::event::WindowEvent;
use super::leaf::Leaf;
use super::object::StoredObject;
use super::object_run::ObjectRun;
use super::snapshot::{KeyRange, Snapshot};
use super::subscribers::Interest;
use super::tally::ByteTally;

/// Most changes that are taken back at a time.
pub const MAX_UNDONE: usize = 64;

/// The objects of a scope at one version, the newest or an older one.
///
/// An older state is the newest one without the changes after it. They are taken back while the
/// objects are walked over, so that nobody pays for objects that are not read.
#[derive(Clone, Debug)]
pub struct StateAt {
    newest: Snapshot,
    /// In a box, as few states are older ones.
    past: Option<Box<Past>>,
}

/// The way back to an older state.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub(super) version: ResourceVersion,
    pub(super) changes: ChangesByKey,
    /// Number of objects then.
    pub(super) objects: usize,
    /// Counts what is made again for readers.
    pub(super) restored: ByteTally,
    /// Upper bound of that.
    pub(super) limit: usize,
}

impl From<Snapshot> for StateAt {
    fn from(newest: Snapshot) -> Self {
        Self { newest, past: None }
    }
}

impl StateAt {
    pub(super) fn before(newest: Snapshot, past: Past) -> Self {
        Self {
            newest,
            past: Some(Box::new(past)),
        }
    }

    /// Returns the version of the state.
    pub fn version(&self) -> ResourceVersion {
        let past = self.past.as_ref();
        past.map_or(self.newest.version(), |past| past.version)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        let past = self.past.as_ref();
        past.map_or(self.newest.len(), |past| past.objects)
    }

    /// Returns `true` if there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `false` while readers of old versions hold as much memory as they may.
    pub fn is_affordable(&self) -> bool {
        let past = self.past.as_ref();
        past.is_none_or(|past| past.restored.bytes() < past.limit)
    }

    /// Returns the snapshot from which changes are taken back, if it is an older state.
    pub fn newest(&self) -> &Snapshot {
        &self.newest
    }

    /// Returns the snapshot that has all of it, unless it is an older state.
    pub fn as_snapshot(&self) -> Option<&Snapshot> {
        self.past.is_none().then_some(&self.newest)
    }

    /// Returns the objects of one namespace, or of all, whose keys come after `after`, in pieces
    /// that can be sent as they are. A piece of an older state may be empty. A key is relative to the namespace, as in a continue token.
    pub fn runs_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> Box<dyn Iterator<Item = ObjectRun> + Send + 'a> {
        match &self.past {
            None => Box::new(self.newest.runs_after(namespace, after)),
            Some(past) => Box::new(PastRuns {
                newest: &self.newest,
                past,
                left: Some(KeyRange::after(namespace, after)),
            }),
        }
    }

    /// Returns the objects that `interest` can concern, in pieces.
    pub fn runs_of<'a>(
        &'a self,
        interest: &Interest,
    ) -> Box<dyn Iterator<Item = ObjectRun> + Send + 'a> {
        if self.past.is_none() {
            return Box::new(self.newest.clone().into_runs(interest));
        }
        match interest {
            Interest::Namespace(namespace) => self.runs_after(Some(namespace), None),
            Interest::Key(key) => {
                let namespace = key.split_once('/').map(|(namespace, _)| namespace);
                self.runs_after(namespace, None)
            }
            Interest::All | Interest::Field(..) => self.runs_after(None, None),
        }
    }

    /// Returns numbers whose sum is that of the objects in the same range as for
    /// [`StateAt::runs_after`]. It restores no object.
    pub fn counts_after<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = isize> + Send + 'a {
        let range = KeyRange::after(namespace, after);
        let start = range.clone();
        let undone = self.past.iter().flat_map(move |past| {
            let mut range = start.clone();
            std::iter::from_fn(move || {
                let event = past.first_in(&range, None)?;
                range.go_behind(event.object.key());
                Some(event)
            })
        });
        let undone = undone.map(|event| {
            let was_there = isize::from(event.previous_attributes().is_some());
            let is_there = isize::from(self.newest.get(event.object.key()).is_some());
            was_there - is_there
        });
        let present = self.newest.counts(range).map(usize::cast_signed);
        present.chain(undone)
    }
}

impl Past {
    /// Returns the first change to be taken back of the next object in the range, up to `last`, that
    /// has one.
    fn first_in(&self, range: &KeyRange, last: Option<&str>) -> Option<&Arc<WindowEvent>> {
        let is_within = |key: &str| range.ends_behind(key) && last.is_none_or(|last| key <= last);
        if range.has_start() {
            self.changes
                .first_from(range.start(), self.version, is_within)
        } else {
            self.changes
                .first_behind(range.start(), self.version, is_within)
        }
    }
}

/// Walks over an older state.
struct PastRuns<'a> {
    newest: &'a Snapshot,
    past: &'a Past,
    /// The range that is still to come.
    left: Option<KeyRange>,
}

impl Iterator for PastRuns<'_> {
    type Item = ObjectRun;

    fn next(&mut self) -> Option<ObjectRun> {
        while let Some(range) = &mut self.left {
            let run = self.newest.first_run(range);
            let last = run.as_ref().and_then(|run| run.objects().last());
            let (undone, end) = undone_until(self.past, range, last.map(|last| last.key()));
            match &end {
                Some(end) => range.go_behind(end),
                None => self.left = None,
            }
            if undone.is_empty() {
                if run.is_some() {
                    return run;
                }
                continue;
            }
            let objects = run.as_ref().map_or(&[][..], ObjectRun::objects);
            return self.restored(objects, &undone, end.as_deref());
        }
        None
    }
}

/// Returns the changes to be taken back up to `last`, but not too many, and the key up to which
/// these are all; `None` if there is no more.
fn undone_until(
    past: &Past,
    range: &KeyRange,
    last: Option<&str>,
) -> (Vec<Arc<WindowEvent>>, Option<String>) {
    let mut undone: Vec<Arc<WindowEvent>> = Vec::new();
    let mut left = range.clone();
    while let Some(event) = past.first_in(&left, last) {
        let key = event.object.key();
        if undone.len() == MAX_UNDONE {
            return (undone, Some(left.start().to_owned()));
        }
        left.go_behind(key);
        undone.push(Arc::clone(event));
    }
    (undone, last.map(str::to_owned))
}

impl PastRuns<'_> {
    /// Returns the objects up to `end` as they were before the changes. There are none if all of
    /// them were created by these.
    fn restored(
        &self,
        objects: &[Arc<StoredObject>],
        undone: &[Arc<WindowEvent>],
        end: Option<&str>,
    ) -> Option<ObjectRun> {
        let mut restored = Vec::with_capacity(objects.len() + undone.len());
        let mut bytes = 0;
        let mut objects = objects.iter().peekable();
        for event in undone {
            let key = event.object.key();
            while let Some(object) = objects.next_if(|object| object.key() < key) {
                restored.push(Arc::clone(object));
            }
            objects.next_if(|object| object.key() == key);
            if let Some(previous) = event.previous() {
                bytes += previous.size();
                restored.push(Arc::new(previous));
            }
        }
        let is_within = |object: &&Arc<StoredObject>| end.is_none_or(|end| object.key() <= end);
        restored.extend(objects.take_while(is_within).cloned());
        let format = self.newest.format()?;
        // The caller may end its turn: there may be many such changes.
        if restored.is_empty() {
            let created = undone.first()?;
            return Some(ObjectRun {
                leaf: Arc::new(Leaf::new(format, vec![Arc::clone(&created.object)])),
                range: 0..0,
            });
        }
        let leaf = Leaf::new(format, restored);
        // What is sent of it is put together, and held as long.
        let charge = self.past.restored.charge(bytes + leaf.items_len);
        let leaf = leaf.charged(charge);
        Some(ObjectRun {
            range: 0..leaf.objects().len(),
            leaf: Arc::new(leaf),
        })
    }
}
