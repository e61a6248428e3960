//! Cached scopes: for each a store, and a task that pumps what upstream sends into it.
mod cached;
pub(crate) mod checkpoint;
mod config;
mod creator;
mod derived;
pub mod gauges;
mod handle;
mod key;
pub mod metrics;
mod open_scopes;
mod phase;
mod pump;
mod registry;
mod relief;
mod rollback_monitor;
mod save;
mod schema_changes;
mod self_check;
#[cfg(test)]
mod tests;
mod timeline;
mod unfit;
mod unfolding;

pub use cached::Scope;
pub use checkpoint::{
    CheckpointBody, CheckpointConfig, Checkpoints, ClusterIdentity, MayStore, ReplicaStates,
    StoredPart, checkpoint_media_type, wanted_checkpoint,
};
pub use config::{Derivation, ScopeConfig, ScopeOptions, ScopeOrigin, ScopeShare};
pub use creator::ManagedFieldsPolicy;
pub use handle::ScopeHandle;
pub use key::{ObjectShape, ScopeKey};
pub use phase::{NotReady, ReadyScope, ScopePhase};
pub use registry::{NotAcquired, Scopes};
pub use rollback_monitor::watch_for_rollbacks;
pub use save::{save_finally, save_regularly};
pub use self_check::{DifferenceExcerpt, ObjectDifference, SelfCheck};
pub use timeline::{Question, RollbackEvidence, Timeline, TimelineChanged};
pub use unfolding::Unfolding;

pub(crate) use pump::REOPEN_AFTER;
