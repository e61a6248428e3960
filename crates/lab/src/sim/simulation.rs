//! The parts of the simulated API server that all requests work on.
use std::sync::Arc;

use super::access::AccessRules;
use super::faults::Faults;
use super::options::Options;
use super::state::ClusterState;
use super::stats::Stats;

/// The parts of the simulated API server that all requests work on.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) options: Options,
    pub(crate) state: Arc<ClusterState>,
    pub(crate) access: AccessRules,
    pub(crate) faults: Faults,
    pub(crate) stats: Stats,
}

impl Simulation {
    /// Returns a simulation without objects.
    pub(crate) fn new(options: Options) -> Self {
        let state = Arc::new(ClusterState::new(options.history, options.seed));
        Self {
            access: AccessRules::of(&state),
            state,
            faults: Faults::default(),
            stats: Stats::default(),
            options,
        }
    }
}
