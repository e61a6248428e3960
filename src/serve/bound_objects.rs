//! Looks up the objects that service account tokens are bound to in the cache.
use std::sync::Arc;

use crate::access::BoundObjects;
use crate::catalog::Catalog;
use crate::scope::{Scope, ScopeKey, ScopePhase, Scopes};
use watershed_protocol::{
    Encoding, GroupVersionResource, Representation, Selection, object_key, read_identity,
};

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

    /// Returns the scope that holds a whole type as it is now.
    ///
    /// Service accounts are few, and every token is bound to one: their metadata are followed for
    /// this. Pods and others are looked for where clients have them cached.
    fn scope(&self, gvr: &GroupVersionResource) -> Option<Arc<Scope>> {
        let key = |representation| ScopeKey::everything(gvr.clone(), representation);
        let metadata = Representation {
            encoding: Encoding::Protobuf,
            metadata_only: true,
        };
        let [json, protobuf] = [Encoding::Json, Encoding::Protobuf].map(Representation::whole);
        let open =
            [metadata, protobuf, json].map(|representation| self.scopes.get(&key(representation)));
        if let Some(scope) = open.into_iter().flatten().find(|scope| is_current(scope)) {
            return Some(scope);
        }
        if *gvr.resource == *"serviceaccounts" {
            let resource = self.catalog.get(gvr)?;
            self.scopes.open(&key(metadata), &resource.shape);
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
        let gvr = GroupVersionResource::new("", "v1", resource);
        let key = object_key(namespace, name);
        if let Some(scope) = self.scope(&gvr) {
            return Some(lives(&scope, &key, uid).unwrap_or(false));
        }
        // A node's proxy holds the pods of its node. They stay there, and others are elsewhere.
        let of_nodes = self.scopes.selected(&gvr, is_of_node);
        let current = of_nodes.iter().filter(|scope| is_current(scope));
        let found = current.filter_map(|scope| lives(scope, &key, uid));
        found.reduce(|one, other| one && other)
    }
}

/// Returns `true` if these are all pods of one node.
fn is_of_node(selection: &Selection) -> bool {
    let fields = &selection.fields;
    selection.namespace.is_none()
        && selection.labels.is_everything()
        && fields.requirements().len() == 1
        && fields.required_value("spec.nodeName").is_some()
}

/// Returns `true` if a scope has upstream's present state.
fn is_current(scope: &Scope) -> bool {
    scope.upstream.is_delivering()
        && scope.is_current()
        && matches!(scope.phase(), ScopePhase::Ready(_))
}

/// Returns `true` if the object of a key has this unique id and is not being deleted; `None` if the scope
/// has no such object.
fn lives(scope: &Scope, key: &str, uid: &str) -> Option<bool> {
    let snapshot = scope.reader.snapshot();
    let object = snapshot.get(key)?;
    let identity = read_identity(scope.key.representation.encoding, &object.bytes.get());
    Some(identity.is_ok_and(|life| life.uid == uid && !life.is_being_deleted))
}
