//! Old states that clients page through.
use std::collections::VecDeque;
use std::time::Instant;

use super::snapshot::Snapshot;
use watershed_protocol::ResourceVersion;

/// Number of lists that clients can page through at a time without a rebuild of the state for each
/// page.
const MAX_PINS: usize = 16;

/// States at old versions. They share most of their memory with the newest.
#[derive(Debug, Default)]
pub(super) struct Pins {
    states: VecDeque<(Instant, Snapshot)>,
}

impl Pins {
    pub(super) fn get(&self, version: ResourceVersion) -> Option<&Snapshot> {
        self.states
            .iter()
            .map(|(_, state)| state)
            .find(|state| state.version() == version)
    }

    /// Keeps a state. The oldest one is dropped if there are too many.
    pub(super) fn put(&mut self, now: Instant, state: Snapshot) {
        if self.get(state.version()).is_some() {
            return;
        }
        if self.states.len() == MAX_PINS {
            self.states.pop_front();
        }
        self.states.push_back((now, state));
    }

    /// Drops the states that were kept before `oldest`.
    pub(super) fn drop_before(&mut self, oldest: Option<Instant>) {
        if let Some(oldest) = oldest {
            self.states.retain(|(made, _)| *made >= oldest);
        }
    }
}
