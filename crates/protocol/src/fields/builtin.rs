//! The types of upstream's own that have field labels beyond name and namespace.
//!
//! Labels: `kubernetes/pkg/apis/*/v*/conversion.go`. Values: `ToSelectableFields` and its like in
//! `kubernetes/pkg/registry/*/*/strategy.go`. Protobuf field numbers:
//! `k8s.io/api/*/v*/generated.proto`.
use super::table::{FieldTable, ValueShape};
use crate::GroupVersionResource;

/// A label and the places its value comes from: the first that is not empty.
struct LabelRow(&'static str, &'static [FieldPath]);

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
        for LabelRow(label, paths) in known.rows {
            let mut places = Vec::with_capacity(paths.len());
            for FieldPath(path, numbers, shape) in *paths {
                let path: Vec<(&str, u32)> = path.split('.').zip(numbers.iter().copied()).collect();
                places.push(table.place(&path, *shape)?);
            }
            table.add((*label).into(), places);
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

use ValueShape::{Flag, Number, Text};

const PODS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[
        LabelRow(
            "spec.nodeName",
            &[FieldPath("spec.nodeName", &[2, 10], Text)],
        ),
        LabelRow(
            "spec.restartPolicy",
            &[FieldPath("spec.restartPolicy", &[2, 3], Text)],
        ),
        LabelRow(
            "spec.schedulerName",
            &[FieldPath("spec.schedulerName", &[2, 19], Text)],
        ),
        LabelRow(
            "spec.serviceAccountName",
            &[FieldPath("spec.serviceAccountName", &[2, 8], Text)],
        ),
        LabelRow(
            "spec.hostNetwork",
            &[FieldPath("spec.hostNetwork", &[2, 11], Flag)],
        ),
        LabelRow("status.phase", &[FieldPath("status.phase", &[3, 1], Text)]),
        LabelRow(
            "status.podIP",
            &[FieldPath("status.podIPs[0].ip", &[3, 12, 1], Text)],
        ),
        // Accepted as a label, but upstream never gives it a value.
        LabelRow("status.podIPs", &[]),
        LabelRow(
            "status.nominatedNodeName",
            &[FieldPath("status.nominatedNodeName", &[3, 11], Text)],
        ),
    ],
    aliases: &[("spec.host", "spec.nodeName")],
};

const NODES: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: false,
    rows: &[LabelRow(
        "spec.unschedulable",
        &[FieldPath("spec.unschedulable", &[2, 4], Flag)],
    )],
    aliases: &[],
};

const NAMESPACES: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: false,
    rows: &[LabelRow(
        "status.phase",
        &[FieldPath("status.phase", &[3, 1], Text)],
    )],
    aliases: &[],
};

const SECRETS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[LabelRow("type", &[FieldPath("type", &[3], Text)])],
    aliases: &[],
};

const SERVICES: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[
        LabelRow(
            "spec.clusterIP",
            &[FieldPath("spec.clusterIP", &[2, 3], Text)],
        ),
        LabelRow("spec.type", &[FieldPath("spec.type", &[2, 4], Text)]),
    ],
    aliases: &[],
};

const REPLICATION_CONTROLLERS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[LabelRow(
        "status.replicas",
        &[FieldPath("status.replicas", &[3, 1], Number)],
    )],
    aliases: &[],
};

const CORE_EVENTS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[
        LabelRow(
            "involvedObject.kind",
            &[FieldPath("involvedObject.kind", &[2, 1], Text)],
        ),
        LabelRow(
            "involvedObject.namespace",
            &[FieldPath("involvedObject.namespace", &[2, 2], Text)],
        ),
        LabelRow(
            "involvedObject.name",
            &[FieldPath("involvedObject.name", &[2, 3], Text)],
        ),
        LabelRow(
            "involvedObject.uid",
            &[FieldPath("involvedObject.uid", &[2, 4], Text)],
        ),
        LabelRow(
            "involvedObject.apiVersion",
            &[FieldPath("involvedObject.apiVersion", &[2, 5], Text)],
        ),
        LabelRow(
            "involvedObject.resourceVersion",
            &[FieldPath("involvedObject.resourceVersion", &[2, 6], Text)],
        ),
        LabelRow(
            "involvedObject.fieldPath",
            &[FieldPath("involvedObject.fieldPath", &[2, 7], Text)],
        ),
        LabelRow("reason", &[FieldPath("reason", &[3], Text)]),
        LabelRow(
            "reportingComponent",
            &[FieldPath("reportingComponent", &[14], Text)],
        ),
        LabelRow(
            "source",
            &[
                FieldPath("source.component", &[5, 1], Text),
                FieldPath("reportingComponent", &[14], Text),
            ],
        ),
        LabelRow("type", &[FieldPath("type", &[9], Text)]),
    ],
    aliases: &[],
};

const EVENTS: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1"],
    namespace: true,
    rows: &[
        LabelRow(
            "regarding.kind",
            &[FieldPath("regarding.kind", &[8, 1], Text)],
        ),
        LabelRow(
            "regarding.namespace",
            &[FieldPath("regarding.namespace", &[8, 2], Text)],
        ),
        LabelRow(
            "regarding.name",
            &[FieldPath("regarding.name", &[8, 3], Text)],
        ),
        LabelRow(
            "regarding.uid",
            &[FieldPath("regarding.uid", &[8, 4], Text)],
        ),
        LabelRow(
            "regarding.apiVersion",
            &[FieldPath("regarding.apiVersion", &[8, 5], Text)],
        ),
        LabelRow(
            "regarding.resourceVersion",
            &[FieldPath("regarding.resourceVersion", &[8, 6], Text)],
        ),
        LabelRow(
            "regarding.fieldPath",
            &[FieldPath("regarding.fieldPath", &[8, 7], Text)],
        ),
        LabelRow("reason", &[FieldPath("reason", &[7], Text)]),
        LabelRow(
            "reportingController",
            &[FieldPath("reportingController", &[4], Text)],
        ),
        LabelRow("type", &[FieldPath("type", &[11], Text)]),
    ],
    aliases: &[],
};

const JOBS: TypeLabels = TypeLabels {
    versions: &["v1"],
    namespace: true,
    rows: &[LabelRow(
        "status.successful",
        &[FieldPath("status.succeeded", &[3, 5], Number)],
    )],
    aliases: &[],
};

const CERTIFICATE_SIGNING_REQUESTS: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1"],
    namespace: false,
    rows: &[LabelRow(
        "spec.signerName",
        &[FieldPath("spec.signerName", &[2, 7], Text)],
    )],
    aliases: &[],
};

const CLUSTER_TRUST_BUNDLES: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1", "v1alpha1"],
    namespace: false,
    rows: &[LabelRow(
        "spec.signerName",
        &[FieldPath("spec.signerName", &[2, 1], Text)],
    )],
    aliases: &[],
};

const POD_CERTIFICATE_REQUESTS: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta1", "v1alpha1"],
    namespace: false,
    rows: &[
        LabelRow(
            "spec.signerName",
            &[FieldPath("spec.signerName", &[2, 1], Text)],
        ),
        LabelRow("spec.podName", &[FieldPath("spec.podName", &[2, 2], Text)]),
        LabelRow(
            "spec.nodeName",
            &[FieldPath("spec.nodeName", &[2, 6], Text)],
        ),
    ],
    aliases: &[],
};

// The alpha versions of older releases had other labels: not listed, so they are forwarded.
const RESOURCE_SLICES: TypeLabels = TypeLabels {
    versions: &["v1", "v1beta2", "v1beta1"],
    namespace: false,
    rows: &[
        LabelRow(
            "spec.nodeName",
            &[FieldPath("spec.nodeName", &[2, 3], Text)],
        ),
        LabelRow("spec.driver", &[FieldPath("spec.driver", &[2, 1], Text)]),
        LabelRow(
            "spec.pool.name",
            &[FieldPath("spec.pool.name", &[2, 2, 1], Text)],
        ),
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
            for FieldPath(path, numbers, _) in known.rows.iter().flat_map(|row| row.1) {
                assert_eq!(path.split('.').count(), numbers.len(), "{path}");
            }
            for version in known.versions {
                assert!(builtin(group, version, resource).is_some());
            }
        }
    }
}
