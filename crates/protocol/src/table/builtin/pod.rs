//! Pods.
use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::{PrintedCondition, PrintedMeta};
use crate::encoding::Malformed;
use crate::table::age::ObjectTime;
use crate::table::cells::Cells;
use crate::table::column::{NAME, text, wide};
use crate::table::row_metadata::RowMetadata;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[BuiltinPrinter {
    resource: ("", "v1", "pods"),
    columns: &[
        NAME,
        text("Ready"),
        text("Status"),
        text("Restarts"),
        text("Age"),
        wide("IP"),
        wide("Node"),
        wide("Nominated Node"),
        wide("Readiness Gates"),
    ],
    print,
    metadata: RowMetadata::AsIs,
}];

const SUCCEEDED: &str = r#"[{"type":"Completed","status":"True","reason":"Succeeded","message":"The pod has completed successfully."}]"#;
const FAILED: &str =
    r#"[{"type":"Completed","status":"True","reason":"Failed","message":"The pod failed."}]"#;

#[derive(Deserialize)]
struct Pod {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    node_name: String,
    readiness_gates: Option<Vec<ReadinessGate>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    restart_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessGate {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    reason: String,
    conditions: Option<Vec<PrintedCondition>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp>>,
    nominated_node_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    state: ContainerState,
    last_state: ContainerState,
    ready: bool,
    restart_count: i64,
    started: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i64,
    signal: i64,
    reason: String,
    finished_at: ObjectTime,
}

/// The summary of a pod's containers.
#[derive(Default)]
struct Summary {
    ready: usize,
    restarts: Restarts,
    reason: String,
}

/// Restarts of containers, and the end of the last run before one.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: ObjectTime,
}

fn print(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let pod: Pod = read(object)?;
    let summary = pod.summary(cells)?;
    let sidecars = pod.init_containers().filter(|one| one.is_restartable());
    let containers = pod.spec.containers.iter().flatten().count() + sidecars.count();
    match pod.status.phase.as_str() {
        "Succeeded" => cells.set_conditions(SUCCEEDED),
        "Failed" => cells.set_conditions(FAILED),
        _ => {}
    }
    cells.text(&pod.metadata.name);
    cells.text(&format!("{}/{containers}", summary.ready));
    cells.text(&summary.reason);
    cells.text(&summary.restarts.format(cells));
    cells.since(pod.metadata.creation_timestamp);
    let ip = pod.status.pod_ips.iter().flatten().next();
    cells.text(named(ip.map_or("", |ip| &ip.ip)));
    cells.text(named(&pod.spec.node_name));
    cells.text(named(&pod.status.nominated_node_name));
    cells.text(&pod.readiness_gates());
    Ok(())
}

fn named(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

impl Pod {
    fn init_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().flatten()
    }

    fn summary(&self, cells: &Cells) -> Result<Summary, Malformed> {
        let mut summary = Summary {
            reason: self.phase_or_reason(),
            ..Summary::default()
        };
        let (sidecars, is_initializing) = self.initialization(&mut summary);
        let conditions = self.status.conditions.as_ref();
        if !is_initializing || PrintedCondition::first_is_true(conditions, "Initialized") {
            summary.restarts = sidecars;
            self.running(&mut summary, cells)?;
        }
        if self.metadata.deletion_timestamp.is_some() {
            let is_ended = matches!(self.status.phase.as_str(), "Succeeded" | "Failed");
            if self.status.reason == "NodeLost" {
                "Unknown".clone_into(&mut summary.reason);
            } else if !is_ended || !cells.is_at_least(31)? {
                "Terminating".clone_into(&mut summary.reason);
            }
        }
        Ok(summary)
    }

    fn phase_or_reason(&self) -> String {
        const GATED: &str = "SchedulingGated";
        let mut conditions = self.status.conditions.iter().flatten();
        if conditions.any(|one| one.kind == "PodScheduled" && one.reason == GATED) {
            return GATED.to_owned();
        }
        let status = &self.status;
        let text = if status.reason.is_empty() {
            &status.phase
        } else {
            &status.reason
        };
        text.clone()
    }

    /// Looks at the init containers, until the first that has not done its work. Returns the
    /// restarts of those that go on beside the others, and whether the pod is being initialized.
    fn initialization(&self, summary: &mut Summary) -> (Restarts, bool) {
        let mut sidecars = Restarts::default();
        let statuses = self.status.init_container_statuses.iter().flatten();
        for (place, status) in statuses.enumerate() {
            summary.restarts.add(status);
            // The last one of the name counts.
            let named = self.init_containers().filter(|one| one.name == status.name);
            let is_sidecar = named.last().is_some_and(Container::is_restartable);
            if is_sidecar {
                sidecars.add(status);
            }
            let total = self.init_containers().count();
            let state = &status.state;
            summary.reason = match (&state.terminated, &state.waiting) {
                (Some(Terminated { exit_code: 0, .. }), _) => continue,
                _ if is_sidecar && status.started == Some(true) => {
                    summary.ready += usize::from(status.ready);
                    continue;
                }
                (Some(terminated), _) => format!("Init:{}", terminated.format()),
                (None, Some(waiting))
                    if !matches!(waiting.reason.as_str(), "" | "PodInitializing") =>
                {
                    format!("Init:{}", waiting.reason)
                }
                _ => format!("Init:{place}/{total}"),
            };
            return (sidecars, true);
        }
        (sidecars, false)
    }

    /// Looks at the containers that do the pod's work. The reason of the first one counts.
    fn running(&self, summary: &mut Summary, cells: &Cells) -> Result<(), Malformed> {
        let mut has_running = false;
        let mut error = None;
        for status in self.status.container_statuses.iter().flatten().rev() {
            summary.restarts.add(status);
            let state = &status.state;
            match (&state.waiting, &state.terminated) {
                (Some(waiting), _) if !waiting.reason.is_empty() => {
                    summary.reason.clone_from(&waiting.reason);
                }
                (_, Some(terminated)) => {
                    summary.reason = terminated.format();
                    if terminated.exit_code != 0 {
                        error = Some(summary.reason.clone());
                    }
                }
                _ if status.ready && state.running.is_some() => {
                    has_running = true;
                    summary.ready += 1;
                }
                _ => {}
            }
        }
        if summary.reason == "Completed" {
            let conditions = self.status.conditions.as_ref();
            if has_running && PrintedCondition::any_is_true(conditions, "Ready") {
                "Running".clone_into(&mut summary.reason);
            } else if let Some(error) = error
                && cells.is_at_least(35)?
            {
                summary.reason = error;
            } else if has_running {
                "NotReady".clone_into(&mut summary.reason);
            }
        }
        Ok(())
    }

    fn readiness_gates(&self) -> String {
        let gates = self.spec.readiness_gates.as_deref().unwrap_or_default();
        if gates.is_empty() {
            return "<none>".to_owned();
        }
        let conditions = self.status.conditions.as_ref();
        let is_true = |gate: &&ReadinessGate| {
            PrintedCondition::first_is_true(conditions, &gate.condition_type)
        };
        format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
    }
}

impl Container {
    /// Returns `true` if an init container goes on beside the others.
    fn is_restartable(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl Terminated {
    fn format(&self) -> String {
        if !self.reason.is_empty() {
            self.reason.clone()
        } else if self.signal != 0 {
            format!("Signal:{}", self.signal)
        } else {
            format!("ExitCode:{}", self.exit_code)
        }
    }
}

impl Restarts {
    fn add(&mut self, status: &ContainerStatus) {
        self.count += status.restart_count;
        if let Some(terminated) = &status.last_state.terminated {
            self.last = self.last.max(terminated.finished_at);
        }
    }

    fn format(self, cells: &Cells) -> String {
        if self.count == 0 || self.last == ObjectTime::default() {
            return self.count.to_string();
        }
        format!("{} ({} ago)", self.count, self.last.since(cells.now()))
    }
}
