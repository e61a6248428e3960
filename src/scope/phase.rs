//! The phases of a scope's life.
use std::sync::Arc;

use http::HeaderValue;
use watershed_protocol::WireFormat;

use crate::upstream::Stopped;

/// A phase of a scope's life.
#[derive(Clone, Debug)]
pub enum ScopePhase {
    /// The first list is under way.
    Syncing,
    /// Nothing is held, and requests do not wait for it: the first list failed and is tried again,
    /// or upstream has another history and is listed again.
    Failing,
    /// Reads can be answered.
    Ready(Arc<ReadyScope>),
    /// Upstream was not followed for longer than allowed. It may be ready again without a list.
    Stale(Arc<ReadyScope>),
    /// Its objects were not upstream's. It is listed again.
    Quarantined,
    /// The type's schema changed, so that upstream may return the same versions in other bytes. It is
    /// listed again once upstream has taken the schema into use.
    SchemaChanged,
    /// The scope cannot be cached for now.
    Stopped(Stopped),
}

/// Properties of a type that its first list showed.
#[derive(Debug)]
pub struct ReadyScope {
    /// The form in which upstream frames lists and events of the type.
    pub format: Arc<WireFormat>,
    /// True if upstream serves sendInitialEvents for the type.
    pub streams_initial_events: bool,
    /// Upstream's Warning headers on reads of the type, for example of its deprecation.
    pub warnings: Vec<HeaderValue>,
}

/// The reason why a scope cannot answer now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotReady {
    /// The first list is still under way.
    #[error("the first list is not complete yet")]
    Syncing,
    /// Upstream was not followed for longer than allowed.
    #[error("it is older than allowed")]
    Stale,
    /// The scope's objects were not upstream's.
    #[error("its objects differed from upstream's")]
    Quarantined,
    /// The type's schema changed a moment ago.
    #[error("the type's schema changed a moment ago")]
    SchemaChanged,
    /// Upstream does not let the scope be cached.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
