//! The types that a proxy may take for granted before it has read discovery.
use watershed_protocol::GroupVersionResource;

use super::discovery::DiscoveredType;

/// A type that each supported API server lists and watches in this version.
struct WellKnownType {
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    kind: &'static str,
    namespaced: bool,
}

/// The types that proxies on nodes cache, and service accounts, which a proxy that validates
/// their tokens follows for itself.
const WELL_KNOWN: &[WellKnownType] = &[
    WellKnownType::core("pods", "Pod", true),
    WellKnownType::core("nodes", "Node", false),
    WellKnownType::core("serviceaccounts", "ServiceAccount", true),
    WellKnownType {
        group: "coordination.k8s.io",
        version: "v1",
        resource: "leases",
        kind: "Lease",
        namespaced: true,
    },
];

impl WellKnownType {
    const fn core(resource: &'static str, kind: &'static str, namespaced: bool) -> Self {
        Self {
            group: "",
            version: "v1",
            resource,
            kind,
            namespaced,
        }
    }
}

/// Returns `true` for types that each API server has.
pub fn is_well_known(group: &str, resource: &str) -> bool {
    WELL_KNOWN
        .iter()
        .any(|known| known.group == group && known.resource == resource)
}

/// Returns the types that each API server has, as discovery would name them.
pub(super) fn well_known_types() -> Vec<DiscoveredType> {
    let discovered = |known: &WellKnownType| DiscoveredType {
        gvr: GroupVersionResource::new(known.group, known.version, known.resource),
        kind: known.kind.to_owned(),
        namespaced: known.namespaced,
    };
    WELL_KNOWN.iter().map(discovered).collect()
}
