//! Walks over the objects of a snapshot that an interest can concern.
use std::sync::Arc;

use watershed_protocol::{FieldTable, ResourceVersion};

use super::key_range::KeyRange;
use super::objects::Snapshot;
use crate::store::by_field::ByField;
use crate::store::object_run::ObjectRun;
use crate::store::subscribers::Interest;

/// Walks over a snapshot it owns, a piece at a time and in key order.
///
/// It comes to every object of its interest, and to others where those cannot be told apart
/// cheaply. It keeps its place and no list of objects, however many there are.
#[derive(Debug, Default)]
pub struct ObjectRuns {
    snapshot: Snapshot,
    walk: Walk,
}

/// The way to the objects, and the place on it.
#[derive(Debug, Default)]
enum Walk {
    /// All objects in a range of keys.
    Range(KeyRange),
    /// Objects with this value of the indexed field, behind a key.
    Indexed {
        value: Box<str>,
        after: Option<String>,
    },
    /// Objects in the range, without most of those that have another name.
    Named { name: Box<str>, range: KeyRange },
    /// One object, by its key.
    Key(Box<str>),
    /// Nothing more.
    #[default]
    End,
}

impl Snapshot {
    /// Returns the objects that `interest` can concern, in pieces. The iterator owns its snapshot,
    /// for bodies that outlive the caller.
    pub fn into_runs(self, interest: &Interest) -> ObjectRuns {
        let indexed = self.by_field.as_ref().map(ByField::position);
        let everything = || KeyRange::after(None, None);
        let walk = match interest {
            Interest::Namespace(namespace) => Walk::Range(KeyRange::after(Some(namespace), None)),
            Interest::Key(key) => Walk::Key(key.clone()),
            Interest::Field(position, value) if indexed == Some(*position) => Walk::Indexed {
                value: value.clone(),
                after: None,
            },
            Interest::Field(FieldTable::NAME, name) => Walk::Named {
                name: name.clone(),
                range: everything(),
            },
            Interest::All | Interest::Field(..) => Walk::Range(everything()),
        };
        ObjectRuns {
            snapshot: self,
            walk,
        }
    }

    /// Returns the first objects of the range that lie in one leaf.
    pub(in crate::store) fn first_run(&self, range: &KeyRange) -> Option<ObjectRun> {
        let (leaf, from, to) = self.parts(range.clone()).next()?;
        Some(ObjectRun {
            leaf: Arc::clone(leaf),
            range: from..to,
        })
    }

    /// Returns the object with this key as a run.
    fn run_of(&self, key: &str) -> Option<ObjectRun> {
        let leaf = self.leaves.around(key)?;
        let position = leaf.position(key).ok()?;
        Some(ObjectRun {
            leaf: Arc::clone(leaf),
            range: position..position + 1,
        })
    }

    /// Returns the next objects with a value of the indexed field, as far as they lie side by side.
    fn indexed_run(&self, value: &str, after: Option<&str>) -> Option<ObjectRun> {
        let mut keys = self.by_field.as_ref()?.keys_after(value, after);
        let mut run = self.run_of(keys.next()?)?;
        let objects = run.leaf.objects();
        while let (Some(next), Some(key)) = (objects.get(run.range.end), keys.next())
            && next.key() == key
        {
            run.range.end += 1;
        }
        Some(run)
    }
}

impl ObjectRuns {
    /// Returns the version of the snapshot.
    pub fn version(&self) -> ResourceVersion {
        self.snapshot.version()
    }

    /// Returns the snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Iterator for ObjectRuns {
    type Item = ObjectRun;

    fn next(&mut self) -> Option<ObjectRun> {
        let snapshot = &self.snapshot;
        match &mut self.walk {
            Walk::Range(range) => {
                let run = snapshot.first_run(range)?;
                range.go_behind(run.objects().last()?.key());
                Some(run)
            }
            Walk::Indexed { value, after } => {
                let run = snapshot.indexed_run(value, after.as_deref())?;
                *after = Some(run.objects().last()?.key().to_owned());
                Some(run)
            }
            Walk::Named { name, range } => {
                let run = snapshot.first_run(range)?;
                let last = run.objects().last()?;
                match range_behind(last.key(), last.attributes.namespace(), name) {
                    Some(behind) => *range = behind,
                    None => self.walk = Walk::End,
                }
                Some(run)
            }
            Walk::Key(key) => {
                let run = snapshot.run_of(key);
                self.walk = Walk::End;
                run
            }
            Walk::End => None,
        }
    }
}

/// Returns the range of the keys behind `last`, from the next one on that can have this name.
/// Leaves that lie in between are passed over.
fn range_behind(last: &str, namespace: &str, name: &str) -> Option<KeyRange> {
    let (here, next_namespace) = if namespace.is_empty() {
        (name.to_owned(), None)
    } else {
        // The keys of a namespace start with `namespace/`, and `0` is the byte after `/`.
        (format!("{namespace}/{name}"), Some(format!("{namespace}0")))
    };
    let next = if here.as_str() > last {
        Some(here)
    } else {
        next_namespace
    };
    next.map(KeyRange::from)
}
