//! The parts of the simulated API server that all requests work on.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::access::AccessRules;
use super::faults::Faults;
use super::kinds::KINDS;
use super::options::Options;
use super::state::{ClusterState, TypeView};
use super::stats::Stats;
use super::status::Failure;

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

    /// Waits for a version, as the watch cache does. etcd is asked once only.
    ///
    /// # Errors
    /// The version is not there yet.
    pub(crate) async fn reach(&self, index: usize, version: u64) -> Result<(), Failure> {
        if !KINDS[index].has_watch_cache {
            let present = self.state.version();
            return if version <= present {
                Ok(())
            } else {
                Err(Failure::too_large_for_etcd(version, present))
            };
        }
        if self
            .state
            .reached(version, self.options.fresh_timeout)
            .await
        {
            Ok(())
        } else {
            let present = self.state.view(index).version;
            Err(Failure::too_large(version, present))
        }
    }

    /// Returns the state that reads get which accept any from a version on, once that is reached.
    pub(crate) fn view_from(&self, index: usize, version: u64) -> TypeView {
        let view = self.cached_view(index);
        if view.version < version {
            self.state.fresh_view(index)
        } else {
            view
        }
    }

    /// Returns the state that reads of any version get.
    pub(crate) fn cached_view(&self, index: usize) -> TypeView {
        if !KINDS[index].has_watch_cache {
            return self.state.fresh_view(index);
        }
        match self.faults.active().behind_milliseconds {
            0 => self.state.view(index),
            by => self.state.view_behind(index, Duration::from_millis(by)),
        }
    }
}
