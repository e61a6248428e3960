//! The types of upstream's own that have field labels beyond name and namespace.
//!
//! Labels: `kubernetes/pkg/apis/*/v*/conversion.go`. Values: `ToSelectableFields` and its like in
//! `kubernetes/pkg/registry/*/*/strategy.go`. Protobuf field numbers:
//! `k8s.io/api/*/v*/generated.proto`.
use super::{FieldTable, GroupVersionResource, Shape};

/// A label and the places its value comes from: the first that is not empty.
struct Row(&'static str, &'static [Place]);

/// JSON path, protobuf field numbers along it, form of the value.
struct Place(&'static str, &'static [u32], Shape);

/// The labels of one type.
struct Type {
    versions: &'static [&'static str],
    /// Whether `metadata.namespace` is a label; some namespaced types refuse it.
    namespace: bool,
    rows: &'static [Row],
    /// Other names of labels.
    aliases: &'static [(&'static str, &'static str)],
}

pub(super) fn table(gvr: &GroupVersionResource, namespaced: bool) -> Option<FieldTable> {
    let Some(known) = find(&gvr.group, &gvr.resource) else {
        return Some(FieldTable::metadata_only(namespaced));
    };
    if !known.versions.contains(&&*gvr.version) {
        return None;
    }
    let mut table = FieldTable::bare(namespaced, known.namespace);
    for Row(label, places) in known.rows {
        let places = places.iter().map(|Place(path, numbers, shape)| {
            let path: Vec<(&str, u32)> = path.split('.').zip(numbers.iter().copied()).collect();
            table.place(&path, *shape)
        });
        let places = places.collect::<Option<Vec<_>>>()?;
        table.add((*label).into(), places);
    }
    for (alias, label) in known.aliases {
        let position = table.position(label)?;
        table.labels.push(((*alias).into(), position));
    }
    Some(table)
}

fn find(group: &str, resource: &str) -> Option<&'static Type> {
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

use Shape::{Flag, Number, Text};

const PODS: Type = Type {
    versions: &["v1"],
    namespace: true,
    rows: &[
        Row("spec.nodeName", &[Place("spec.nodeName", &[2, 10], Text)]),
        Row(
            "spec.restartPolicy",
            &[Place("spec.restartPolicy", &[2, 3], Text)],
        ),
        Row(
            "spec.schedulerName",
            &[Place("spec.schedulerName", &[2, 19], Text)],
        ),
        Row(
            "spec.serviceAccountName",
            &[Place("spec.serviceAccountName", &[2, 8], Text)],
        ),
        Row(
            "spec.hostNetwork",
            &[Place("spec.hostNetwork", &[2, 11], Flag)],
        ),
        Row("status.phase", &[Place("status.phase", &[3, 1], Text)]),
        Row(
            "status.podIP",
            &[Place("status.podIPs[0].ip", &[3, 12, 1], Text)],
        ),
        // Accepted as a label, but upstream never gives it a value.
        Row("status.podIPs", &[]),
        Row(
            "status.nominatedNodeName",
            &[Place("status.nominatedNodeName", &[3, 11], Text)],
        ),
    ],
    aliases: &[("spec.host", "spec.nodeName")],
};

const NODES: Type = Type {
    versions: &["v1"],
    namespace: false,
    rows: &[Row(
        "spec.unschedulable",
        &[Place("spec.unschedulable", &[2, 4], Flag)],
    )],
    aliases: &[],
};

const NAMESPACES: Type = Type {
    versions: &["v1"],
    namespace: false,
    rows: &[Row("status.phase", &[Place("status.phase", &[3, 1], Text)])],
    aliases: &[],
};

const SECRETS: Type = Type {
    versions: &["v1"],
    namespace: true,
    rows: &[Row("type", &[Place("type", &[3], Text)])],
    aliases: &[],
};

const SERVICES: Type = Type {
    versions: &["v1"],
    namespace: true,
    rows: &[
        Row("spec.clusterIP", &[Place("spec.clusterIP", &[2, 3], Text)]),
        Row("spec.type", &[Place("spec.type", &[2, 4], Text)]),
    ],
    aliases: &[],
};

const REPLICATION_CONTROLLERS: Type = Type {
    versions: &["v1"],
    namespace: true,
    rows: &[Row(
        "status.replicas",
        &[Place("status.replicas", &[3, 1], Number)],
    )],
    aliases: &[],
};

const CORE_EVENTS: Type = Type {
    versions: &["v1"],
    namespace: true,
    rows: &[
        Row(
            "involvedObject.kind",
            &[Place("involvedObject.kind", &[2, 1], Text)],
        ),
        Row(
            "involvedObject.namespace",
            &[Place("involvedObject.namespace", &[2, 2], Text)],
        ),
        Row(
            "involvedObject.name",
            &[Place("involvedObject.name", &[2, 3], Text)],
        ),
        Row(
            "involvedObject.uid",
            &[Place("involvedObject.uid", &[2, 4], Text)],
        ),
        Row(
            "involvedObject.apiVersion",
            &[Place("involvedObject.apiVersion", &[2, 5], Text)],
        ),
        Row(
            "involvedObject.resourceVersion",
            &[Place("involvedObject.resourceVersion", &[2, 6], Text)],
        ),
        Row(
            "involvedObject.fieldPath",
            &[Place("involvedObject.fieldPath", &[2, 7], Text)],
        ),
        Row("reason", &[Place("reason", &[3], Text)]),
        Row(
            "reportingComponent",
            &[Place("reportingComponent", &[14], Text)],
        ),
        Row(
            "source",
            &[
                Place("source.component", &[5, 1], Text),
                Place("reportingComponent", &[14], Text),
            ],
        ),
        Row("type", &[Place("type", &[9], Text)]),
    ],
    aliases: &[],
};

const EVENTS: Type = Type {
    versions: &["v1", "v1beta1"],
    namespace: true,
    rows: &[
        Row("regarding.kind", &[Place("regarding.kind", &[8, 1], Text)]),
        Row(
            "regarding.namespace",
            &[Place("regarding.namespace", &[8, 2], Text)],
        ),
        Row("regarding.name", &[Place("regarding.name", &[8, 3], Text)]),
        Row("regarding.uid", &[Place("regarding.uid", &[8, 4], Text)]),
        Row(
            "regarding.apiVersion",
            &[Place("regarding.apiVersion", &[8, 5], Text)],
        ),
        Row(
            "regarding.resourceVersion",
            &[Place("regarding.resourceVersion", &[8, 6], Text)],
        ),
        Row(
            "regarding.fieldPath",
            &[Place("regarding.fieldPath", &[8, 7], Text)],
        ),
        Row("reason", &[Place("reason", &[7], Text)]),
        Row(
            "reportingController",
            &[Place("reportingController", &[4], Text)],
        ),
        Row("type", &[Place("type", &[11], Text)]),
    ],
    aliases: &[],
};

const JOBS: Type = Type {
    versions: &["v1"],
    namespace: true,
    rows: &[Row(
        "status.successful",
        &[Place("status.succeeded", &[3, 5], Number)],
    )],
    aliases: &[],
};

const CERTIFICATE_SIGNING_REQUESTS: Type = Type {
    versions: &["v1", "v1beta1"],
    namespace: false,
    rows: &[Row(
        "spec.signerName",
        &[Place("spec.signerName", &[2, 7], Text)],
    )],
    aliases: &[],
};

const CLUSTER_TRUST_BUNDLES: Type = Type {
    versions: &["v1", "v1beta1", "v1alpha1"],
    namespace: false,
    rows: &[Row(
        "spec.signerName",
        &[Place("spec.signerName", &[2, 1], Text)],
    )],
    aliases: &[],
};

const POD_CERTIFICATE_REQUESTS: Type = Type {
    versions: &["v1", "v1beta1", "v1alpha1"],
    namespace: false,
    rows: &[
        Row(
            "spec.signerName",
            &[Place("spec.signerName", &[2, 1], Text)],
        ),
        Row("spec.podName", &[Place("spec.podName", &[2, 2], Text)]),
        Row("spec.nodeName", &[Place("spec.nodeName", &[2, 6], Text)]),
    ],
    aliases: &[],
};

// The alpha versions of older releases had other labels: not listed, so they are forwarded.
const RESOURCE_SLICES: Type = Type {
    versions: &["v1", "v1beta2", "v1beta1"],
    namespace: false,
    rows: &[
        Row("spec.nodeName", &[Place("spec.nodeName", &[2, 3], Text)]),
        Row("spec.driver", &[Place("spec.driver", &[2, 1], Text)]),
        Row(
            "spec.pool.name",
            &[Place("spec.pool.name", &[2, 2, 1], Text)],
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
            for Place(path, numbers, _) in known.rows.iter().flat_map(|row| row.1) {
                assert_eq!(path.split('.').count(), numbers.len(), "{path}");
            }
            for version in known.versions {
                assert!(builtin(group, version, resource).is_some());
            }
        }
    }
}
