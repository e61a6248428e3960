//! The plan of a run, which is checked before anything runs.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::group::{ClientGroup, is_namespace_name};
use crate::process::Process;
use crate::rate::Rate;

/// Bounds of memory and sockets of this process.
const MAX_WATCHES: usize = 100_000;
const MAX_CONNECTIONS: usize = 10_000;
const MAX_GROUPS: usize = 100;
const MAX_TARGETS: usize = 10;
const MAX_PROCESSES: usize = 20;
const MAX_OBJECTS: usize = 1000;
/// Limit of pairs of a watch and an object that it watches, as each pair has its own counter.
const MAX_PAIRS: usize = 20_000_000;
/// An API server takes no ConfigMap above 1 MiB.
const MAX_OBJECT_BYTES: usize = 512 << 10;
const MAX_ROUNDS: usize = 100;
const MAX_DURATION: Duration = Duration::from_hours(24);

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The servers; others are compared with the first.
    pub targets: Vec<LoadTarget>,
    /// Kubeconfig of the writer; `None` for the first target's.
    pub writer: Option<KubeconfigContext>,
    /// The clients.
    pub groups: Vec<ClientGroup>,
    /// Connections the watches share; `None` for one for each 50 of them.
    pub connections: Option<usize>,
    /// HTTP/1.1 instead of HTTP/2, where each watch has a connection of its own.
    pub http1: bool,
    /// The writes that make events.
    pub writes: LoadWrites,
    /// Length of the measurement in a round.
    pub duration: Duration,
    /// Rounds on each server.
    pub rounds: usize,
    /// Time limit for the first state of all watches.
    pub start_timeout: Duration,
    /// Time limit for the last events after the last write.
    pub settle: Duration,
    /// Processes whose CPU and memory are read.
    pub processes: Vec<Process>,
}

/// A server under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadTarget {
    /// In tables and plots.
    pub name: String,
    /// Kubeconfig of the server.
    pub access: KubeconfigContext,
}

/// A kubeconfig and a context in it, each with the defaults of `watershed serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeconfigContext {
    /// The file.
    pub kubeconfig: Option<PathBuf>,
    /// The context.
    pub context: Option<String>,
}

/// ConfigMaps that are changed in turn.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadWrites {
    /// Changes.
    pub rate: Rate,
    /// Number of ConfigMaps.
    pub objects: usize,
    /// Bytes of data in each.
    pub object_bytes: usize,
    /// An existing namespace; `None` for one that is made and deleted again.
    pub namespace: Option<String>,
}

/// A file of clients.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClientMix {
    clients: Vec<ClientGroup>,
}

/// The clients that a YAML file describes.
pub fn mix(yaml: &str) -> anyhow::Result<Vec<ClientGroup>> {
    let mix: ClientMix = serde_saphyr::from_str(yaml)
        .map_err(|error| anyhow::anyhow!("{}", error.without_snippet()))?;
    ensure!(!mix.clients.is_empty(), "it names no clients");
    for (n, group) in mix.clients.iter().enumerate() {
        group
            .check()
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("clients number {}", n + 1))?;
    }
    Ok(mix.clients)
}

impl LoadPlan {
    /// Checks the whole plan. The error is one line that names the flag.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_servers()?;
        self.check_clients()?;
        self.check_writes()?;
        ensure!(
            (1..=MAX_ROUNDS).contains(&self.rounds),
            "between 1 and {MAX_ROUNDS} rounds are possible (--rounds)"
        );
        ensure!(
            self.duration >= Duration::from_secs(1) && self.duration <= MAX_DURATION,
            "a round measures for at least 1s and at most a day (--duration)"
        );
        for (time, flag) in [
            (self.start_timeout, "--start-timeout"),
            (self.settle, "--settle"),
        ] {
            ensure!(time <= MAX_DURATION, "{flag} is longer than a day");
        }
        Ok(())
    }

    fn check_servers(&self) -> anyhow::Result<()> {
        let Self {
            targets, processes, ..
        } = self;
        ensure!(
            (1..=MAX_TARGETS).contains(&targets.len()),
            "between 1 and {MAX_TARGETS} servers can be compared"
        );
        ensure!(
            are_different(targets.iter().map(|target| &*target.name)),
            "two servers have the same name (--compare)"
        );
        ensure!(
            are_different(processes.iter().map(|process| &*process.name)),
            "two processes have the same name (--pid)"
        );
        ensure!(
            processes.len() <= MAX_PROCESSES,
            "at most {MAX_PROCESSES} processes can be measured (--pid)"
        );
        for process in processes {
            ensure!(
                process.usage().is_some(),
                "cannot measure process {} of {}: is it running, and is there a /proc? (--pid)",
                process.pid,
                process.name
            );
        }
        Ok(())
    }

    fn check_clients(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=MAX_GROUPS).contains(&self.groups.len()),
            "between 1 and {MAX_GROUPS} kinds of clients are possible (--mix)"
        );
        for group in &self.groups {
            group.check().map_err(anyhow::Error::msg)?;
        }
        ensure!(
            self.watches() <= MAX_WATCHES,
            "at most {MAX_WATCHES} watches are possible (--watches, --mix)"
        );
        ensure!(
            (1..=MAX_CONNECTIONS).contains(&self.connections()),
            "between 1 and {MAX_CONNECTIONS} connections are possible (--connections)"
        );
        Ok(())
    }

    fn check_writes(&self) -> anyhow::Result<()> {
        let (watches, objects) = (self.watches(), self.writes.objects);
        ensure!(
            (1..=MAX_OBJECTS).contains(&objects),
            "between 1 and {MAX_OBJECTS} objects can be written (--objects)"
        );
        ensure!(
            watches * objects <= MAX_PAIRS,
            "{watches} watches of {objects} objects are too many to count (--watches, --objects)"
        );
        let namespace = self.writes.namespace.as_deref();
        if let Some(name) = namespace.filter(|name| !is_namespace_name(name)) {
            bail!("{name:?} is not the name of a namespace (--write-namespace)");
        }
        ensure!(
            self.writes.object_bytes <= MAX_OBJECT_BYTES,
            "an object can have at most {MAX_OBJECT_BYTES} bytes (--object-bytes)"
        );
        Ok(())
    }

    pub(super) fn watches(&self) -> usize {
        let watches = self.groups.iter().map(|group| group.watches);
        watches.fold(0, usize::saturating_add)
    }

    /// Connections the watches share.
    pub(super) fn connections(&self) -> usize {
        self.connections
            .unwrap_or_else(|| self.watches().div_ceil(50).max(1))
    }

    /// Returns the kubeconfig of the writer. All writes go to its server.
    pub(super) fn writer(&self) -> &KubeconfigContext {
        self.writer.as_ref().unwrap_or(&self.targets[0].access)
    }
}

fn are_different<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.windows(2).all(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::test_support::plan;

    #[test]
    fn a_mix_is_read() {
        let groups = mix(
            "clients:\n- watches: 300\n  fieldSelector: metadata.name=x-{0..9}\n  \
             encoding: protobuf\n  firstState: stream\n\
             - lists: 5/s\n  resource: pods\n  gzip: true\n- gets: 50\n  consistent: true\n",
        )
        .unwrap();
        let text: Vec<_> = groups.iter().map(ClientGroup::describe).collect();
        assert_eq!(
            text,
            [
                "300 watches of configmaps where metadata.name=x-{0..9} (protobuf)",
                "5 lists/s of pods (JSON, gzip)",
                "50 gets/s of configmaps (JSON)"
            ]
        );
    }

    #[test]
    fn a_mix_with_a_mistake_is_refused() {
        for (yaml, why) in [
            ("clients: []", "no clients"),
            ("clients: [{watchs: 1}]", "watchs"),
            (
                "clients: [{watches: 1}, {resource: pods}]",
                "clients number 2",
            ),
            ("clients: [{lists: often}]", "not a rate"),
            ("{}", "clients"),
        ] {
            let error = format!("{:#}", mix(yaml).unwrap_err());
            assert!(error.contains(why), "{yaml}: {error}");
        }
    }

    #[test]
    fn a_plan_is_bounded() {
        type Change = fn(&mut LoadPlan);
        assert!(plan().check().is_ok());
        assert_eq!(plan().connections(), 3);
        let wrong: [(Change, &str); 13] = [
            (|p| p.targets.push(p.targets[0].clone()), "--compare"),
            (|p| p.groups[0].watches = 1_000_000, "--watches"),
            (
                |p| {
                    p.groups[0].watches = usize::MAX;
                    p.groups.push(p.groups[0].clone());
                },
                "--watches",
            ),
            (|p| p.connections = Some(0), "--connections"),
            (|p| p.writes.objects = 0, "--objects"),
            (|p| p.writes.object_bytes = 1 << 30, "--object-bytes"),
            (
                |p| p.writes.namespace = Some("../x".to_owned()),
                "--write-namespace",
            ),
            (|p| p.rounds = 0, "--rounds"),
            (|p| p.duration = Duration::ZERO, "--duration"),
            (|p| p.start_timeout = Duration::MAX, "--start-timeout"),
            (|p| p.settle = Duration::MAX, "--settle"),
            (
                |p| {
                    p.processes.push(Process {
                        name: "x".to_owned(),
                        pid: u32::MAX,
                    });
                },
                "--pid",
            ),
            (|p| p.groups.clear(), "--mix"),
        ];
        for (change, flag) in wrong {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(flag) && !error.contains('\n'), "{error}");
        }
    }
}
