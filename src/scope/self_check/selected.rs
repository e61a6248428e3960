//! The check of a scope with selectors, at the version that upstream's watch cache is at.
//!
//! At an exact version, upstream may have to read the whole type to find the few objects that a
//! selector matches. From its watch cache it finds those of a node by an index.
use std::time::Duration;

use watershed_protocol::{FieldRequirement, ResourceVersion, Selection};

use super::difference::ObjectDifference;
use super::look::{Inconclusive, Look, answered, compare_bytes, compare_versions, is_small};
use crate::scope::cached::Scope;
use crate::scope::phase::ReadyScope;
use crate::store::SnapshotAt;
use crate::upstream::{ListedVersions, StateList, StatePage, UpstreamClient};

/// Objects whose names and versions a check compares, on average.
const OBJECTS: usize = 500;
/// Largest scope whose names and versions are compared, in objects.
const MAX_OBJECTS: usize = 5_000;
/// Time for memory to reach the version of upstream's list. A quiet type gets there with its next
/// bookmark.
const CATCH_UP: Duration = Duration::from_secs(75);

/// Compares all names and versions of a scope, and the bytes of one object, or of all small ones. The
/// names of a large scope are not compared each time: upstream's watch cache has no pages.
pub(super) struct SelectedCheck<'a> {
    scope: &'a Scope,
    list: &'a StateList,
    compares_names: bool,
    /// Lists the object whose bytes are compared.
    sample: Option<StateList>,
}

impl<'a> SelectedCheck<'a> {
    /// Prepares a comparison, with the bytes of a random object.
    pub(super) fn new(scope: &'a Scope, list: &'a StateList, client: UpstreamClient) -> Self {
        let snapshot = scope.reader.snapshot();
        let index = fastrand::usize(..snapshot.len().max(1));
        let object = snapshot.items(None).nth(index);
        let sample = object.map(|object| {
            let selection = &scope.key.selection;
            let namespaced = scope.fields.namespaced();
            let name = FieldRequirement::equals("metadata.name", object.attributes.name());
            let only = Selection {
                namespace: namespaced.then(|| object.attributes.namespace().to_owned()),
                labels: selection.labels.clone(),
                fields: selection.fields.and(name),
            };
            StateList::new(client, &scope.key.gvr, &only, namespaced)
        });
        Self {
            scope,
            list,
            compares_names: fastrand::f64() < share_of_names(snapshot.len()),
            sample,
        }
    }

    pub(super) async fn look(&self, ready: &ReadyScope) -> Result<Look, Inconclusive> {
        let held = self.scope.reader.snapshot();
        if is_small(held.items(None)) {
            return self.look_at_objects(ready).await;
        }
        let mut look = Look::default();
        if self.compares_names {
            look.differences = self.look_at_versions().await?;
        }
        if let Some(sample) = &self.sample {
            let snapshot = self.scope.reader.snapshot();
            let page = StatePage::NotOlderThan(snapshot.version());
            let representation = self.scope.key.representation;
            let objects = sample.objects(page, representation, &ready.format);
            let objects = answered(objects).await?.objects;
            // If it has changed meanwhile, its version tells.
            let snapshot = self.scope.reader.snapshot();
            let differences = compare_bytes(&snapshot, &ready.format, &objects);
            look.differences.extend(differences);
        }
        Ok(look)
    }

    /// Compares all objects, by one list of them.
    async fn look_at_objects(&self, ready: &ReadyScope) -> Result<Look, Inconclusive> {
        let reader = &self.scope.reader;
        let reached = reader.event_version();
        let page = StatePage::NotOlderThan(reader.version());
        let representation = self.scope.key.representation;
        let listed = self.list.objects(page, representation, &ready.format);
        let listed = answered(listed).await?;
        let mut differences = self.compare_versions(listed.versions(), reached).await?;
        // Those that have changed meanwhile have other versions.
        let bytes = compare_bytes(&reader.snapshot(), &ready.format, &listed.objects);
        differences.extend(bytes);
        Ok(Look {
            differences,
            ..Look::default()
        })
    }

    async fn look_at_versions(&self) -> Result<Vec<ObjectDifference>, Inconclusive> {
        let reached = self.scope.reader.event_version();
        let page = StatePage::NotOlderThan(self.scope.reader.version());
        let listed = answered(self.list.versions(page)).await?;
        self.compare_versions(listed, reached).await
    }

    /// Compares what upstream listed when events had `reached` this version.
    async fn compare_versions(
        &self,
        upstream: ListedVersions,
        reached: ResourceVersion,
    ) -> Result<Vec<ObjectDifference>, Inconclusive> {
        let reader = &self.scope.reader;
        let mut objects = upstream.objects;
        objects.sort();
        let mut differences = compare_versions(reader.snapshot().items(None), &objects);
        // Equal objects in equal versions are one state, whatever its number.
        if !differences.is_empty() {
            let version = upstream.version;
            if !self.scope.wait_until_version(version, CATCH_UP).await {
                self.scope.lacks_events_after(reached);
                let message = format!("memory did not reach version {version}");
                return Err(Inconclusive::Failed(message));
            }
            let SnapshotAt::Found(state) = reader.state_at(version) else {
                return Err(Inconclusive::Expired);
            };
            let held = state.runs_after(None, None);
            let held: Vec<_> = held.flat_map(|run| run.objects().to_vec()).collect();
            differences = compare_versions(held.iter(), &objects);
        }
        Ok(differences)
    }
}

/// Returns the share of the checks of so many objects that compare their names.
fn share_of_names(objects: usize) -> f64 {
    if objects > MAX_OBJECTS {
        return 0.0;
    }
    OBJECTS as f64 / objects.max(OBJECTS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_larger_scopes_are_compared_less_often() {
        let shares = [0, 500, 1_000, 5_000, 5_001].map(share_of_names);
        let wanted = [1.0, 1.0, 0.5, 0.1, 0.0];
        for (share, wanted) in shares.into_iter().zip(wanted) {
            assert!((share - wanted).abs() < 1e-9, "{shares:?}");
        }
    }
}
