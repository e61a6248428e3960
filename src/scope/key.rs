//! The name of a scope.
use std::sync::Arc;

use watershed_protocol::{GroupVersionResource, Representation, Selection};

/// The objects a scope covers: those of a type, or some of them, in one representation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScopeKey {
    /// The type.
    pub gvr: GroupVersionResource,
    /// The selection of its objects.
    pub selection: Arc<Selection>,
    /// The representation the objects are held in, and no more of them than that.
    pub representation: Representation,
}

impl ScopeKey {
    /// Returns the key of all objects of a type.
    pub fn everything(gvr: GroupVersionResource, representation: Representation) -> Self {
        Self {
            gvr,
            selection: Arc::default(),
            representation,
        }
    }
}
