//! The types that a log shows: without a cluster, nothing else tells which there are.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::Request;
use watershed_protocol::{FieldTable, GroupVersionResource, RequestInfo, TablePrinter, Verb};

use crate::catalog::{Catalog, ResourceType};
use crate::scope::ObjectShape;

/// Upper bound of types. Clusters have hundreds.
const MAX_TYPES: usize = 4096;
/// The suffix of groups that another server answers for.
const AGGREGATED: &str = "metrics.k8s.io";
/// A type that can be listed and not watched.
const NOT_WATCHABLE: &str = "componentstatuses";

/// Learns types from requests that succeeded.
#[derive(Default)]
pub(super) struct KnownTypes {
    pub(super) catalog: Catalog,
    /// True for types whose objects live in namespaces; `None` while that is unknown.
    scopes: HashMap<GroupVersionResource, Option<bool>>,
    /// Groups and versions whose documents were read.
    documents: HashSet<(String, String)>,
}

impl KnownTypes {
    /// Learns from a request that upstream did not refuse.
    pub(super) fn learn(&mut self, request: &Request<()>) {
        // Not all that are known are in the catalog.
        if self.catalog.len().max(self.scopes.len()) >= MAX_TYPES {
            return;
        }
        let uri = request.uri();
        let info = RequestInfo::parse(request.method(), uri.path(), uri.query());
        match info.resource {
            Some(asked) => {
                if !is_followed(&asked.gvr) {
                    return;
                }
                let namespaced = match info.verb {
                    _ if *asked.gvr.resource == *"namespaces" => Some(false),
                    _ if asked.namespace.is_some() => Some(true),
                    Verb::Get | Verb::Update | Verb::Patch | Verb::Delete | Verb::Create => {
                        Some(false)
                    }
                    _ => None,
                };
                self.add(asked.gvr, namespaced);
            }
            None => self.learn_group(uri.path()),
        }
    }

    /// Adds a type. One whose objects were only read over all namespaces may have namespaces.
    fn add(&mut self, gvr: GroupVersionResource, namespaced: Option<bool>) {
        if let Some(known) = self.scopes.get(&gvr)
            && (known.is_some() || namespaced.is_none())
        {
            return;
        }
        let is_namespaced = namespaced.unwrap_or(true);
        let (fields, printer) = if is_built_in(&gvr.group) {
            let fields = FieldTable::builtin(&gvr, is_namespaced);
            (fields, TablePrinter::builtin(&gvr))
        } else {
            let fields = FieldTable::custom(is_namespaced, &[]);
            (Some(fields), TablePrinter::custom(&[]))
        };
        self.scopes.insert(gvr.clone(), namespaced);
        if let Some(fields) = fields {
            self.catalog.insert(ResourceType {
                shape: ObjectShape::new(Arc::clone(&gvr.resource), fields),
                gvr,
                namespaced: is_namespaced,
                printer,
            });
        }
    }

    /// Adds a group whose document exists. A type without a name stands for its types, which may
    /// not be in the log.
    fn learn_group(&mut self, path: &str) {
        let path = path.strip_prefix("/openapi/v3").unwrap_or(path);
        let segments: Vec<_> = path.split('/').collect();
        let (group, version) = match segments[..] {
            ["", "api", version] => ("", version),
            ["", "apis", group] => (group, ""),
            ["", "apis", group, version] => (group, version),
            _ => return,
        };
        let gvr = GroupVersionResource::new(group, version, "");
        let name = (group.to_owned(), version.to_owned());
        if is_followed(&gvr) && self.documents.insert(name) {
            let fields = FieldTable::metadata_only(false);
            self.catalog.insert(ResourceType {
                shape: ObjectShape::new(Arc::clone(&gvr.resource), fields),
                gvr,
                namespaced: false,
                printer: None,
            });
        }
    }
}

fn is_followed(gvr: &GroupVersionResource) -> bool {
    !gvr.group.ends_with(AGGREGATED) && *gvr.resource != *NOT_WATCHABLE
}

/// Returns `true` for groups that may be compiled into kube-apiserver. Definitions of custom types
/// in groups of k8s.io have no fields that would differ.
pub(super) fn is_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_learned_with_their_namespaces() {
        let mut known = KnownTypes::default();
        let mut learn = |method: &str, path: &str| {
            known.learn(
                &Request::builder()
                    .method(method)
                    .uri(path)
                    .body(())
                    .unwrap(),
            );
            let info = RequestInfo::parse(&http::Method::GET, path, None);
            let resource = known.catalog.get(&info.resource?.gvr)?;
            Some(resource.namespaced)
        };
        assert_eq!(learn("GET", "/api/v1/nodes"), Some(true));
        assert_eq!(learn("GET", "/api/v1/nodes/a"), Some(false));
        assert_eq!(learn("GET", "/api/v1/nodes"), Some(false));
        assert_eq!(
            learn("GET", "/apis/example.org/v1/namespaces/a/things"),
            Some(true)
        );
        assert_eq!(learn("GET", "/apis/example.org/v1/things"), Some(true));
        assert_eq!(learn("GET", "/api/v1/namespaces/a"), Some(false));
        assert_eq!(learn("GET", "/api/v1/componentstatuses"), None);
        assert_eq!(learn("GET", "/apis/metrics.k8s.io/v1beta1/nodes"), None);
        learn("GET", "/apis/policy/v1");
        learn("GET", "/openapi/v3/apis/batch/v1");
        assert!(known.catalog.has("policy", Some("v1")) && known.catalog.has("batch", None));
        assert!(!known.catalog.has("metrics.k8s.io", None));
    }

    #[test]
    fn the_number_of_types_is_bounded() {
        let mut known = KnownTypes::default();
        for number in 0..MAX_TYPES + 10 {
            known.learn(
                &Request::get(format!("/apis/g{number}/v1/things"))
                    .body(())
                    .unwrap(),
            );
        }
        assert_eq!(known.catalog.len(), MAX_TYPES);
        let mut known = KnownTypes::default();
        for number in 0..MAX_TYPES + 10 {
            // A version whose fields are not known, so that the catalog has no such type.
            let path = format!("/apis/batch/v{}/jobs", number + 100);
            known.learn(&Request::get(path).body(()).unwrap());
        }
        assert_eq!(known.scopes.len(), MAX_TYPES);
    }
}
