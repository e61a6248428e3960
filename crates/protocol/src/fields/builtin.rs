//! The types of upstream's own that have field labels beyond name and namespace.
//!
//! Labels: `kubernetes/pkg/apis/*/v*/conversion.go`. Values: `ToSelectableFields` and its like in
//! `kubernetes/pkg/registry/*/*/strategy.go`. Protobuf field numbers:
//! `k8s.io/api/*/v*/generated.proto`.
use std::slice;

use super::table::ValueShape::{Flag, Number, Text};
use super::table::{FieldTable, ValueShape};
use crate::GroupVersionResource;

/// A label and the places of its value.
enum LabelRow {
    /// The label is the path of its value.
    Path(FieldPath),
    /// A label, and the places of its value. The first that is not empty counts.
    Label(&'static str, &'static [FieldPath]),
}

/// JSON path, protobuf field numbers along it, form of the value.
struct FieldPath(&'static str, &'static [u32], ValueShape);

/// The labels of one type.
struct TypeLabels {
    versions: &'static [&'static str],
    /// True if `metadata.namespace` is a label. Some namespaced types refuse it.
    namespace: bool,
    rows: &'static [LabelRow],
    /// Other names of labels.
    aliases: &'static [(&'static str, &'static str)],
}

impl LabelRow {
    fn label(&self) -> &'static str {
        match self {
            Self::Path(FieldPath(label, ..)) | Self::Label(label, _) => label,
        }
    }

    fn paths(&self) -> &[FieldPath] {
        match self {
            Self::Path(path) => slice::from_ref(path),
            Self::Label(_, paths) => paths,
        }
    }
}

impl FieldTable {
    /// Returns the table of a type that upstream serves by itself.
    ///
    /// Types of other groups get the default labels. The result is `None` for a type that is known
    /// to have labels of its own, but not in this version.
    /// Source: `kubernetes/pkg/apis/*/v*/conversion.go`.
    pub fn builtin(gvr: &GroupVersionResource, namespaced: bool) -> Option<FieldTable> {
        let Some(known) = find(&gvr.group, &gvr.resource) else {
            return Some(FieldTable::metadata_only(namespaced));
        };
        if !known.versions.contains(&&*gvr.version) {
            return None;
        }
        let mut table = FieldTable::bare(namespaced, known.namespace);
        for row in known.rows {
            let mut places = Vec::with_capacity(row.paths().len());
            for FieldPath(path, numbers, shape) in row.paths() {
                let keys: Vec<(&str, u32)> = path.split('.').zip(numbers.iter().copied()).collect();
                places.push(table.place(&keys, *shape)?);
            }
            table.add(row.label().into(), places);
        }
        for (alias, label) in known.aliases {
            table.add_alias(alias, label)?;
        }
        Some(table)
    }
}

fn find(group: &str, resource: &str) -> Option<&'static TypeLabels> {
    Some(match (group, resource) {
        ("", "pods") => &PODS,
        ("", "nodes") => &NODES,
        ("", "namespaces") => &NAMESPACES,
        ("", "secrets") => &SECRETS,
        ("", "services") => &SERVICES,
        ("", "replicationcontrollers") => &REPLICATION_CONTROLLERS,
        ("", "events") => &CORE_EVENTS,
        ("events.k8s.io", "events") => &EVENTS,
        ("batch", "jobs") => &JOBS,
        ("certificates.k8s.io", "certificatesigningrequests") => &CERTIFICATE_SIGNING_REQUESTS,
        ("certificates.k8s.io", "clustertrustbundles") => &CLUSTER_TRUST_BUNDLES,
        ("certificates.k8s.io", "podcertificaterequests") => &POD_CERTIFICATE_REQUESTS,
        ("resource.k8s.io", "resourceslices") => &RESOURCE_SLICES,
        _ => return None,
    })
}

/// Returns the row of a label that is the path of its value.
const fn field(label: &'static str, numbers: &'static [u32], shape: ValueShape) -> LabelRow {
    LabelRow::Path(FieldPath(label, numbers, shape))
}

const PODS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[
        field("spec.nodeName", &[2, 10], Text),
        field("spec.restartPolicy", &[2, 3], Text),
        field("spec.schedulerName", &[2, 19], Text),
        field("spec.serviceAccountName", &[2, 8], Text),
        field("spec.hostNetwork", &[2, 11], Flag),
        field("status.phase", &[3, 1], Text),
        LabelRow::Label(
            "status.podIP",
            &[FieldPath("status.podIPs[0].ip", &[3, 12, 1], Text)],
        ),
        // Accepted as a label, but upstream never gives it a value.
        LabelRow::Label("status.podIPs", &[]),
        field("status.nominatedNodeName", &[3, 11], Text),
    ],
    aliases: &[("spec.host", "spec.nodeName")],
};

const NODES: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: false,
    rows: &[field("spec.unschedulable", &[2, 4], Flag)],
    aliases: &[],
};

const NAMESPACES: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: false,
    rows: &[field("status.phase", &[3, 1], Text)],
    aliases: &[],
};

const SECRETS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[field("type", &[3], Text)],
    aliases: &[],
};

const SERVICES: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[
        field("spec.clusterIP", &[2, 3], Text),
        field("spec.type", &[2, 4], Text),
    ],
    aliases: &[],
};

const REPLICATION_CONTROLLERS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[field("status.replicas", &[3, 1], Number)],
    aliases: &[],
};

const CORE_EVENTS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[
        field("involvedObject.kind", &[2, 1], Text),
        field("involvedObject.namespace", &[2, 2], Text),
        field("involvedObject.name", &[2, 3], Text),
        field("involvedObject.uid", &[2, 4], Text),
        field("involvedObject.apiVersion", &[2, 5], Text),
        field("involvedObject.resourceVersion", &[2, 6], Text),
        field("involvedObject.fieldPath", &[2, 7], Text),
        field("reason", &[3], Text),
        field("reportingComponent", &[14], Text),
        LabelRow::Label(
            "source",
            &[
                FieldPath("source.component", &[5, 1], Text),
                FieldPath("reportingComponent", &[14], Text),
            ],
        ),
        field("type", &[9], Text),
    ],
    aliases: &[],
};

const EVENTS: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1"],
    namespace: true,
    rows: &[
        field("regarding.kind", &[8, 1], Text),
        field("regarding.namespace", &[8, 2], Text),
        field("regarding.name", &[8, 3], Text),
        field("regarding.uid", &[8, 4], Text),
        field("regarding.apiVersion", &[8, 5], Text),
        field("regarding.resourceVersion", &[8, 6], Text),
        field("regarding.fieldPath", &[8, 7], Text),
        field("reason", &[7], Text),
        field("reportingController", &[4], Text),
        field("type", &[11], Text),
    ],
    aliases: &[],
};

const JOBS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[LabelRow::Label(
        "status.successful",
        &[FieldPath("status.succeeded", &[3, 5], Number)],
    )],
    aliases: &[],
};

const CERTIFICATE_SIGNING_REQUESTS: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1"],
    namespace: false,
    rows: &[field("spec.signerName", &[2, 7], Text)],
    aliases: &[],
};

const CLUSTER_TRUST_BUNDLES: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1", "v1alpha1"],
    namespace: false,
    rows: &[field("spec.signerName", &[2, 1], Text)],
    aliases: &[],
};

const POD_CERTIFICATE_REQUESTS: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1", "v1alpha1"],
    namespace: false,
    rows: &[
        field("spec.signerName", &[2, 1], Text),
        field("spec.podName", &[2, 2], Text),
        field("spec.nodeName", &[2, 6], Text),
    ],
    aliases: &[],
};

// The alpha versions of older releases had other labels: not listed, so they are forwarded.
const RESOURCE_SLICES: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta2", "v1beta1"],
    namespace: false,
    rows: &[
        field("spec.nodeName", &[2, 3], Text),
        field("spec.driver", &[2, 1], Text),
        field("spec.pool.name", &[2, 2, 1], Text),
    ],
    aliases: &[],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn builtin(group: &str, version: &str, resource: &str) -> Option<FieldTable> {
        FieldTable::builtin(&GroupVersionResource::new(group, version, resource), true)
    }

    #[test]
    fn knows_upstreams_labels() {
        let pods = builtin("", "v1", "pods").unwrap();
        assert_eq!(pods.position("spec.host"), pods.position("spec.nodeName"));
        assert!(pods.position("status.podIPs").is_some());
        assert_eq!(pods.position("spec.containers"), None);
        assert_eq!(
            builtin("", "v1", "nodes")
                .unwrap()
                .position("metadata.namespace"),
            None
        );
        let requests = builtin("certificates.k8s.io", "v1", "podcertificaterequests").unwrap();
        assert_eq!(requests.position("metadata.namespace"), None);
        assert_eq!(
            builtin("apps", "v1", "deployments")
                .unwrap()
                .position("metadata.namespace"),
            Some(1)
        );
        assert!(builtin("resource.k8s.io", "v1alpha3", "resourceslices").is_none());
    }

    #[test]
    fn every_path_has_a_number_for_each_member() {
        for (group, resource) in [
            ("", "pods"),
            ("", "nodes"),
            ("", "namespaces"),
            ("", "secrets"),
            ("", "services"),
            ("", "replicationcontrollers"),
            ("", "events"),
            ("events.k8s.io", "events"),
            ("batch", "jobs"),
            ("certificates.k8s.io", "certificatesigningrequests"),
            ("certificates.k8s.io", "clustertrustbundles"),
            ("certificates.k8s.io", "podcertificaterequests"),
            ("resource.k8s.io", "resourceslices"),
        ] {
            let known = find(group, resource).unwrap();
            for FieldPath(path, numbers, _) in known.rows.iter().flat_map(LabelRow::paths) {
                assert_eq!(path.split('.').count(), numbers.len(), "{path}");
            }
            for version in known.versions {
                assert!(builtin(group, version, resource).is_some());
            }
        }
    }
}
