//! States that clients page through, and that the events do not lead back to.
use std::any::Any;
use std::collections::VecDeque;
use std::time::Instant;

use super::snapshot::Snapshot;
use watershed_protocol::ResourceVersion;

/// Upper bound of the replaced objects and leaves that states hold.
const MAX_BYTES: usize = 16 << 20;
/// Memory of a state that has the same objects as the newest one.
const STATE_BYTES: usize = 4 << 10;

/// Dropped with what it is kept with, such as somebody's share.
pub type PinOwner = Box<dyn Any + Send + Sync>;

/// States at versions that no event has. They share most of their memory with the newest.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// By age.
    states: VecDeque<PinnedState>,
    /// Sum of the bytes of all objects and leaves that were replaced, and of all states. What was
    /// added since the oldest state was kept is what all of them can hold at most.
    replaced: usize,
}

/// A state that is kept.
#[derive(Debug)]
pub(super) struct PinnedState {
    made: Instant,
    /// The value of [`Pins::replaced`] then.
    since: usize,
    state: Snapshot,
    _owner: PinOwner,
}

impl Pins {
    pub(super) fn get(&self, version: ResourceVersion) -> Option<&Snapshot> {
        let mut states = self.states.iter().map(|pinned| &pinned.state);
        states.find(|state| state.version() == version)
    }

    /// Keeps a state, unless its version is kept. Returns what is too much now, to be dropped without
    /// the lock.
    pub(super) fn put(
        &mut self,
        now: Instant,
        state: Snapshot,
        owner: PinOwner,
    ) -> Vec<PinnedState> {
        let pinned = PinnedState {
            made: now,
            since: self.replaced,
            state,
            _owner: owner,
        };
        if self.get(pinned.state.version()).is_some() {
            return vec![pinned];
        }
        self.states.push_back(pinned);
        self.record_replaced(STATE_BYTES)
    }

    /// Returns `true` if no state is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Returns the most bytes that the states hold beside the newest state.
    pub(super) fn bytes(&self) -> usize {
        let oldest = self.states.front();
        oldest.map_or(0, |oldest| self.replaced.wrapping_sub(oldest.since))
    }

    /// Records that objects or leaves were replaced, which states may hold. Returns the oldest states
    /// if they hold too much now.
    pub(super) fn record_replaced(&mut self, bytes: usize) -> Vec<PinnedState> {
        self.replaced = self.replaced.wrapping_add(bytes);
        let now = self.replaced;
        self.take_while(|_, since| now.wrapping_sub(since) > MAX_BYTES)
    }

    /// Returns the states that were kept before `oldest`.
    pub(super) fn take_before(&mut self, oldest: Option<Instant>) -> Vec<PinnedState> {
        self.take_while(|made, _| oldest.is_some_and(|oldest| made < oldest))
    }

    fn take_while(&mut self, is_taken: impl Fn(Instant, usize) -> bool) -> Vec<PinnedState> {
        let mut taken = Vec::new();
        while let Some(first) = self.states.front()
            && is_taken(first.made, first.since)
        {
            taken.extend(self.states.pop_front());
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
        assert!(pins.put(now, at(1), Box::new(())).is_empty());
        assert!(pins.record_replaced(MAX_BYTES / 2).is_empty());
        assert!(pins.put(now, at(2), Box::new(())).is_empty());
        let dropped = pins.record_replaced(MAX_BYTES / 2);
        assert_eq!(dropped.len(), 1, "the first holds what was replaced since");
        assert_eq!(pins.bytes(), MAX_BYTES / 2 + STATE_BYTES);
        assert!(pins.get(ResourceVersion(1)).is_none());
        assert!(pins.get(ResourceVersion(2)).is_some());
        for version in 3..10_000 {
            pins.put(now, at(version), Box::new(()));
        }
        assert!(pins.states.len() <= MAX_BYTES / STATE_BYTES);
        assert!(pins.get(ResourceVersion(9_999)).is_some());
    }

    #[test]
    fn an_owner_is_dropped_with_its_state_or_at_once() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let owner = std::sync::Arc::new(());
        for _ in 0..2 {
            drop(pins.put(now, at(1), Box::new(std::sync::Arc::clone(&owner))));
            assert_eq!(std::sync::Arc::strong_count(&owner), 2, "it is kept once");
        }
        drop(pins.take_before(now.checked_add(std::time::Duration::from_secs(1))));
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }
}
