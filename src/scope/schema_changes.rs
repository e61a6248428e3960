//! Recent schema changes, for scopes that are opened just after them.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use watershed_protocol::GroupVersionResource;

/// After a schema change an API server builds the type's storage anew, within about a second. It may
/// have ended our watch before the change was seen here, so a scope is listed again after this.
pub(super) const STORAGE_REBUILD: Duration = Duration::from_secs(2);

/// The types whose schema has just changed. Cheap to clone.
///
/// An API server may still list and watch them by their old schema.
#[derive(Clone, Default)]
pub(super) struct SchemaChanges(Arc<Mutex<HashMap<GroupVersionResource, Instant>>>);

impl SchemaChanges {
    /// Notes that the schema of a type has changed, and forgets the changes that are long past.
    pub(super) fn record(&self, gvr: &GroupVersionResource) {
        let mut changes = self.0.lock();
        changes.retain(|_, changed| is_recent(*changed));
        changes.insert(gvr.clone(), Instant::now());
    }

    /// Returns `true` if the schema of a type has just changed.
    pub(super) fn has_just_changed(&self, gvr: &GroupVersionResource) -> bool {
        let changes = self.0.lock();
        changes.get(gvr).is_some_and(|changed| is_recent(*changed))
    }
}

fn is_recent(changed: Instant) -> bool {
    changed.elapsed() < STORAGE_REBUILD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_are_forgotten_once_storages_are_built() {
        let changes = SchemaChanges::default();
        let [old, new] =
            ["widgets", "gadgets"].map(|name| GroupVersionResource::new("x.io", "v1", name));
        changes.record(&old);
        assert!(changes.has_just_changed(&old) && !changes.has_just_changed(&new));
        tokio::time::advance(STORAGE_REBUILD).await;
        assert!(!changes.has_just_changed(&old));
        changes.record(&new);
        assert_eq!(changes.0.lock().len(), 1);
    }
}
