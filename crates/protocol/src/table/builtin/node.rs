//! Nodes.
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedCondition;
use crate::encoding::Malformed;
use crate::table::age::ObjectTime;
use crate::table::cells::Cells;
use crate::table::column::{NAME, text, wide};
use crate::table::row_metadata::RowMetadata;
use crate::table::selector::or_none;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[BuiltinPrinter {
    resource: ("", "v1", "nodes"),
    columns: &[
        NAME,
        text("Status"),
        text("Roles"),
        text("Age"),
        text("Version"),
        wide("Internal-IP"),
        wide("External-IP"),
        wide("OS-Image"),
        wide("Kernel-Version"),
        wide("Container-Runtime"),
    ],
    print,
    metadata: RowMetadata::AsIs,
}];

/// Prefix of the labels that name roles.
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
/// The label whose value is a role.
const ROLE: &str = "kubernetes.io/role";

#[derive(Deserialize)]
struct Node {
    metadata: NodeMeta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeMeta {
    name: String,
    creation_timestamp: ObjectTime,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatus {
    conditions: Option<Vec<PrintedCondition>>,
    addresses: Option<Vec<NodeAddress>>,
    node_info: NodeInfo,
}

#[derive(Deserialize)]
struct NodeAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo {
    kubelet_version: String,
    os_image: String,
    kernel_version: String,
    container_runtime_version: String,
    architecture: String,
}

fn print(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let Node {
        metadata,
        spec,
        status,
    } = read(object)?;
    let info = &status.node_info;
    cells.text(&metadata.name);
    cells.text(&condition(&spec, &status));
    cells.text(&or_none(roles(&metadata)));
    cells.since(metadata.creation_timestamp);
    cells.text(&info.kubelet_version);
    cells.text(address(&status, "InternalIP"));
    cells.text(address(&status, "ExternalIP"));
    cells.text(known(&info.os_image));
    let kernel = known(&info.kernel_version);
    if info.architecture.is_empty() || !cells.is_at_least(36)? {
        cells.text(kernel);
    } else {
        cells.text(&format!("{kernel} ({})", info.architecture));
    }
    cells.text(known(&info.container_runtime_version));
    Ok(())
}

fn condition(spec: &NodeSpec, status: &NodeStatus) -> String {
    let mut conditions = status.conditions.iter().flatten();
    // The last one of its type counts.
    let ready = conditions.rfind(|condition| condition.kind == "Ready");
    let ready = match ready.map(PrintedCondition::is_true) {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    };
    if spec.unschedulable {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    }
}

fn roles(metadata: &NodeMeta) -> String {
    let roles = metadata.labels.iter().flatten().filter_map(|(key, value)| {
        let role = match key.strip_prefix(ROLE_PREFIX) {
            Some(role) => role,
            None if key == ROLE => value,
            None => "",
        };
        Some(role).filter(|role| !role.is_empty())
    });
    let sorted: BTreeSet<_> = roles.collect();
    sorted.into_iter().collect::<Vec<_>>().join(",")
}

/// Returns the first address of this type, even if it is empty.
fn address<'a>(status: &'a NodeStatus, kind: &str) -> &'a str {
    let mut addresses = status.addresses.iter().flatten();
    addresses
        .find(|address| address.kind == kind)
        .map_or("<none>", |found| &found.address)
}

fn known(text: &str) -> &str {
    if text.is_empty() { "<unknown>" } else { text }
}
