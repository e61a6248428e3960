//! The events of a window by the objects they changed.
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

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

/// The place of an event in the order, which is searched for without a key.
trait EventPlace {
    fn place(&self) -> (&str, ResourceVersion);
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
        let place: &dyn EventPlace = &(event.object.key(), event.version);
        self.0.remove(place);
    }

    /// Returns the first change after `version` of the object with this key, or of the next object
    /// that has one. Looks no further than `is_within` allows.
    pub(super) fn first_from(
        &self,
        key: &str,
        version: ResourceVersion,
        is_within: impl Fn(&str) -> bool,
    ) -> Option<&Arc<WindowEvent>> {
        self.find((key, ResourceVersion::default()), version, is_within)
    }

    /// Returns the first change after `version` of the next object behind this key that has one.
    /// Looks no further than `is_within` allows.
    pub(super) fn first_behind(
        &self,
        key: &str,
        version: ResourceVersion,
        is_within: impl Fn(&str) -> bool,
    ) -> Option<&Arc<WindowEvent>> {
        self.find((key, ResourceVersion(u64::MAX)), version, is_within)
    }

    fn find(
        &self,
        (key, from): (&str, ResourceVersion),
        version: ResourceVersion,
        is_within: impl Fn(&str) -> bool,
    ) -> Option<&Arc<WindowEvent>> {
        let mut found = self.next(key, from)?;
        while is_within(found.object.key()) {
            if found.version > version {
                return Some(found);
            }
            // Events up to the version are passed over, all those of one object at once.
            found = self.next(found.object.key(), ResourceVersion(version.0 + 1))?;
        }
        None
    }

    fn next(&self, key: &str, version: ResourceVersion) -> Option<&Arc<WindowEvent>> {
        let place: &dyn EventPlace = &(key, version);
        self.0.get_next(place).map(|(_, event)| event)
    }
}

impl EventPlace for (&str, ResourceVersion) {
    fn place(&self) -> (&str, ResourceVersion) {
        *self
    }
}

impl EventPlace for EventKey {
    fn place(&self) -> (&str, ResourceVersion) {
        (self.object.key(), self.version)
    }
}

impl<'a> Borrow<dyn EventPlace + 'a> for EventKey {
    fn borrow(&self) -> &(dyn EventPlace + 'a) {
        self
    }
}

impl PartialEq for dyn EventPlace + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn EventPlace + '_ {}

impl PartialOrd for dyn EventPlace + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn EventPlace + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
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
