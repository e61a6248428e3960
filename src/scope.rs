//! Cached scopes: for each a store, and a task that pumps what upstream sends into it.
mod cached;
mod collect;
mod config;
mod continuity;
mod finish;
pub mod gauges;
mod handle;
mod history_check;
mod idle;
mod key;
pub mod metrics;
mod open_scopes;
mod phase;
mod pump;
mod registry;
mod release;
mod reprint;
mod rollback_monitor;
mod self_check;
mod staleness;
mod streaming;
#[cfg(test)]
mod tests;
mod timeline;
mod version_waiters;

pub use cached::Scope;
pub use config::{Retention, ScopeConfig};
pub use handle::ScopeHandle;
pub use key::ScopeKey;
pub use phase::{NotReady, ReadyScope, ScopePhase};
pub(crate) use pump::REOPEN_AFTER;
pub use registry::Scopes;
pub use rollback_monitor::watch_for_rollbacks;
pub use self_check::SelfCheck;
pub use timeline::{Question, RollbackEvidence, Timeline, TimelineChanged};
