//! The states from which a scope may begin instead of with a list.
use std::sync::Arc;

use crate::budget::MemoryBudget;
use crate::scope::cached::Scope;
use crate::scope::checkpoint::{Checkpoints, ReplicaStates, StoredScope};
use crate::scope::metrics;

/// The places where states of earlier may be found. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(in crate::scope) struct EarlierStates {
    pub(in crate::scope) checkpoints: Option<Checkpoints>,
    pub(in crate::scope) replica: Option<ReplicaStates>,
}

/// The origin of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateOrigin {
    /// A checkpoint of this process or one before it.
    Disk,
    /// Another replica.
    Replica,
}

impl StateOrigin {
    /// Returns the words for the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "a checkpoint",
            Self::Replica => "another replica",
        }
    }

    /// Counts a scope that began with such a state.
    pub(super) fn count(self, result: &'static str) {
        match self {
            Self::Disk => metrics::checkpoint_read(result),
            Self::Replica => metrics::replica_state(result),
        }
    }
}

impl EarlierStates {
    /// Returns a state of a scope that may be used, if there is one. What is on disk costs nobody
    /// else anything.
    pub(super) async fn find(
        &self,
        scope: &Arc<Scope>,
        budget: &MemoryBudget,
    ) -> Option<(StateOrigin, StoredScope)> {
        if let Some(checkpoints) = &self.checkpoints
            && let Some(stored) = checkpoints.read(scope, budget.begin_load()).await
        {
            return Some((StateOrigin::Disk, stored));
        }
        let replica = self.replica.as_ref()?;
        let stored = replica.take(scope, budget).await?;
        Some((StateOrigin::Replica, stored))
    }
}
