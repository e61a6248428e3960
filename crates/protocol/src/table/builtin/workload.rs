//! Types that make pods and keep them running.
use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use super::template::PodTemplate;
use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::{NAME, integer, text, wide};
use crate::table::row_metadata::RowMetadata;
use crate::table::selector::{ObjectSelector, format_labels, or_none};

pub(super) const PRINTERS: &[BuiltinPrinter] = &[
    BuiltinPrinter {
        resource: ("apps", "v1", "deployments"),
        columns: &[
            NAME,
            text("Ready"),
            text("Up-to-date"),
            text("Available"),
            text("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        print: deployment,
        metadata: RowMetadata::Unless("deprecated.deployment.rollback.to"),
    },
    BuiltinPrinter {
        resource: ("apps", "v1", "replicasets"),
        columns: &[
            NAME,
            integer("Desired"),
            integer("Current"),
            integer("Ready"),
            text("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        print: replica_set,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("apps", "v1", "statefulsets"),
        columns: &[
            NAME,
            text("Ready"),
            text("Age"),
            wide("Containers"),
            wide("Images"),
        ],
        print: stateful_set,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("apps", "v1", "daemonsets"),
        columns: &[
            NAME,
            integer("Desired"),
            integer("Current"),
            integer("Ready"),
            integer("Up-to-date"),
            integer("Available"),
            text("Node Selector"),
            text("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        print: daemon_set,
        metadata: RowMetadata::Without("deprecated.daemonset.template.generation"),
    },
];

#[derive(Deserialize)]
struct Workload {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: WorkloadSpec,
    #[serde(default)]
    status: WorkloadStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WorkloadSpec {
    replicas: Option<i64>,
    selector: Option<ObjectSelector>,
    template: PodTemplate,
}

/// The members of all kinds of workloads.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadStatus {
    replicas: i64,
    ready_replicas: i64,
    updated_replicas: i64,
    available_replicas: i64,
    desired_number_scheduled: i64,
    current_number_scheduled: i64,
    number_ready: i64,
    updated_number_scheduled: i64,
    number_available: i64,
}

impl Workload {
    fn desired(&self) -> i64 {
        self.spec.replicas.unwrap_or_default()
    }

    fn ready_of_desired(&self) -> String {
        format!("{}/{}", self.status.ready_replicas, self.desired())
    }

    fn selector(&self) -> Result<String, Malformed> {
        let selector = self.spec.selector.as_ref();
        selector.map_or_else(|| Ok(String::new()), ObjectSelector::format)
    }
}

fn deployment(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let deployment: Workload = read(object)?;
    cells.text(&deployment.metadata.name);
    cells.text(&deployment.ready_of_desired());
    cells.integer(deployment.status.updated_replicas);
    cells.integer(deployment.status.available_replicas);
    cells.since(deployment.metadata.creation_timestamp);
    deployment.spec.template.print(cells);
    cells.text(&deployment.selector()?);
    Ok(())
}

fn replica_set(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let set: Workload = read(object)?;
    cells.text(&set.metadata.name);
    cells.integer(set.desired());
    cells.integer(set.status.replicas);
    cells.integer(set.status.ready_replicas);
    cells.since(set.metadata.creation_timestamp);
    set.spec.template.print(cells);
    cells.text(&or_none(set.selector()?));
    Ok(())
}

fn stateful_set(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let set: Workload = read(object)?;
    cells.text(&set.metadata.name);
    cells.text(&set.ready_of_desired());
    cells.since(set.metadata.creation_timestamp);
    set.spec.template.print(cells);
    Ok(())
}

fn daemon_set(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let set: Workload = read(object)?;
    cells.text(&set.metadata.name);
    cells.integer(set.status.desired_number_scheduled);
    cells.integer(set.status.current_number_scheduled);
    cells.integer(set.status.number_ready);
    cells.integer(set.status.updated_number_scheduled);
    cells.integer(set.status.number_available);
    cells.text(&format_labels(
        set.spec.template.spec.node_selector.as_ref(),
    ));
    cells.since(set.metadata.creation_timestamp);
    set.spec.template.print(cells);
    cells.text(&or_none(set.selector()?));
    Ok(())
}
