//! The objects that are there at the start.
use fastrand::Rng;
use watershed_protocol::GroupVersionResource;

use super::fixtures::{
    self, configmap, deployment, lease, namespace_name, node_name, pod, pod_name, secret, service,
    widget, widget_definition,
};
use super::options::Population;
use super::state::ClusterState;

/// Fills an empty state.
pub(crate) fn populate(state: &ClusterState, population: Population, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let namespaces = population.namespaces;
    // Namespaced objects are spread over `default` too, when there are no others.
    let namespace = |n: usize| {
        if namespaces == 0 {
            "default".to_owned()
        } else {
            namespace_name(n % namespaces)
        }
    };
    let node = |n: usize| {
        if population.nodes == 0 {
            String::new()
        } else {
            node_name(n % population.nodes)
        }
    };
    let create = |group: &str, resource: &str, json: String| {
        // Names are counted, so none is taken and nothing is refused.
        let _ = state.create(&GroupVersionResource::new(group, "v1", resource), &json);
    };
    create(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        widget_definition(),
    );
    for name in ["default", "kube-system", "kube-node-lease"] {
        create("", "namespaces", fixtures::namespace(name));
    }
    (0..namespaces).for_each(|n| create("", "namespaces", fixtures::namespace(&namespace_name(n))));
    for n in 0..population.nodes {
        create("", "nodes", fixtures::node(&node_name(n), &mut rng));
        create("coordination.k8s.io", "leases", lease(&node_name(n), 0));
    }
    for n in 0..population.pods {
        create(
            "",
            "pods",
            pod(&namespace(n), &pod_name(n, &mut rng), &node(n), &mut rng),
        );
    }
    for n in 0..population.configmaps {
        let name = format!("config-{n:04}");
        create(
            "",
            "configmaps",
            configmap(&namespace(n), &name, population.configmap_bytes, &mut rng),
        );
    }
    for n in 0..population.secrets {
        create(
            "",
            "secrets",
            secret(&namespace(n), &format!("secret-{n:04}"), &mut rng),
        );
    }
    for n in 0..population.services {
        create(
            "",
            "services",
            service(&namespace(n), &format!("service-{n:04}"), n),
        );
    }
    for n in 0..population.deployments {
        create(
            "apps",
            "deployments",
            deployment(&namespace(n), &format!("deploy-{n:04}"), &mut rng),
        );
    }
    for n in 0..population.widgets {
        create(
            "example.com",
            "widgets",
            widget(&namespace(n), &format!("widget-{n:04}"), &mut rng),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_objects_but_for_a_few() {
        let state = ClusterState::new(10, 0);
        populate(&state, Population::cluster(100, 5), 0);
        for gvr in super::super::kinds::resources() {
            let empty = ["serviceaccounts", "replicasets", "endpointslices"]
                .contains(&&*gvr.resource)
                || &*gvr.group == "rbac.authorization.k8s.io";
            assert_eq!(state.snapshot(&gvr).is_empty(), empty, "{gvr}");
        }
    }
}
