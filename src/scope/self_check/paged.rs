//! The check of a scope without selectors: page by page, at exactly the scope's version.
//!
//! A scope whose watch brings nothing, not even bookmarks, stays at a version at which upstream always
//! agrees, until it drops it. So it is compared with upstream's newest state as well. A difference shows
//! that an event is due, and may be on its way: the watch is opened again if none comes.
use std::sync::Arc;

use watershed_protocol::ResourceVersion;

use super::look::{Inconclusive, Look, answered, compare_bytes, compare_versions, is_small};
use crate::scope::cached::Scope;
use crate::scope::phase::ReadyScope;
use crate::store::{Snapshot, StoredObject};
use crate::upstream::{ListedVersions, StateList, StatePage};

/// Objects of a page.
const PAGE: usize = 500;
/// Bytes of a page's objects in memory. Their metadata, which upstream sends, are fewer.
const PAGE_BYTES: usize = 8 << 20;
/// Objects whose bytes are compared.
const SAMPLE: usize = 10;
/// Bytes of these objects, unless the first alone has more.
const SAMPLE_BYTES: usize = 64 << 10;

/// Compares one page of a scope. Keys are relative to the scope's namespace, if it has one.
pub(super) struct PagedCheck<'a> {
    scope: &'a Scope,
    list: &'a StateList,
    /// The page begins behind this key.
    after: Option<String>,
    /// The objects whose bytes are compared begin behind this key.
    sample_after: Option<String>,
}

impl<'a> PagedCheck<'a> {
    /// Prepares a comparison of the page behind `after`, and of a few objects from a random place
    /// in it.
    pub(super) fn new(scope: &'a Scope, list: &'a StateList, after: Option<String>) -> Self {
        let snapshot = scope.reader.snapshot();
        let mut check = Self {
            scope,
            list,
            sample_after: after.clone(),
            after,
        };
        let page = check.objects_after(&snapshot, check.after.as_deref(), PAGE, PAGE_BYTES);
        if let Some(index) = fastrand::usize(..page.len().max(1)).checked_sub(1) {
            check.sample_after = Some(check.relative(page[index].key()).to_owned());
        }
        check
    }

    pub(super) async fn look(&self, ready: &ReadyScope) -> Result<Look, Inconclusive> {
        let snapshot = self.scope.reader.snapshot();
        let after = self.after.as_deref();
        let page = self.objects_after(&snapshot, after, PAGE, PAGE_BYTES);
        let representation = self.scope.key.representation;
        let listed = StatePage::Exact {
            version: snapshot.version(),
            after,
            // One more than memory has, to see one that it lacks.
            limit: page.len() + 1,
        };
        if is_small(page.iter()) {
            let listed = self.list.objects(listed, representation, &ready.format);
            let listed = answered(listed).await?;
            let mut look = self.compare(&snapshot, &listed.versions())?;
            let differences = compare_bytes(&snapshot, &ready.format, &listed.objects);
            look.differences.extend(differences);
            return Ok(look);
        }
        let versions = self.list.versions(listed);
        let mut look = self.compare(&snapshot, &answered(versions).await?)?;
        let sample_after = self.sample_after.as_deref();
        let sample = self.objects_after(&snapshot, sample_after, SAMPLE, SAMPLE_BYTES);
        if !sample.is_empty() {
            let page = StatePage::Exact {
                version: snapshot.version(),
                after: sample_after,
                limit: sample.len(),
            };
            let objects = self.list.objects(page, representation, &ready.format);
            let objects = answered(objects).await?.objects;
            let differences = compare_bytes(&snapshot, &ready.format, &objects);
            look.differences.extend(differences);
        }
        Ok(look)
    }

    /// Compares the names and versions of the page with upstream's newest state, where the scope's own tells
    /// nothing. Equal objects in equal versions are one state, whatever its number.
    pub(super) async fn look_at_newest(&self) -> Result<Look, Inconclusive> {
        let reader = &self.scope.reader;
        // Before the state, so that an event in between is no difference that is due.
        let reached = reader.event_version();
        let snapshot = reader.snapshot();
        let newest = answered(self.list.versions(StatePage::Newest)).await?;
        let after = self.after.as_deref();
        let listed = StatePage::Exact {
            version: newest.version,
            after,
            limit: self.objects_after(&snapshot, after, PAGE, PAGE_BYTES).len() + 1,
        };
        let look = self.compare(&snapshot, &answered(self.list.versions(listed)).await?)?;
        if look.differences.is_empty() {
            return Ok(look);
        }
        self.scope.lacks_events_after(reached);
        Err(Inconclusive::Behind)
    }

    fn compare(
        &self,
        snapshot: &Snapshot,
        upstream: &ListedVersions,
    ) -> Result<Look, Inconclusive> {
        let objects: &[(String, ResourceVersion)] = &upstream.objects;
        if !objects.is_sorted_by(|one, next| one.0 < next.0) {
            let message = "upstream's list is not in the order of keys";
            return Err(Inconclusive::Failed(message.to_owned()));
        }
        let last = objects.last().filter(|_| upstream.has_more);
        if upstream.has_more && last.is_none() {
            let message = "upstream's page has no objects and is not the last";
            return Err(Inconclusive::Failed(message.to_owned()));
        }
        let namespace = self.scope.key.selection.namespace.as_deref();
        let memory = snapshot
            .items_after(namespace, self.after.as_deref())
            .take_while(|object| last.is_none_or(|(last, _)| object.key() <= last.as_str()));
        let differences = compare_versions(memory, objects);
        let next = last.map(|(key, _)| self.relative(key).to_owned());
        let mut behind = snapshot.items_after(namespace, next.as_deref());
        let counts_differ = next.is_some()
            && upstream
                .remaining
                .is_some_and(|count| count != behind.by_ref().count() as u64);
        Ok(Look {
            differences,
            next,
            counts_differ,
        })
    }

    /// Returns the first objects behind a key, up to one that goes beyond `bytes`.
    fn objects_after(
        &self,
        snapshot: &Snapshot,
        after: Option<&str>,
        limit: usize,
        bytes: usize,
    ) -> Vec<Arc<StoredObject>> {
        let namespace = self.scope.key.selection.namespace.as_deref();
        let mut left = Some(bytes);
        snapshot
            .items_after(namespace, after)
            .take(limit)
            .take_while(|object| {
                let fits = left.is_some();
                left = left.and_then(|left| left.checked_sub(object.bytes.len()));
                fits
            })
            .cloned()
            .collect()
    }

    /// Returns a key as a continue token names it.
    fn relative<'k>(&self, key: &'k str) -> &'k str {
        let namespace = self.scope.key.selection.namespace.as_deref();
        namespace
            .and_then(|namespace| key.strip_prefix(namespace)?.strip_prefix('/'))
            .unwrap_or(key)
    }
}
