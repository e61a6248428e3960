//! Looks up the objects that service account tokens are bound to in the cache.
use std::sync::Arc;

use crate::access::BoundObjects;
use crate::catalog::Catalog;
use crate::scope::{Scope, ScopeKey, ScopePhase, Scopes};
use watershed_protocol::{Encoding, GroupVersionResource, Representation, read_identity};

/// Objects in open scopes.
pub struct CachedObjects {
    catalog: Catalog,
    scopes: Scopes,
}

impl CachedObjects {
    /// Creates a lookup in these scopes.
    pub fn new(catalog: Catalog, scopes: Scopes) -> Self {
        Self { catalog, scopes }
    }

    /// Begins to follow service accounts. Every token is bound to one.
    pub fn follow_accounts(&self) {
        self.scope(&GroupVersionResource::new("", "v1", "serviceaccounts"));
    }

    /// A scope that has the type's present state. Service accounts are few, and every token is
    /// bound to one: their metadata are followed for this; pods and others are looked at where
    /// clients have them cached.
    fn scope(&self, gvr: &GroupVersionResource) -> Option<Arc<Scope>> {
        let key = |representation| ScopeKey::everything(gvr.clone(), representation);
        let metadata = Representation {
            encoding: Encoding::Protobuf,
            metadata_only: true,
        };
        let current = |scope: &Arc<Scope>| {
            scope.upstream.is_delivering()
                && scope.is_current()
                && matches!(scope.phase(), ScopePhase::Ready(_))
        };
        let [json, protobuf] = [Encoding::Json, Encoding::Protobuf].map(Representation::whole);
        let open =
            [metadata, protobuf, json].map(|representation| self.scopes.get(&key(representation)));
        if let Some(scope) = open.into_iter().flatten().find(current) {
            return Some(scope);
        }
        if *gvr.resource == *"serviceaccounts" {
            let resource = self.catalog.get(gvr)?;
            self.scopes
                .open(&key(metadata), &resource.kind, &resource.fields);
        }
        None
    }
}

impl BoundObjects for CachedObjects {
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Option<bool> {
        let scope = self.scope(&GroupVersionResource::new("", "v1", resource))?;
        let key = namespace.map_or_else(
            || name.to_owned(),
            |namespace| format!("{namespace}/{name}"),
        );
        let snapshot = scope.reader.snapshot();
        let Some(object) = snapshot.get(&key) else {
            return Some(false);
        };
        let life = read_identity(scope.key.representation.encoding, &object.bytes.get()).ok()?;
        Some(life.uid == uid && !life.is_being_deleted)
    }
}
