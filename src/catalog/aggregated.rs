//! Which API groups are answered by another server behind the API server.
//!
//! Such a server may answer by who asks, or hold no versions that can be compared. Its types are forwarded
//! unless the operator vouches for it.
use std::collections::HashSet;

use http::StatusCode;
use serde::Deserialize;

use super::discovery::{DiscoveryError, get};
use crate::kube::GroupVersionResource;
use crate::upstream::Client;

/// A list of any age will do: the group was in the discovery document that was read before.
const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices?resourceVersion=0";
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

/// What is known of the servers behind the API server.
#[derive(Debug)]
pub(super) enum Aggregated {
    /// Group and version of each API that another server answers.
    Known(HashSet<(String, String)>),
    /// The proxy may not read them: only what is compiled in is certain.
    NotReadable,
}

impl Aggregated {
    /// Asks upstream.
    pub(super) async fn read(client: &Client) -> Result<Self, DiscoveryError> {
        match get::<List>(client, PATH, "application/json").await {
            Ok(list) => Ok(Self::Known(list.items.into_iter().filter_map(ApiService::elsewhere).collect())),
            Err(DiscoveryError::Refused {
                status: StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, ..
            }) => Ok(Self::NotReadable),
            Err(error) => Err(error),
        }
    }

    /// Whether another server may answer for a type that discovery shows.
    pub(super) fn may_answer(&self, gvr: &GroupVersionResource) -> bool {
        match self {
            Self::Known(_) => self.answers(gvr),
            Self::NotReadable => !BUILT_IN.contains(&&*gvr.group),
        }
    }

    /// Whether another server is known to answer for a type.
    pub(super) fn answers(&self, gvr: &GroupVersionResource) -> bool {
        match self {
            Self::Known(elsewhere) => elsewhere.contains(&(gvr.group.to_string(), gvr.version.to_string())),
            Self::NotReadable => false,
        }
    }
}

#[derive(Deserialize)]
struct List {
    items: Vec<ApiService>,
}

#[derive(Deserialize)]
struct ApiService {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    /// Absent for what the API server answers itself.
    service: Option<serde::de::IgnoredAny>,
}

impl ApiService {
    fn elsewhere(self) -> Option<(String, String)> {
        self.spec.service.map(|_| (self.spec.group, self.spec.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_other_servers_are_told_apart() {
        let text = r#"{"kind":"APIServiceList","items":[
            {"spec":{"version":"v1","groupPriorityMinimum":1,"versionPriority":1}},
            {"spec":{"group":"apps","version":"v1","service":null}},
            {"spec":{"group":"metrics.k8s.io","version":"v1beta1","service":{"namespace":"kube-system","name":"m"}}}]}"#;
        let list: List = serde_json::from_str(text).unwrap();
        let known = Aggregated::Known(list.items.into_iter().filter_map(ApiService::elsewhere).collect());
        let metrics = GroupVersionResource::new("metrics.k8s.io", "v1beta1", "pods");
        let custom = GroupVersionResource::new("example.org", "v1", "things");
        let pods = GroupVersionResource::new("", "v1", "pods");
        let answers = |aggregated: &Aggregated| {
            [&metrics, &custom, &pods].map(|gvr| (aggregated.may_answer(gvr), aggregated.answers(gvr)))
        };
        assert_eq!(answers(&known), [(true, true), (false, false), (false, false)]);
        assert_eq!(answers(&Aggregated::NotReadable), [(true, false), (true, false), (false, false)]);
    }
}
