//! Changes of the form in which upstream prints a type's objects, and the list that follows on them.
use std::time::{Duration, Instant};

use crate::scope::schema_changes::STORAGE_REBUILD;

/// A scope whose schema changes again and again is listed after so many times that long.
const MOST_REBUILDS: u32 = 5;
/// Time within which an object of a custom type that is printed differently for a second time is a fault,
/// unless the schema has changed.
const REWRITTEN_AGAIN: Duration = Duration::from_mins(10);

/// The changes of a type's schema, as far as a scope's task knows of them.
#[derive(Debug, Default)]
pub(super) struct ChangedSchema {
    /// The last change.
    changed: Option<Instant>,
    /// The last time that an object came in other bytes.
    rewritten: Option<Instant>,
    relist: Option<SchemaRelist>,
}

/// The list that schema changes ask for.
#[derive(Clone, Copy, Debug)]
struct SchemaRelist {
    /// The moment of the first change since the last such list.
    first: Instant,
    due: Instant,
}

impl ChangedSchema {
    /// Records a change. The scope is to be listed once upstream has taken the schema into use.
    pub(super) fn record_change(&mut self) {
        let now = Instant::now();
        self.changed = Some(now);
        let first = self.relist.map_or(now, |list| list.first);
        let latest = first + MOST_REBUILDS * STORAGE_REBUILD;
        let due = (now + STORAGE_REBUILD).min(latest);
        self.relist = Some(SchemaRelist { first, due });
    }

    /// Returns the moment at which the scope is to be listed, if it is.
    pub(super) fn list_due(&self) -> Option<Instant> {
        self.relist.map(|list| list.due)
    }

    /// Notes that the scope is being listed.
    pub(super) fn begin_list(&mut self) {
        self.relist = None;
    }

    /// Records that an object came in other bytes. Returns `true` if a change of the schema may be
    /// the reason: it may be seen in objects first. If it is not, that happens again.
    pub(super) fn record_rewriting(&mut self) -> bool {
        let is_lately = |at: Instant| at.elapsed() < REWRITTEN_AGAIN;
        let before = self.rewritten.replace(Instant::now());
        let is_again = before.is_some_and(is_lately);
        let is_explained = self.changed.is_some_and(is_lately);
        is_explained || !is_again
    }
}
