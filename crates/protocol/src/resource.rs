//! Names of resource types.
use std::fmt;
use std::sync::Arc;

/// The groups that are compiled into kube-apiserver.
/// Source: `kubernetes/pkg/controlplane/instance.go` (the default API resource configuration).
const BUILT_IN: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Returns `true` for the groups that are compiled into kube-apiserver.
pub fn is_built_in_group(group: &str) -> bool {
    BUILT_IN.contains(&group)
}

/// Group, version and plural name of a resource type, as in its URL.
///
/// ```
/// use watershed_protocol::GroupVersionResource;
///
/// let deployments = GroupVersionResource::new("apps", "v1", "deployments");
/// assert_eq!(deployments.to_string(), "deployments.v1.apps");
/// assert_eq!(deployments.collection_path(), "/apis/apps/v1/deployments");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersionResource {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// Served version, for example `v1`.
    pub version: Arc<str>,
    /// Lower-case plural, for example `pods`.
    pub resource: Arc<str>,
}

impl GroupVersionResource {
    /// Creates a type's name from its three parts.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }

    /// Returns the collection's path over all namespaces, for example `/apis/apps/v1/deployments`.
    pub fn collection_path(&self) -> String {
        self.collection_path_in(None)
    }

    /// Returns the collection's path in a namespace, or over all.
    pub fn collection_path_in(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{}", self.group)
        };
        let within = namespace
            .map(|namespace| format!("namespaces/{namespace}/"))
            .unwrap_or_default();
        format!("{root}/{}/{within}{}", self.version, self.resource)
    }

    /// Returns `true` if upstream moves a part of such objects into their annotations.
    ///
    /// It does so when it converts them to a served version. Objects reduced to their metadata are
    /// made earlier, and lack those annotations.
    /// Source: `kubernetes/pkg/apis/*/v*/conversion.go`.
    pub fn keeps_data_in_annotations(&self) -> bool {
        const TYPES: [(&str, &str); 5] = [
            ("", "replicationcontrollers"),
            ("apps", "daemonsets"),
            ("apps", "deployments"),
            ("autoscaling", "horizontalpodautoscalers"),
            (
                "flowcontrol.apiserver.k8s.io",
                "prioritylevelconfigurations",
            ),
        ];
        TYPES.contains(&(&*self.group, &*self.resource))
    }

    /// Returns `true` for the API server's events, in both of their groups.
    ///
    /// They differ from other types, and from custom types of that name. They expire, so that many
    /// can be deleted together, and upstream reads them from etcd, as it has no watch cache of them.
    /// Source: `kubernetes/pkg/registry/core/event/storage/storage.go` (`TTLFunc`),
    /// `kubernetes/pkg/kubeapiserver/default_storage_factory_builder.go` (`DefaultWatchCacheSizes`).
    pub fn is_event(&self) -> bool {
        &*self.resource == "events" && matches!(&*self.group, "" | "events.k8s.io")
    }

    /// Returns `resource.group`, or the bare resource in the core group, as upstream's messages do.
    pub fn qualified_resource(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_string()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            write!(f, "{}.{}", self.resource, self.version)
        } else {
            write!(f, "{}.{}.{}", self.resource, self.version, self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_types_named_events_are_no_events() {
        let is_event =
            |group, resource| GroupVersionResource::new(group, "v1", resource).is_event();
        assert!(is_event("", "events") && is_event("events.k8s.io", "events"));
        for (group, resource) in [
            ("example.com", "events"),
            ("events.k8s.io.example.com", "events"),
            ("", "pods"),
            ("events.k8s.io", "pods"),
        ] {
            assert!(!is_event(group, resource), "{group} {resource}");
        }
    }
}
