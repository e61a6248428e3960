//! The events of a window by the objects they changed.
use std::cmp::Ordering;
use std::sync::Arc;

use equivalent::{Comparable, Equivalent};
use imbl::OrdMap;
use watershed_protocol::{ObjectAttributes, ResourceVersion};

use super::event::WindowEvent;

/// Events in the order of their objects' keys, and of one object in the order of their versions.
///
/// It finds the changes of some objects without a look at those of others. Cloning costs O(1).
///
/// It is a map by keys and no set of events: inner nodes of the tree keep copies of keys that were
/// removed long ago. An event among these would stay in memory as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangesByKey(OrdMap<EventKey, Arc<WindowEvent>>);

#[derive(Clone, Debug)]
struct EventKey {
    object: ObjectAttributes,
    version: ResourceVersion,
}

/// The place of an event in the order, by which it is searched for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EventPlace<'a> {
    object: &'a str,
    version: ResourceVersion,
}

impl EventKey {
    fn place(&self) -> EventPlace<'_> {
        EventPlace {
            object: self.object.key(),
            version: self.version,
        }
    }
}

impl ChangesByKey {
    pub(super) fn insert(&mut self, event: &Arc<WindowEvent>) {
        let key = EventKey {
            object: event.object.attributes.clone(),
            version: event.version,
        };
        self.0.insert(key, Arc::clone(event));
    }

    pub(super) fn remove(&mut self, event: &Arc<WindowEvent>) {
        self.0.remove(&EventPlace {
            object: event.object.key(),
            version: event.version,
        });
    }

    /// Returns the first change after `version` of the object with this key, or of the next object
    /// that has one. Looks no further than `is_within` allows.
    pub(super) fn first_from(
        &self,
        key: &str,
        version: ResourceVersion,
        is_within: impl Fn(&str) -> bool,
    ) -> Option<&Arc<WindowEvent>> {
        let from = EventPlace {
            object: key,
            version: ResourceVersion::default(),
        };
        self.find(from, version, is_within)
    }

    /// Returns the first change after `version` of the next object behind this key that has one.
    /// Looks no further than `is_within` allows.
    pub(super) fn first_behind(
        &self,
        key: &str,
        version: ResourceVersion,
        is_within: impl Fn(&str) -> bool,
    ) -> Option<&Arc<WindowEvent>> {
        let from = EventPlace {
            object: key,
            version: ResourceVersion(u64::MAX),
        };
        self.find(from, version, is_within)
    }

    fn find(
        &self,
        from: EventPlace<'_>,
        version: ResourceVersion,
        is_within: impl Fn(&str) -> bool,
    ) -> Option<&Arc<WindowEvent>> {
        let mut found = self.next(from)?;
        while is_within(found.object.key()) {
            if found.version > version {
                return Some(found);
            }
            // Events up to the version are passed over, all those of one object at once.
            found = self.next(EventPlace {
                object: found.object.key(),
                version: ResourceVersion(version.0 + 1),
            })?;
        }
        None
    }

    fn next(&self, from: EventPlace<'_>) -> Option<&Arc<WindowEvent>> {
        self.0.get_next(&from).map(|(_, event)| event)
    }
}

impl Equivalent<EventKey> for EventPlace<'_> {
    fn equivalent(&self, key: &EventKey) -> bool {
        *self == key.place()
    }
}

impl Comparable<EventKey> for EventPlace<'_> {
    fn compare(&self, key: &EventKey) -> Ordering {
        self.cmp(&key.place())
    }
}

impl PartialEq for EventKey {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for EventKey {}

impl PartialOrd for EventKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EventKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}
