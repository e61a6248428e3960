//! States that clients page through, and that the events do not lead back to.
use std::collections::VecDeque;
use std::time::Instant;

use super::snapshot::Snapshot;
use watershed_protocol::ResourceVersion;

/// Upper bound of the bytes that states hold beyond the newest one.
const MAX_BYTES: usize = 16 << 20;
/// Memory of a state that has the same objects as the newest one.
const STATE_BYTES: usize = 4 << 10;

/// States at versions that no event has. They share most of their memory with the newest.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// By age. Each has the value of `replaced` when it was kept.
    states: VecDeque<(Instant, usize, Snapshot)>,
    /// Sum of the bytes of all objects that were replaced, and of all states. What was added since
    /// the oldest state was kept is what all of them can hold at most.
    replaced: usize,
}

impl Pins {
    pub(super) fn get(&self, version: ResourceVersion) -> Option<&Snapshot> {
        self.states
            .iter()
            .map(|(_, _, state)| state)
            .find(|state| state.version() == version)
    }

    /// Keeps a state. Returns those that are too much now.
    pub(super) fn put(&mut self, now: Instant, state: Snapshot) -> Vec<Snapshot> {
        if self.get(state.version()).is_some() {
            return Vec::new();
        }
        self.states.push_back((now, self.replaced, state));
        self.replaced(STATE_BYTES)
    }

    /// Records that an object was replaced, which states may hold. Returns the oldest states if
    /// they hold too much now.
    pub(super) fn replaced(&mut self, bytes: usize) -> Vec<Snapshot> {
        self.replaced = self.replaced.wrapping_add(bytes);
        let now = self.replaced;
        self.take_while(|_, since| now.wrapping_sub(since) > MAX_BYTES)
    }

    /// Returns the states that were kept before `oldest`.
    pub(super) fn take_before(&mut self, oldest: Option<Instant>) -> Vec<Snapshot> {
        self.take_while(|made, _| oldest.is_some_and(|oldest| made < oldest))
    }

    fn take_while(&mut self, is_taken: impl Fn(Instant, usize) -> bool) -> Vec<Snapshot> {
        let mut taken = Vec::new();
        while let Some((made, since, _)) = self.states.front()
            && is_taken(*made, *since)
        {
            taken.extend(self.states.pop_front().map(|(_, _, state)| state));
        }
        taken
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn at(version: u64) -> Snapshot {
        Snapshot::default().at_version(ResourceVersion(version))
    }

    #[test]
    fn states_are_bounded_by_what_they_can_hold() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        assert!(pins.put(now, at(1)).is_empty());
        assert!(pins.replaced(MAX_BYTES / 2).is_empty());
        assert!(pins.put(now, at(2)).is_empty());
        let dropped = pins.replaced(MAX_BYTES / 2);
        assert_eq!(dropped.len(), 1, "the first holds what was replaced since");
        assert!(pins.get(ResourceVersion(1)).is_none());
        assert!(pins.get(ResourceVersion(2)).is_some());
        for version in 3..10_000 {
            pins.put(now, at(version));
        }
        assert!(pins.states.len() <= MAX_BYTES / STATE_BYTES);
        assert!(pins.get(ResourceVersion(9_999)).is_some());
    }
}
