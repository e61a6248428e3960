//! The name of a scope, and the shape of its objects.
use std::sync::Arc;

use watershed_protocol::{FieldTable, GroupVersionResource, Representation, Selection};

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

/// Kind and selectable fields of a type's objects. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectShape {
    /// The kind of the objects.
    pub kind: Arc<str>,
    /// Their selectable fields.
    pub fields: Arc<FieldTable>,
}

impl ObjectShape {
    /// Returns the shape of objects of this kind with these selectable fields.
    pub fn new(kind: impl Into<Arc<str>>, fields: impl Into<Arc<FieldTable>>) -> Self {
        Self {
            kind: kind.into(),
            fields: fields.into(),
        }
    }
}
