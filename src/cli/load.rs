//! `watershed load`: its flags, and the files of its results.
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use watershed_figures::parse_duration;
use watershed_lab::load::{
    AnswerEncoding, ClientGroup, FirstState, KubeconfigContext, KubectlResource, LoadPlan,
    LoadResult, LoadTarget, LoadWrites, NumberedText, OWN_PROCESS, Rate, comparison, mix, run,
    table, verdict,
};
use watershed_lab::plot::plot_result;
use watershed_lab::process::Process;

use super::failure::{INTERRUPTED, InvalidUsage};
use super::interrupt::interruptible;
use super::output::{complain, print_line};
use crate::telemetry::{self, LogFormat};

/// Said when a second signal ends a run before what it wrote is deleted.
const LEFT_OVER: &str = "interrupted twice; the ConfigMaps of this run may still be on the server: \
    `kubectl delete configmaps,namespaces -A -l app.kubernetes.io/managed-by=watershed-load \
    --wait=false` deletes them";

/// Flags of `watershed load`.
#[derive(Args, Debug)]
pub(super) struct LoadCommand {
    /// Kubeconfig of the server under load; with --compare, of the writer. Default: $KUBECONFIG,
    /// then the in-cluster service account, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig, instead of its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Servers that do the same work in turn: a name and a kubeconfig for each. Others are compared
    /// with the first.
    #[arg(
        long,
        value_name = "NAME=FILE,NAME=FILE",
        value_delimiter = ',',
        value_parser = named_file
    )]
    compare: Vec<(String, PathBuf)>,
    /// Process on this machine whose CPU and memory are measured. May be repeated.
    #[arg(long = "pid", value_name = "NAME=PID", value_parser = process)]
    processes: Vec<Process>,
    /// Length of the measurement in a round.
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = parse_duration)]
    duration: Duration,
    /// Rounds on each server.
    #[arg(long, default_value_t = 1, value_name = "N")]
    rounds: usize,
    /// Time limit for the first state of all watches.
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = parse_duration)]
    start_timeout: Duration,
    /// Time after the last write from which on a missing event counts as lost.
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = parse_duration)]
    settle: Duration,
    /// Folder for result.json, latency.svg and time.svg. It is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    clients: ClientFlags,
    #[command(flatten)]
    events: EventFlags,
}

/// Flags of the clients.
#[derive(Args, Debug)]
#[command(next_help_heading = "Clients")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct ClientFlags {
    /// Number of watches, which stay open all the time.
    #[arg(long, default_value_t = 100, value_name = "N")]
    watches: usize,
    /// Rate of lists of the selection, such as 5/s or 30/m.
    #[arg(long, default_value = "0/s", value_name = "RATE")]
    lists: Rate,
    /// Rate of gets of single objects of the selection.
    #[arg(long, default_value = "0/s", value_name = "RATE")]
    gets: Rate,
    /// Type of the objects that are read, such as pods or deployments.v1.apps. Only ConfigMaps are
    /// written.
    #[arg(long, default_value = "configmaps", value_name = "RESOURCE")]
    resource: KubectlResource,
    /// Namespace that is read. Default: all namespaces. {1..9} gives each client its own, here and
    /// in selectors.
    #[arg(long, value_name = "NAME")]
    namespace: Option<NumberedText>,
    /// Label selector.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<NumberedText>,
    /// Field selector, such as spec.nodeName=node-{0..49}.
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<NumberedText>,
    /// Encoding of answers.
    #[arg(long, value_enum, default_value_t)]
    encoding: AnswerEncoding,
    /// Ask for compressed answers.
    #[arg(long)]
    gzip: bool,
    /// Ask for the objects' metadata only.
    #[arg(long)]
    metadata_only: bool,
    /// Lists and gets ask for the latest state (resourceVersion unset) instead of any (0).
    #[arg(long)]
    consistent: bool,
    /// First state of watches: a list for each; the state in the watch itself; or the version of
    /// one list for all.
    #[arg(long, value_enum, default_value_t)]
    first_state: FirstState,
    /// Clients of several kinds, from a YAML file, instead of the flags above.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "watches", "lists", "gets", "resource", "namespace", "selector", "field_selector",
            "encoding", "gzip", "metadata_only", "consistent", "first_state",
        ]
    )]
    mix: Option<PathBuf>,
    /// Number of connections that the watches share. Default: one for each 50.
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// Use HTTP/1.1, with a connection for each watch.
    #[arg(long)]
    http1: bool,
}

/// Flags of the writes that make events.
#[derive(Args, Debug)]
#[command(next_help_heading = "Events")]
struct EventFlags {
    /// Rate of changes of ConfigMaps; 0 for none.
    #[arg(long, default_value = "10/s", value_name = "RATE")]
    write_rate: Rate,
    /// Kubeconfig of the writer, which always writes to the same server. Default: --kubeconfig,
    /// else the first of --compare.
    #[arg(long, value_name = "FILE")]
    writer: Option<PathBuf>,
    /// Existing namespace for the ConfigMaps. Default: a new one, which is deleted at the end.
    #[arg(long, value_name = "NAME")]
    write_namespace: Option<String>,
    /// Number of ConfigMaps that are changed in turn. They are named watershed-load-0 and so on,
    /// and have a label watershed-load-object.
    #[arg(long, default_value_t = 20, value_name = "N")]
    objects: usize,
    /// Bytes of data in each of them.
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    object_bytes: usize,
}

impl LoadCommand {
    /// Measures, prints the table and writes the files of the result.
    pub(super) async fn run(
        self,
        format: LogFormat,
        level: Option<&str>,
    ) -> anyhow::Result<ExitCode> {
        // Log lines would break the progress bars.
        let bars = std::io::stderr().is_terminal();
        telemetry::logs(
            format,
            level.unwrap_or(if bars {
                "error"
            } else {
                "warn,watershed_lab::load=info"
            }),
        )?;
        let out = self.out.clone();
        if let Some(folder) = &out {
            std::fs::create_dir_all(folder).with_context(|| {
                format!("cannot create the folder {} (--out)", folder.display())
            })?;
        }
        let plan = self.plan().map_err(InvalidUsage::from)?;
        let interrupt = CancellationToken::new();
        let measured = run(&plan, &interrupt, bars);
        let Some(measured) = interruptible(&interrupt, measured).await else {
            complain(LEFT_OVER);
            return Ok(ExitCode::from(INTERRUPTED));
        };
        let measured = measured?;
        if measured.is_empty() {
            let nothing = "interrupted before anything was measured".to_owned();
            let lines: Vec<_> = std::iter::once(nothing).chain(measured.errors).collect();
            bail!("{}", lines.join("; "));
        }
        // Standard output may be full, and the files keep the result.
        let written = out
            .as_deref()
            .map_or(Ok(Vec::new()), |folder| write(folder, &measured));
        let printed = show(&measured, written.as_deref().unwrap_or_default());
        written?;
        printed?;
        Ok(if measured.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn plan(self) -> anyhow::Result<LoadPlan> {
        let own = KubeconfigContext {
            kubeconfig: self.kubeconfig,
            context: self.context,
        };
        let writer = self.events.writer.map(kubeconfig_of);
        let (targets, writer) = match self.compare.len() {
            0 => (vec![target("server".to_owned(), own)], writer),
            1 => bail!("--compare needs at least two servers"),
            _ => {
                let given = own.kubeconfig.is_some();
                ensure!(
                    given || own.context.is_none(),
                    "--context belongs to --kubeconfig, which is missing"
                );
                let targets = self.compare.into_iter();
                (
                    targets
                        .map(|(name, file)| target(name, kubeconfig_of(file)))
                        .collect(),
                    writer.or(given.then_some(own)),
                )
            }
        };
        let plan = LoadPlan {
            targets,
            writer,
            connections: self.clients.connections,
            http1: self.clients.http1,
            groups: self.clients.groups()?,
            writes: LoadWrites {
                rate: self.events.write_rate,
                objects: self.events.objects,
                object_bytes: self.events.object_bytes,
                namespace: self.events.write_namespace,
            },
            duration: self.duration,
            rounds: self.rounds,
            start_timeout: self.start_timeout,
            settle: self.settle,
            processes: self.processes,
        };
        plan.check()?;
        Ok(plan)
    }
}

impl ClientFlags {
    /// Returns the clients that the flags or the file of --mix describe.
    fn groups(self) -> anyhow::Result<Vec<ClientGroup>> {
        if let Some(file) = &self.mix {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {} (--mix)", file.display()))?;
            return mix(&text)
                .with_context(|| format!("{} (--mix) describes no clients", file.display()));
        }
        Ok(vec![ClientGroup {
            watches: self.watches,
            lists: self.lists,
            gets: self.gets,
            resource: self.resource,
            namespace: self.namespace.unwrap_or_default(),
            selector: self.selector.unwrap_or_default(),
            field_selector: self.field_selector.unwrap_or_default(),
            encoding: self.encoding,
            gzip: self.gzip,
            metadata_only: self.metadata_only,
            consistent: self.consistent,
            first_state: self.first_state,
        }])
    }
}

fn target(name: String, access: KubeconfigContext) -> LoadTarget {
    LoadTarget { name, access }
}

fn kubeconfig_of(file: PathBuf) -> KubeconfigContext {
    KubeconfigContext {
        kubeconfig: Some(file),
        context: None,
    }
}

/// Prints the table, what went wrong, and the paths of the files.
fn show(measured: &LoadResult, files: &[PathBuf]) -> anyhow::Result<()> {
    print_line(table(measured))?;
    print_line(verdict(measured))?;
    files.iter().try_for_each(|path| print_line(path.display()))
}

/// Writes the files of a result. Returns their paths.
fn write(folder: &Path, measured: &LoadResult) -> anyhow::Result<Vec<PathBuf>> {
    let mut result = serde_json::to_value(measured)?;
    result["clean"] = json!(measured.is_clean());
    result["figures"] = comparison(measured);
    let mut files = vec![("result.json", serde_json::to_string_pretty(&result)? + "\n")];
    files.extend(plot_result(measured)?);
    let mut paths = Vec::new();
    for (name, content) in files {
        let path = folder.join(name);
        std::fs::write(&path, content)
            .with_context(|| format!("cannot write {} (--out)", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

/// Parses a name and a file, as in `proxy=proxy.kubeconfig`.
fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.to_owned(), file.into()))
        }
        _ => Err("not a name and a kubeconfig, as in proxy=proxy.kubeconfig".to_owned()),
    }
}

/// Parses a name and a process id, as in `proxy=1234`.
fn process(text: &str) -> Result<Process, String> {
    let parsed = text
        .split_once('=')
        .and_then(|(name, pid)| Some((name, pid.parse().ok()?)));
    match parsed {
        Some((name, pid)) if !name.is_empty() && pid > 0 && name != OWN_PROCESS => Ok(Process {
            name: name.to_owned(),
            pid,
        }),
        Some((OWN_PROCESS, _)) => {
            Err("load is the name of this program in the results: use another name".to_owned())
        }
        _ => Err("not a name and a process id, as in proxy=1234".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        load: LoadCommand,
    }

    fn plan(line: &str) -> Result<LoadPlan, String> {
        let words = ["load"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.load.plan().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_line_becomes_a_plan() {
        let plan = plan(
            "--compare direct=a,proxy=b --watches 500 --lists 5/s --gets 50/s \
             --field-selector spec.nodeName=n-{0..9} --encoding protobuf --gzip \
             --write-rate 20/s --writer w --duration 1m30s --rounds 3",
        )
        .unwrap();
        assert_eq!(
            plan.targets
                .iter()
                .map(|target| &*target.name)
                .collect::<Vec<_>>(),
            ["direct", "proxy"]
        );
        assert_eq!(
            plan.writer,
            Some(KubeconfigContext {
                kubeconfig: Some("w".into()),
                context: None
            })
        );
        assert_eq!((plan.duration, plan.rounds), (Duration::from_secs(90), 3));
        let group = &plan.groups[0];
        assert_eq!(
            (group.watches, group.encoding, group.gzip),
            (500, AnswerEncoding::Protobuf, true)
        );
        assert_eq!(group.field_selector.len(), 10);
    }

    #[test]
    fn a_single_server_is_its_own_writer() {
        let plan = plan("--kubeconfig a --context c").unwrap();
        let access = KubeconfigContext {
            kubeconfig: Some("a".into()),
            context: Some("c".to_owned()),
        };
        assert_eq!(
            plan.targets,
            [LoadTarget {
                name: "server".to_owned(),
                access
            }]
        );
        assert_eq!(plan.writer, None);
    }

    #[test]
    fn mistakes_are_named_with_their_flag() {
        for (line, flag) in [
            ("--compare direct=a", "--compare"),
            ("--compare direct", "--compare"),
            ("--compare a=x,a=y", "--compare"),
            ("--compare a=x,b=y --context c", "--context"),
            ("--pid proxy", "--pid"),
            ("--pid load=1", "--pid"),
            ("--pid gone=4294967295", "--pid"),
            ("--lists often", "--lists"),
            ("--resource deployments.apps", "--resource"),
            ("--selector {1..", "--selector"),
            ("--watches 0", "--watches"),
            ("--write-namespace ../x", "--write-namespace"),
            ("--settle 25h", "--settle"),
            ("--rounds 0", "--rounds"),
            ("--duration=-1s", "--duration"),
            ("--objects 100000", "--objects"),
            ("--mix nowhere.yaml", "--mix"),
            ("--mix a.yaml --watches 5", "--mix"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(flag), "{line}: {error}");
        }
    }
}
