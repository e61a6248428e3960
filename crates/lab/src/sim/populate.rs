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
    let definition = widget_definition();
    create(
        state,
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        &definition,
    );
    for name in ["default", "kube-system", "kube-node-lease"] {
        create(state, "", "namespaces", &fixtures::namespace(name));
    }
    for n in 0..population.namespaces {
        let json = fixtures::namespace(&namespace_name(n));
        create(state, "", "namespaces", &json);
    }
    for n in 0..population.nodes {
        let name = node_name(n);
        create(state, "", "nodes", &fixtures::node(&name, &mut rng));
        create(state, "coordination.k8s.io", "leases", &lease(&name, 0));
    }
    for n in 0..population.pods {
        let (namespace, node) = (namespace_of(n, population), node_of(n, population));
        let name = pod_name(n, &mut rng);
        create(state, "", "pods", &pod(&namespace, &name, &node, &mut rng));
    }
    for n in 0..population.configmaps {
        let (namespace, name) = (namespace_of(n, population), format!("config-{n:04}"));
        let json = configmap(&namespace, &name, population.configmap_bytes, &mut rng);
        create(state, "", "configmaps", &json);
    }
    for n in 0..population.secrets {
        let (namespace, name) = (namespace_of(n, population), format!("secret-{n:04}"));
        create(state, "", "secrets", &secret(&namespace, &name, &mut rng));
    }
    for n in 0..population.services {
        let (namespace, name) = (namespace_of(n, population), format!("service-{n:04}"));
        create(state, "", "services", &service(&namespace, &name, n));
    }
    for n in 0..population.deployments {
        let (namespace, name) = (namespace_of(n, population), format!("deploy-{n:04}"));
        let json = deployment(&namespace, &name, &mut rng);
        create(state, "apps", "deployments", &json);
    }
    for n in 0..population.widgets {
        let (namespace, name) = (namespace_of(n, population), format!("widget-{n:04}"));
        let json = widget(&namespace, &name, &mut rng);
        create(state, "example.com", "widgets", &json);
    }
}

/// Spreads objects evenly over the namespaces, or puts all into `default` if there are none.
fn namespace_of(n: usize, population: Population) -> String {
    match population.namespaces {
        0 => "default".to_owned(),
        namespaces => namespace_name(n % namespaces),
    }
}

/// Spreads pods evenly over the nodes.
fn node_of(n: usize, population: Population) -> String {
    match population.nodes {
        0 => String::new(),
        nodes => node_name(n % nodes),
    }
}

fn create(state: &ClusterState, group: &str, resource: &str, json: &str) {
    // The names are numbered, so no name is taken and no object is refused.
    let _ = state.create(&GroupVersionResource::new(group, "v1", resource), json);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_but_a_few_have_objects() {
        let state = ClusterState::new(10, 0);
        populate(&state, Population::cluster(100, 5), 0);
        for gvr in super::super::kinds::resources() {
            let empty = ["events", "serviceaccounts", "replicasets", "endpointslices"]
                .contains(&&*gvr.resource)
                || &*gvr.group == "rbac.authorization.k8s.io";
            assert_eq!(state.snapshot(&gvr).is_empty(), empty, "{gvr}");
        }
    }
}
