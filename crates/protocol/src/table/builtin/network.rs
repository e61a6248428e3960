//! Services, their endpoints, and who may reach what.
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::{NAME, text, wide};
use crate::table::row_metadata::RowMetadata;
use crate::table::selector::{ObjectSelector, format_labels, or_none};

pub(super) const PRINTERS: &[BuiltinPrinter] = &[
    BuiltinPrinter {
        resource: ("", "v1", "services"),
        columns: &[
            NAME,
            text("Type"),
            text("Cluster-IP"),
            text("External-IP"),
            text("Port(s)"),
            text("Age"),
            wide("Selector"),
        ],
        print: service,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("discovery.k8s.io", "v1", "endpointslices"),
        columns: &[
            NAME,
            text("AddressType"),
            text("Ports"),
            text("Endpoints"),
            text("Age"),
        ],
        print: endpoint_slice,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("networking.k8s.io", "v1", "networkpolicies"),
        columns: &[NAME, text("Pod-Selector"), text("Age")],
        print: network_policy,
        metadata: RowMetadata::AsIs,
    },
];

#[derive(Deserialize)]
struct Service {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: ServiceSpec,
    #[serde(default)]
    status: ServiceStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    external_ips: Option<Vec<String>>,
    external_name: String,
    ports: Option<Vec<ServicePort>>,
    selector: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServicePort {
    port: i32,
    node_port: i32,
    protocol: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceStatus {
    load_balancer: LoadBalancer,
}

/// The addresses of a load balancer.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LoadBalancer {
    ingress: Option<Vec<IngressPoint>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressPoint {
    ip: String,
    hostname: String,
}

fn service(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let service: Service = read(object)?;
    let spec = &service.spec;
    let cluster_ip = spec.cluster_ips.iter().flatten().next();
    let ports = spec.ports.iter().flatten().map(ServicePort::format);
    cells.text(&service.metadata.name);
    cells.text(&spec.kind);
    cells.text(cluster_ip.map_or("<none>", String::as_str));
    cells.text(&service.external());
    cells.text(&or_none(ports.collect::<Vec<_>>().join(",")));
    cells.since(service.metadata.creation_timestamp);
    cells.text(&format_labels(spec.selector.as_ref()));
    Ok(())
}

impl Service {
    fn external(&self) -> String {
        let ips = self.spec.external_ips.as_deref().unwrap_or_default();
        match self.spec.kind.as_str() {
            "ClusterIP" | "NodePort" if ips.is_empty() => "<none>".to_owned(),
            "ClusterIP" | "NodePort" => ips.join(","),
            "LoadBalancer" => {
                let mut all = self.status.load_balancer.addresses();
                all.extend(ips.iter().map(String::as_str));
                if all.is_empty() {
                    "<pending>".to_owned()
                } else {
                    all.join(",")
                }
            }
            "ExternalName" => self.spec.external_name.clone(),
            _ => "<unknown>".to_owned(),
        }
    }
}

impl LoadBalancer {
    /// Returns its addresses, or the names of those that have one, each once and sorted.
    pub(super) fn addresses(&self) -> Vec<&str> {
        let ingress = self.ingress.iter().flatten();
        let addresses = ingress.map(|ingress| {
            if ingress.ip.is_empty() {
                ingress.hostname.as_str()
            } else {
                &ingress.ip
            }
        });
        let sorted: BTreeSet<_> = addresses.filter(|address| !address.is_empty()).collect();
        sorted.into_iter().collect()
    }
}

impl ServicePort {
    fn format(&self) -> String {
        let Self {
            port,
            node_port,
            protocol,
        } = self;
        if *node_port > 0 {
            format!("{port}:{node_port}/{protocol}")
        } else {
            format!("{port}/{protocol}")
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointSlice {
    metadata: PrintedMeta,
    #[serde(default)]
    address_type: String,
    ports: Option<Vec<EndpointPort>>,
    endpoints: Option<Vec<SliceEndpoint>>,
}

#[derive(Deserialize)]
struct EndpointPort {
    port: Option<i32>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct SliceEndpoint {
    addresses: Option<Vec<String>>,
}

fn endpoint_slice(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let slice: EndpointSlice = read(object)?;
    let ports = slice.ports.iter().flatten().map(EndpointPort::format);
    let endpoints = slice.endpoints.iter().flatten();
    let addresses = endpoints.flat_map(|endpoint| endpoint.addresses.iter().flatten());
    cells.text(&slice.metadata.name);
    cells.text(&slice.address_type);
    cells.text(&first_three(ports));
    cells.text(&first_three(addresses.cloned()));
    cells.since(slice.metadata.creation_timestamp);
    Ok(())
}

impl EndpointPort {
    fn format(&self) -> String {
        match (self.port, &self.name) {
            (Some(port), _) => port.to_string(),
            (None, Some(name)) => name.clone(),
            (None, None) => "*".to_owned(),
        }
    }
}

fn network_policy(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    struct NetworkPolicy {
        metadata: PrintedMeta,
        #[serde(default)]
        spec: NetworkPolicySpec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct NetworkPolicySpec {
        pod_selector: ObjectSelector,
    }
    let NetworkPolicy { metadata, spec } = read(object)?;
    cells.text(&metadata.name);
    cells.text(&or_none(spec.pod_selector.format()?));
    cells.since(metadata.creation_timestamp);
    Ok(())
}

/// Lists the first ones, and says how many more there are.
fn first_three(mut all: impl Iterator<Item = String>) -> String {
    let first: Vec<_> = all.by_ref().take(3).collect();
    let listed = first.join(",");
    match all.count() {
        0 if listed.is_empty() => "<unset>".to_owned(),
        0 => listed,
        more => format!("{listed} + {more} more..."),
    }
}
