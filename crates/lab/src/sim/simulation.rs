//! The parts of the simulated API server that all requests work on.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::access::AccessRules;
use super::faults::Faults;
use super::options::Options;
use super::state::{ClusterState, TypeView};
use super::stats::Stats;

/// The parts of the simulated API server that all requests work on.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) options: Options,
    pub(crate) state: Arc<ClusterState>,
    pub(crate) access: AccessRules,
    pub(crate) faults: Faults,
    pub(crate) stats: Stats,
    /// JSON documents by path, beside those of discovery.
    pub(crate) documents: RwLock<BTreeMap<String, String>>,
}

impl Simulation {
    /// Returns a simulation without objects.
    pub(crate) fn new(options: Options) -> Self {
        let state = Arc::new(ClusterState::new(options.history, options.seed));
        Self::of(state, options)
    }

    /// Returns a simulation of the objects of another.
    pub(crate) fn of(state: Arc<ClusterState>, options: Options) -> Self {
        Self {
            access: AccessRules::of(&state),
            state,
            faults: Faults::default(),
            stats: Stats::default(),
            documents: RwLock::default(),
            options,
        }
    }

    /// Returns the state that reads of any version get.
    pub(crate) fn cached_view(&self, index: usize) -> TypeView {
        match self.faults.active().behind_milliseconds {
            0 => self.state.view(index),
            by => self.state.view_behind(index, Duration::from_millis(by)),
        }
    }
}
