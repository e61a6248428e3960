//! The API groups that upstream serves by itself, and how it does.
//!
//! Another server behind the API server (an aggregated API) may answer by who asks, or hold no
//! versions that can be compared. Its types are forwarded unless the operator vouches for it.
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::discovery_error::DiscoveryError;
use super::fetch::get;
use super::object_feed::FollowedObjects;
use super::parsed_objects::ParsedObjects;
use crate::store::Snapshot;
use crate::upstream::UpstreamClient;
use watershed_protocol::{GroupVersionResource, is_built_in_group};

/// A list of any age will do: the group was in the discovery document that was read before.
const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices?resourceVersion=0";
/// The label of what the API server registers by itself: `onstart` for the types compiled into it,
/// `true` for custom ones. Source:
/// `kube-aggregator/pkg/controllers/autoregister/autoregister_controller.go`.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Returns the APIServices, as they are followed. Once that fails, they are read like discovery.
pub(super) fn followed_services() -> FollowedObjects {
    FollowedObjects {
        gvr: GroupVersionResource::new("apiregistration.k8s.io", "v1", "apiservices"),
        keep: Duration::from_secs(15),
        loss: "they are read once a minute",
        is_serious: false,
    }
}

/// The server that answers for one version of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The API server, for types compiled into it.
    BuiltIn,
    /// The API server, for types that definitions describe.
    Custom,
    /// Another server behind it.
    Aggregated,
}

/// A group and its version, as an APIService names them.
type VersionedGroup = (String, String);

/// The servers that answer for the versions of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origins {
    /// By group and version.
    Known(HashMap<VersionedGroup, Origin>),
    /// The APIServices were not read: the proxy may not, or caches built-in types alone. Only what
    /// is compiled in is certain.
    NotRead,
}

impl Origins {
    /// Reads the APIServices of upstream.
    pub(super) async fn read(client: &UpstreamClient) -> Result<Self, DiscoveryError> {
        match get::<ApiServiceList>(client, PATH, "application/json").await {
            Ok(list) => Ok(Self::Known(
                list.items.into_iter().map(ApiService::read).collect(),
            )),
            Err(DiscoveryError::Refused {
                status: StatusCode::FORBIDDEN | StatusCode::NOT_FOUND,
                ..
            }) => Ok(Self::NotRead),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if upstream has compiled other versions of groups into it by `later`.
    pub(super) fn differ_in_built_in(&self, later: &Self) -> bool {
        self.built_in() != later.built_in()
    }

    /// Takes in what other servers answer for by `more`. Returns `true` if that was not known.
    pub(super) fn add_aggregated(&mut self, more: &Self) -> bool {
        let (Self::Known(known), Self::Known(more)) = (self, more) else {
            return false;
        };
        let mut is_new = false;
        for (group, origin) in more {
            if *origin == Origin::Aggregated && known.get(group) != Some(origin) {
                known.insert(group.clone(), *origin);
                is_new = true;
            }
        }
        is_new
    }

    fn built_in(&self) -> HashSet<&VersionedGroup> {
        let known = match self {
            Self::Known(known) => Some(known),
            Self::NotRead => None,
        };
        let all = known.into_iter().flatten();
        all.filter(|(_, origin)| **origin == Origin::BuiltIn)
            .map(|(group, _)| group)
            .collect()
    }

    /// Returns the server that answers for a type; `None` when that is unknown.
    ///
    /// An API server that starts serves its types before it has registered them: with an empty etcd it
    /// has no APIServices for a moment.
    pub(super) fn of(&self, gvr: &GroupVersionResource) -> Option<Origin> {
        let registered = match self {
            Self::Known(known) => known.get(&(gvr.group.to_string(), gvr.version.to_string())),
            Self::NotRead => None,
        };
        let by_name = || is_built_in_group(&gvr.group).then_some(Origin::BuiltIn);
        registered.copied().or_else(by_name)
    }
}

/// The APIServices that are followed.
#[derive(Debug, Default)]
pub(super) struct ApiServices {
    known: ParsedObjects<(VersionedGroup, Origin)>,
}

impl ApiServices {
    /// Has all of them parsed again with the next update.
    pub(super) fn forget_versions(&mut self) {
        self.known.forget_versions();
    }

    /// Takes in the newest ones, and returns the origins that they state.
    pub(super) fn update(&mut self, snapshot: &Snapshot) -> Origins {
        let read = |service: ApiService, _: Option<&_>| service.read();
        self.known.update(snapshot, "APIService", read);
        Origins::Known(self.known.all().cloned().collect())
    }
}

#[derive(Deserialize)]
struct ApiServiceList {
    items: Vec<ApiService>,
}

#[derive(Deserialize)]
struct ApiService {
    #[serde(default)]
    metadata: ApiServiceMetadata,
    spec: ApiServiceSpec,
}

#[derive(Default, Deserialize)]
struct ApiServiceMetadata {
    #[serde(default)]
    labels: HashMap<String, String>,
}

#[derive(Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    /// Absent for what the API server answers itself.
    service: Option<serde::de::IgnoredAny>,
}

impl ApiService {
    fn read(self) -> (VersionedGroup, Origin) {
        let managed = self.metadata.labels.get(MANAGED).map(String::as_str);
        let origin = match (self.spec.service, managed) {
            (Some(_), _) => Origin::Aggregated,
            (None, Some("onstart")) => Origin::BuiltIn,
            (None, _) => Origin::Custom,
        };
        ((self.spec.group, self.spec.version), origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_other_servers_are_told_apart() {
        let text = r#"{"kind":"APIServiceList","items":[
            {"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}},
                "spec":{"version":"v1","groupPriorityMinimum":1,"versionPriority":1}},
            {"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"true"}},
                "spec":{"group":"example.org","version":"v1","service":null}},
            {"spec":{"group":"metrics.k8s.io","version":"v1beta1","service":{"namespace":"kube-system","name":"m"}}}]}"#;
        let list: ApiServiceList = serde_json::from_str(text).unwrap();
        let known = Origins::Known(list.items.into_iter().map(ApiService::read).collect());
        let of = |origins: &Origins| {
            [
                ("", "v1", "pods"),
                ("example.org", "v1", "things"),
                ("metrics.k8s.io", "v1beta1", "pods"),
            ]
            .map(|(group, version, name)| {
                origins.of(&GroupVersionResource::new(group, version, name))
            })
        };
        assert_eq!(
            of(&known),
            [
                Some(Origin::BuiltIn),
                Some(Origin::Custom),
                Some(Origin::Aggregated)
            ]
        );
        let by_name = [Some(Origin::BuiltIn), None, None];
        assert_eq!(of(&Origins::NotRead), by_name);
        assert_eq!(of(&Origins::Known(HashMap::new())), by_name);
    }
}
