//! The secrets and config maps that a pod names.
//!
//! Source: `kubernetes/pkg/api/v1/pod/util.go` (VisitPodSecretNames, VisitPodConfigmapNames), and
//! `kubernetes/plugin/pkg/auth/authorizer/node/graph.go` (AddPod) for pods that do not count.
use std::collections::HashMap;

use serde::Deserialize;

use super::claim::ReferenceKind;

/// The annotation of pods that a kubelet made itself. They entitle their node to nothing.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns `true` if a pod names an object of its namespace, so that its node may read it. Of a pod
/// that cannot be read, and of references that are unknown here, the answer is no.
pub(super) fn names(pod: &[u8], kind: ReferenceKind, name: &str) -> bool {
    let Ok(ReferencingPod { metadata, spec }) = serde_json::from_slice::<ReferencingPod>(pod)
    else {
        return false;
    };
    let is_mirror = metadata
        .annotations
        .is_some_and(|annotations| annotations.contains_key(MIRROR));
    !is_mirror && spec.references(kind).any(|reference| reference == name)
}

/// The parts of a pod that name objects.
#[derive(Deserialize)]
struct ReferencingPod {
    metadata: AnnotatedMetadata,
    #[serde(default)]
    spec: ReferencingSpec,
}

#[derive(Deserialize)]
struct AnnotatedMetadata {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReferencingSpec {
    image_pull_secrets: Vec<Reference>,
    containers: Vec<ReferencingContainer>,
    init_containers: Vec<ReferencingContainer>,
    ephemeral_containers: Vec<ReferencingContainer>,
    volumes: Vec<ReferencingVolume>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReferencingContainer {
    env: Vec<Variable>,
    env_from: Vec<EnvironmentSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Variable {
    value_from: Option<VariableSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VariableSource {
    secret_key_ref: Option<Reference>,
    config_map_key_ref: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EnvironmentSource {
    secret_ref: Option<Reference>,
    config_map_ref: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReferencingVolume {
    secret: Option<SecretName>,
    azure_file: Option<SecretName>,
    config_map: Option<Reference>,
    projected: Option<Projected>,
    csi: Option<CsiVolume>,
    cephfs: Option<SecretVolume>,
    cinder: Option<SecretVolume>,
    flex_volume: Option<SecretVolume>,
    iscsi: Option<SecretVolume>,
    rbd: Option<SecretVolume>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<SecretVolume>,
    storageos: Option<SecretVolume>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Projected {
    /// `null` in a volume without any.
    sources: Option<Vec<ProjectedSource>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProjectedSource {
    secret: Option<Reference>,
    config_map: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CsiVolume {
    node_publish_secret_ref: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SecretVolume {
    secret_ref: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SecretName {
    secret_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reference {
    name: String,
}

impl ReferencingSpec {
    fn references(&self, kind: ReferenceKind) -> Box<dyn Iterator<Item = &str> + '_> {
        let containers = [
            &self.containers,
            &self.init_containers,
            &self.ephemeral_containers,
        ];
        let containers = containers.into_iter().flatten();
        match kind {
            ReferenceKind::Secret => Box::new(
                self.image_pull_secrets
                    .iter()
                    .chain(containers.flat_map(ReferencingContainer::secrets))
                    .map(|reference| reference.name.as_str())
                    .chain(self.volumes.iter().flat_map(ReferencingVolume::secrets)),
            ),
            ReferenceKind::ConfigMap => Box::new(
                containers
                    .flat_map(ReferencingContainer::config_maps)
                    .chain(self.volumes.iter().flat_map(ReferencingVolume::config_maps))
                    .map(|reference| reference.name.as_str()),
            ),
        }
    }
}

impl ReferencingContainer {
    fn variables(&self) -> impl Iterator<Item = &VariableSource> {
        self.env
            .iter()
            .filter_map(|variable| variable.value_from.as_ref())
    }

    fn secrets(&self) -> impl Iterator<Item = &Reference> {
        let all = self.env_from.iter().map(|from| &from.secret_ref);
        all.chain(self.variables().map(|from| &from.secret_key_ref))
            .flatten()
    }

    fn config_maps(&self) -> impl Iterator<Item = &Reference> {
        let all = self.env_from.iter().map(|from| &from.config_map_ref);
        all.chain(self.variables().map(|from| &from.config_map_key_ref))
            .flatten()
    }
}

impl ReferencingVolume {
    fn projected(&self) -> impl Iterator<Item = &ProjectedSource> {
        let volumes = self.projected.iter();
        volumes.flat_map(|volume| volume.sources.iter().flatten())
    }

    fn secrets(&self) -> impl Iterator<Item = &str> {
        let whole = [&self.secret, &self.azure_file].into_iter().flatten();
        let with_secret = [
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.iscsi,
            &self.rbd,
            &self.scale_io,
            &self.storageos,
        ];
        let with_secret = with_secret.into_iter().flatten();
        let csi = self
            .csi
            .iter()
            .map(|volume| &volume.node_publish_secret_ref);
        let references = with_secret
            .map(|volume| &volume.secret_ref)
            .chain(csi)
            .chain(self.projected().map(|source| &source.secret))
            .flatten();
        whole
            .map(|volume| volume.secret_name.as_str())
            .chain(references.map(|reference| reference.name.as_str()))
    }

    fn config_maps(&self) -> impl Iterator<Item = &Reference> {
        let own = std::iter::once(&self.config_map);
        own.chain(self.projected().map(|source| &source.config_map))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn named(spec: &Value, kind: ReferenceKind) -> bool {
        let pod = json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "spec": spec});
        names(pod.to_string().as_bytes(), kind, "x")
    }

    #[test]
    fn every_reference_of_a_pod_is_found() {
        let reference = json!({"name": "x", "key": "k"});
        let container =
            |part: Value| json!({"name": "c", "env": [{"name": "plain", "value": "x"}, part]});
        let in_volume = |part: Value| json!({"volumes": [{"name": "x"}, part]});
        let by_name = |volume: &str| in_volume(json!({volume: {"secretRef": reference}}));
        let secret = container(json!({"valueFrom": {"secretKeyRef": reference}}));
        let secrets = [
            json!({"imagePullSecrets": [reference]}),
            json!({"containers": [secret]}),
            json!({"initContainers": [secret]}),
            json!({"containers": [], "ephemeralContainers": [secret]}),
            json!({"containers": [{"envFrom": [{"secretRef": reference}]}]}),
            in_volume(json!({"secret": {"secretName": "x"}})),
            in_volume(json!({"azureFile": {"secretName": "x"}})),
            in_volume(json!({"projected": {"sources": [{}, {"secret": reference}]}})),
            json!({"volumes": [{"projected": {"sources": null}}, {"secret": {"secretName": "x"}}]}),
            in_volume(json!({"csi": {"driver": "x", "nodePublishSecretRef": reference}})),
        ];
        let in_tree = [
            "cephfs",
            "cinder",
            "flexVolume",
            "iscsi",
            "rbd",
            "scaleIO",
            "storageos",
        ];
        for spec in secrets.into_iter().chain(in_tree.map(by_name)) {
            assert!(named(&spec, ReferenceKind::Secret), "{spec}");
            assert!(!named(&spec, ReferenceKind::ConfigMap), "{spec}");
        }
        let map = container(json!({"valueFrom": {"configMapKeyRef": reference}}));
        for spec in [
            json!({"containers": [map]}),
            json!({"initContainers": [map]}),
            json!({"ephemeralContainers": [map]}),
            json!({"containers": [{"envFrom": [{"configMapRef": reference}]}]}),
            in_volume(json!({"configMap": reference})),
            in_volume(json!({"projected": {"sources": [{"configMap": reference}]}})),
        ] {
            assert!(named(&spec, ReferenceKind::ConfigMap), "{spec}");
            assert!(!named(&spec, ReferenceKind::Secret), "{spec}");
        }
    }

    #[test]
    fn pods_that_name_nothing_or_were_made_by_a_kubelet_do_not_count() {
        let spec = json!({"imagePullSecrets": [{"name": "x"}]});
        let mirror = json!({"metadata": {"annotations": {MIRROR: "h"}}, "spec": spec});
        let other = json!({"metadata": {"name": "x"}, "spec": {"nodeName": "x", "containers": [
            {"name": "x", "image": "x", "env": [{"name": "x", "value": "x"}]}]}});
        for pod in [mirror, other, json!({"metadata": {}}), json!([])] {
            let text = pod.to_string();
            assert!(!names(text.as_bytes(), ReferenceKind::Secret, "x"), "{pod}");
        }
    }
}
