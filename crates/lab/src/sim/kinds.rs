//! The types this server knows. A new type is one more row of [`KINDS`].
use watershed_protocol::GroupVersionResource;

/// The origin of a type: compiled into an API server, or defined by a CustomResourceDefinition. The
/// JSON forms differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypeOrigin {
    /// `kind` and `apiVersion` first, struct order, list items without both.
    Builtin,
    /// All keys sorted at every level, list items whole.
    Custom,
}

/// One resource type.
#[derive(Debug)]
pub(crate) struct ResourceKind {
    /// API group, empty for core.
    pub(crate) group: &'static str,
    /// Version.
    pub(crate) version: &'static str,
    /// Plural name, as in URLs.
    pub(crate) resource: &'static str,
    /// Singular name, for discovery.
    pub(crate) singular: &'static str,
    /// `kind` of an object.
    pub(crate) kind: &'static str,
    /// False for cluster-scoped types.
    pub(crate) namespaced: bool,
    /// Short names, for discovery.
    pub(crate) short_names: &'static [&'static str],
    /// Rules of the JSON form of its objects.
    pub(crate) form: TypeOrigin,
    /// JSON after the metadata of a zero value, which a bookmark carries.
    pub(crate) zero_tail: &'static str,
    /// Field labels beside `metadata.name` (and `metadata.namespace` of namespaced types): label,
    /// JSON pointer, value when absent.
    pub(crate) fields: &'static [(&'static str, &'static str, &'static str)],
    /// True if `DELETE` answers with the object instead of a Status.
    pub(crate) delete_returns_object: bool,
    /// Watches are served from a watch cache, as those of all types but events. Others get no
    /// bookmarks but the end mark, and etcd's own words when its history is gone.
    pub(crate) has_watch_cache: bool,
}

const PLAIN: ResourceKind = ResourceKind {
    group: "",
    version: "v1",
    resource: "",
    singular: "",
    kind: "",
    namespaced: true,
    short_names: &[],
    form: TypeOrigin::Builtin,
    zero_tail: "",
    fields: &[],
    delete_returns_object: false,
    has_watch_cache: true,
};

const RBAC: ResourceKind = ResourceKind {
    group: "rbac.authorization.k8s.io",
    ..PLAIN
};

/// Every type of this server, in discovery order.
pub(crate) static KINDS: [ResourceKind; 18] = [
    ResourceKind {
        resource: "configmaps",
        singular: "configmap",
        kind: "ConfigMap",
        short_names: &["cm"],
        ..PLAIN
    },
    ResourceKind {
        resource: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        zero_tail: concat!(
            r#","involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"#,
            r#""eventTime":null,"reportingComponent":"","reportingInstance":"""#
        ),
        has_watch_cache: false,
        ..PLAIN
    },
    ResourceKind {
        resource: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        namespaced: false,
        short_names: &["ns"],
        zero_tail: r#","spec":{},"status":{}"#,
        fields: &[("status.phase", "/status/phase", "")],
        ..PLAIN
    },
    ResourceKind {
        resource: "nodes",
        singular: "node",
        kind: "Node",
        namespaced: false,
        short_names: &["no"],
        zero_tail: concat!(
            r#","spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"#,
            r#""nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","#,
            r#""osImage":"","containerRuntimeVersion":"","kubeletVersion":"","#,
            r#""kubeProxyVersion":"","operatingSystem":"","architecture":""}}"#
        ),
        fields: &[("spec.unschedulable", "/spec/unschedulable", "false")],
        ..PLAIN
    },
    ResourceKind {
        resource: "pods",
        singular: "pod",
        kind: "Pod",
        short_names: &["po"],
        zero_tail: r#","spec":{"containers":null},"status":{}"#,
        fields: &[
            ("spec.nodeName", "/spec/nodeName", ""),
            ("spec.restartPolicy", "/spec/restartPolicy", ""),
            ("spec.schedulerName", "/spec/schedulerName", ""),
            ("spec.serviceAccountName", "/spec/serviceAccountName", ""),
            ("spec.hostNetwork", "/spec/hostNetwork", "false"),
            ("status.phase", "/status/phase", ""),
            ("status.podIP", "/status/podIPs/0/ip", ""),
            ("status.nominatedNodeName", "/status/nominatedNodeName", ""),
        ],
        delete_returns_object: true,
        ..PLAIN
    },
    ResourceKind {
        resource: "secrets",
        singular: "secret",
        kind: "Secret",
        fields: &[("type", "/type", "")],
        ..PLAIN
    },
    ResourceKind {
        resource: "serviceaccounts",
        singular: "serviceaccount",
        kind: "ServiceAccount",
        short_names: &["sa"],
        delete_returns_object: true,
        ..PLAIN
    },
    ResourceKind {
        resource: "services",
        singular: "service",
        kind: "Service",
        short_names: &["svc"],
        zero_tail: r#","spec":{},"status":{"loadBalancer":{}}"#,
        fields: &[
            ("spec.clusterIP", "/spec/clusterIP", ""),
            ("spec.type", "/spec/type", ""),
        ],
        delete_returns_object: true,
        ..PLAIN
    },
    ResourceKind {
        group: "apiextensions.k8s.io",
        resource: "customresourcedefinitions",
        singular: "customresourcedefinition",
        kind: "CustomResourceDefinition",
        namespaced: false,
        short_names: &["crd", "crds"],
        zero_tail: concat!(
            r#","spec":{"group":"","names":{"plural":"","kind":""},"scope":"","versions":null},"#,
            r#""status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"#,
            r#""storedVersions":null}"#
        ),
        delete_returns_object: true,
        ..PLAIN
    },
    ResourceKind {
        group: "apps",
        resource: "deployments",
        singular: "deployment",
        kind: "Deployment",
        short_names: &["deploy"],
        zero_tail: concat!(
            r#","spec":{"replicas":0,"selector":null,"#,
            r#""template":{"metadata":{},"spec":{"containers":null}},"#,
            r#""strategy":{}},"status":{}"#
        ),
        ..PLAIN
    },
    ResourceKind {
        group: "apps",
        resource: "replicasets",
        singular: "replicaset",
        kind: "ReplicaSet",
        short_names: &["rs"],
        zero_tail: concat!(
            r#","spec":{"replicas":0,"selector":null,"#,
            r#""template":{"metadata":{},"spec":{"containers":null}}},"#,
            r#""status":{"replicas":0}"#
        ),
        fields: &[("status.replicas", "/status/replicas", "0")],
        ..PLAIN
    },
    ResourceKind {
        group: "coordination.k8s.io",
        resource: "leases",
        singular: "lease",
        kind: "Lease",
        zero_tail: r#","spec":{}"#,
        ..PLAIN
    },
    ResourceKind {
        group: "discovery.k8s.io",
        resource: "endpointslices",
        singular: "endpointslice",
        kind: "EndpointSlice",
        zero_tail: r#","addressType":"","endpoints":null,"ports":null"#,
        ..PLAIN
    },
    ResourceKind {
        resource: "roles",
        singular: "role",
        kind: "Role",
        zero_tail: r#","rules":null"#,
        ..RBAC
    },
    ResourceKind {
        resource: "rolebindings",
        singular: "rolebinding",
        kind: "RoleBinding",
        zero_tail: r#","roleRef":{"apiGroup":"","kind":"","name":""}"#,
        ..RBAC
    },
    ResourceKind {
        resource: "clusterroles",
        singular: "clusterrole",
        kind: "ClusterRole",
        namespaced: false,
        zero_tail: r#","rules":null"#,
        ..RBAC
    },
    ResourceKind {
        resource: "clusterrolebindings",
        singular: "clusterrolebinding",
        kind: "ClusterRoleBinding",
        namespaced: false,
        zero_tail: r#","roleRef":{"apiGroup":"","kind":"","name":""}"#,
        ..RBAC
    },
    ResourceKind {
        group: "example.com",
        resource: "widgets",
        singular: "widget",
        kind: "Widget",
        short_names: &["wd"],
        form: TypeOrigin::Custom,
        fields: &[("spec.color", "/spec/color", "")],
        ..PLAIN
    },
];

/// `pods`, the type most experiments are about.
pub fn pods() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "pods")
}

/// `widgets.example.com`, the custom type.
pub fn widgets() -> GroupVersionResource {
    GroupVersionResource::new("example.com", "v1", "widgets")
}

/// Every type the server has.
pub fn resources() -> Vec<GroupVersionResource> {
    KINDS
        .iter()
        .map(|k| GroupVersionResource::new(k.group, k.version, k.resource))
        .collect()
}

impl ResourceKind {
    /// The type of a resource's name, and its place in [`KINDS`].
    pub(crate) fn find(
        group: &str,
        version: &str,
        resource: &str,
    ) -> Option<(usize, &'static Self)> {
        KINDS
            .iter()
            .enumerate()
            .find(|(_, k)| k.group == group && k.version == version && k.resource == resource)
    }

    /// As [`ResourceKind::find`], by the project's word for it.
    pub(crate) fn of(gvr: &GroupVersionResource) -> Option<(usize, &'static Self)> {
        Self::find(&gvr.group, &gvr.version, &gvr.resource)
    }

    /// `apiVersion` of an object.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `pods`, `deployments.apps`: the form of messages and rules.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    /// The message upstream refuses an unknown field label with, or `None` when it knows the label.
    /// Source: the conversion functions of each API group, apimachinery's
    /// `DefaultMetaV1FieldSelectorConversion`.
    pub(crate) fn refuse_field(&self, label: &str) -> Option<String> {
        let defaulted = self.fields.is_empty() && self.form == TypeOrigin::Builtin;
        let known = label == "metadata.name"
            || (label == "metadata.namespace" && (self.namespaced || defaulted))
            || (label == "spec.host" && self.resource == "pods")
            || self.fields.iter().any(|(known, _, _)| *known == label);
        if known {
            None
        } else if defaulted {
            Some(format!(
                "\"{label}\" is not a known field selector: \
                 only \"metadata.name\", \"metadata.namespace\""
            ))
        } else {
            Some(format!("field label not supported: {label}"))
        }
    }
}
