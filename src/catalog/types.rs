//! The types known now.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use watershed_protocol::{GroupVersionResource, TablePrinter};

use crate::scope::ObjectShape;

/// One listable and watchable type.
#[derive(Debug)]
pub struct ResourceType {
    /// Its name.
    pub gvr: GroupVersionResource,
    /// The kind of its objects, and their selectable fields.
    pub shape: ObjectShape,
    /// True if its objects live in namespaces.
    pub namespaced: bool,
    /// The printer of its Tables, if they can be printed here.
    pub printer: Option<TablePrinter>,
}

/// The types known at a moment.
pub(super) type Types = HashMap<GroupVersionResource, Arc<ResourceType>>;

/// The types known now. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub(super) types: Arc<ArcSwap<Types>>,
    pub(super) settled: Arc<AtomicBool>,
    pub(super) read: Arc<AtomicBool>,
}

impl Catalog {
    /// Creates a catalog of these types, as if discovery had named them.
    pub fn of(types: impl IntoIterator<Item = ResourceType>) -> Self {
        let catalog = Self::default();
        let types = types.into_iter().map(Arc::new);
        let types = types.map(|it| (it.gvr.clone(), it)).collect();
        catalog.types.store(Arc::new(types));
        catalog.read.store(true, Ordering::Relaxed);
        catalog
    }

    /// Adds a type, or replaces it.
    pub fn insert(&self, resource: ResourceType) {
        let mut types = Types::clone(&self.types.load());
        types.insert(resource.gvr.clone(), Arc::new(resource));
        self.types.store(Arc::new(types));
    }

    /// Returns the type with this name, if it can be listed and watched.
    pub fn get(&self, gvr: &GroupVersionResource) -> Option<Arc<ResourceType>> {
        self.types.load().get(gvr).cloned()
    }

    /// Returns `true` if the type still has these selectable fields.
    pub fn is_current(&self, resource: &ResourceType) -> bool {
        let now = self.get(&resource.gvr);
        now.is_some_and(|now| now.shape.fields == resource.shape.fields)
    }

    /// Returns `true` if a type of this group, in this version or in any, is known.
    pub fn has(&self, group: &str, version: Option<&str>) -> bool {
        let is = |gvr: &GroupVersionResource| {
            *gvr.group == *group && version.is_none_or(|version| *gvr.version == *version)
        };
        self.types.load().keys().any(is)
    }

    /// Returns `true` if a type of this name is known, in any version.
    pub fn has_resource(&self, group: &str, resource: &str) -> bool {
        self.types
            .load()
            .keys()
            .any(|gvr| *gvr.group == *group && *gvr.resource == *resource)
    }

    /// Returns every type known, in no order.
    pub fn all(&self) -> Vec<Arc<ResourceType>> {
        self.types.load().values().cloned().collect()
    }

    /// Returns the types of this name, in all their versions.
    pub fn of_name(&self, group: &str, resource: &str) -> Vec<Arc<ResourceType>> {
        let types = self.types.load();
        let found = types
            .values()
            .filter(|it| *it.gvr.group == *group && *it.gvr.resource == *resource);
        found.cloned().collect()
    }

    /// Returns the number of types.
    pub fn len(&self) -> usize {
        self.types.load().len()
    }

    /// Returns `true` if no types are known: upstream has not answered yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if discovery was read. Until then, types that are not known may exist.
    pub fn is_read(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }

    /// Returns `true` if the custom types are known, too, as far as the proxy may know them.
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }
}
