//! `watershed load` against the simulated API server and against the proxy. No event is lost, and
//! planted faults are found.
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::Value;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use watershed_lab::load::{
    self, ClientGroup, FirstState, KubeconfigContext, LoadPlan, LoadResult, LoadTarget, LoadWrites,
};
use watershed_lab::sim::{BrokenFrame, Options, PlannedRefusal, SimulatedServer, WatchListSupport};
use watershed_protocol::GroupVersionResource;

use crate::support::client::within;
use crate::support::{becomes, eventually, small, start_proxy};

fn target(folder: &Path, name: &str, kubeconfig: &str) -> LoadTarget {
    let file = folder.join(format!("{name}.kubeconfig"));
    std::fs::write(&file, kubeconfig).unwrap();
    LoadTarget {
        name: name.to_owned(),
        access: KubeconfigContext {
            kubeconfig: Some(file),
            context: None,
        },
    }
}

/// Returns the same kubeconfig for another server.
fn through(kubeconfig: &str, server: &str, ca: &str) -> String {
    let ca = base64::prelude::BASE64_STANDARD.encode(ca);
    let line = |line: &str| {
        let indent = &line[..line.len() - line.trim_start().len()];
        match line.trim().split_once(':') {
            Some(("server", _)) => format!("{indent}server: {server}\n"),
            Some(("certificate-authority-data", _)) => {
                format!("{indent}certificate-authority-data: {ca}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    kubeconfig.lines().map(line).collect()
}

fn plan(targets: Vec<LoadTarget>) -> LoadPlan {
    LoadPlan {
        targets,
        writer: None,
        groups: vec![ClientGroup {
            watches: 40,
            ..ClientGroup::default()
        }],
        connections: Some(4),
        http1: false,
        writes: LoadWrites {
            rate: "50/s".parse().unwrap(),
            objects: 5,
            object_bytes: 200,
            namespace: None,
        },
        duration: Duration::from_secs(1),
        rounds: 1,
        start_timeout: Duration::from_secs(30),
        settle: Duration::from_secs(30),
        processes: Vec::new(),
    }
}

async fn run(plan: &LoadPlan) -> anyhow::Result<LoadResult> {
    watershed_connect::install_crypto();
    load::run(plan, &CancellationToken::new(), false).await
}

/// Returns the objects that the load has left behind.
fn left(server: &SimulatedServer) -> Vec<String> {
    let of = |resource| GroupVersionResource::new("", "v1", resource);
    let all = ["configmaps", "namespaces"].map(|resource| server.state().snapshot(&of(resource)));
    all.into_iter()
        .flat_map(std::collections::BTreeMap::into_keys)
        .filter(|key| key.contains("load"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_command_compares_servers_and_finds_no_lost_event() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let kubeconfig = upstream.kubeconfig_yaml();
    let (proxy, _folder) = start_proxy(&kubeconfig).await.unwrap();
    let ca = std::fs::read_to_string(proxy.ca_file.as_ref().unwrap()).unwrap();
    let url = format!("https://{}", proxy.address.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let targets = vec![
        target(folder.path(), "direct", &kubeconfig),
        target(folder.path(), "proxy", &through(&kubeconfig, &url, &ca)),
    ];
    let mut plan = plan(targets);
    plan.rounds = 2;
    // After a stall, all requests are due that it delayed. A write is skipped if all objects are
    // being written, and a read if too many answers are waited for. So many are due after ten
    // seconds and after eight.
    plan.writes.rate = "2/s".parse().unwrap();
    plan.writes.objects = 20;
    plan.duration = Duration::from_secs(2);
    plan.groups = load::mix(
        "clients:\n- {watches: 20, lists: 10/s, gets: 10/s}\n\
         - {watches: 20, fieldSelector: 'metadata.name=watershed-load-{0..19}', \
         firstState: stream, gzip: true}\n\
         - {watches: 10, selector: 'watershed-load-object in (1,2,6,7)', \
         firstState: version, metadataOnly: true}\n\
         - {watches: 5, resource: pods, lists: 5/s, gzip: true}\n",
    )
    .unwrap();
    let measured = run(&plan).await.unwrap();
    let text = load::verdict(&measured);
    assert!(measured.is_clean(), "{text}");
    for server in &measured.servers {
        assert_eq!(server.rounds.len(), 2);
        for round in &server.rounds {
            assert_eq!((round.watches, round.watches_begun), (55, 55));
            let writes = round.writes.answered;
            assert!(writes > 0);
            // Each write is seen by 20 watches of all objects and by the watch of its name, and by
            // ten watches if it is of one of four objects. One that is due at the end of the round may
            // be answered after it.
            let seen = 21 * writes..=31 * (writes + 1);
            assert!(
                seen.contains(&round.events_expected),
                "{} of {writes}",
                round.events_expected
            );
            assert_eq!(round.events_delivered, round.events_expected);
            assert_eq!(round.delivery.count, round.events_delivered);
            assert!(
                round.lists.answered > 0 && round.gets.answered > 0,
                "{round:?}"
            );
        }
    }
    let figures = load::comparison(&measured);
    let named = |name: &str| {
        let row = figures
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["figure"] == name);
        row.unwrap_or_else(|| panic!("no {name} in {figures}"))
            .clone()
    };
    assert!(
        named("write to event, p99")["servers"]["proxy"]["ratio"]
            .as_f64()
            .unwrap()
            > 0.0
    );
    assert!(
        named("lists, p50")["servers"]["proxy"]["ratio"]
            .as_f64()
            .unwrap()
            > 0.0
    );
    assert_eq!(
        named("events lost")["servers"]["direct"]["rounds"],
        serde_json::json!([0.0, 0.0])
    );
    assert_eq!(left(&upstream), Vec::<String>::new());
    proxy.shut_down().await;
    upstream.shutdown().await;
}

/// The planted faults: a missing event, a broken watch, a refusal, and a server of an older
/// version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_faults_appear_in_the_load_result() {
    type Fault = fn(&SimulatedServer);
    type Planted<'a> = (&'a str, Fault, &'a dyn Fn(&mut LoadPlan), &'a str);
    let stream = |plan: &mut LoadPlan| plan.groups[0].first_state = FirstState::Stream;
    let lists = |plan: &mut LoadPlan| plan.groups[0].lists = "50/s".parse().unwrap();
    let faults: [Planted<'_>; 4] = [
        (
            "broken",
            |s| s.faults().break_frame(50, BrokenFrame::Half),
            &|_| {},
            "watch: ",
        ),
        (
            "garbage",
            |s| s.faults().break_frame(50, BrokenFrame::Garbage),
            &|_| {},
            "watch: ",
        ),
        (
            "refused",
            |s| s.faults().refuse_only(429, "LIST", "configmaps", 3),
            &lists,
            "429 Too Many Requests",
        ),
        (
            "old",
            |s| s.faults().watch_list(WatchListSupport::Ignored),
            &stream,
            "watches did not have their first state",
        ),
    ];
    for (name, fault, change, seen) in faults {
        let server = SimulatedServer::start(small()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(vec![target(folder.path(), name, &server.kubeconfig_yaml())]);
        change(&mut plan);
        plan.start_timeout = Duration::from_secs(5);
        plan.settle = Duration::from_secs(5);
        fault(&server);
        let measured = run(&plan).await.unwrap();
        let text = load::verdict(&measured);
        assert!(
            !measured.is_clean() && text.contains(seen),
            "{name}: {text}"
        );
        assert_eq!(left(&server), Vec::<String>::new(), "{name}");
        server.shutdown().await;
    }
}

/// All watches of a group begin at one version. It is too old for those that begin once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_whose_version_expires_go_on_from_a_newer_one() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(vec![target(folder.path(), "a", &server.kubeconfig_yaml())]);
    plan.groups[0].first_state = FirstState::Version;
    // The watches begin again before the end of the round.
    plan.duration = Duration::from_secs(10);
    let faults = async {
        becomes("watches", Some(40), async || {
            let open = server.stats().open_watches;
            open.get("configmaps").copied()
        })
        .await;
        let begun = server.stats().requests_of("PATCH");
        eventually("further writes", async || {
            let writes = server.stats().requests_of("PATCH") - begun;
            (writes >= 5).then_some(()).ok_or(format!("{writes}"))
        })
        .await;
        server.faults().cut_watches();
        let other = r#"{"metadata":{"name":"other","namespace":"default"}}"#;
        let configmaps = GroupVersionResource::new("", "v1", "configmaps");
        server.state().create(&configmaps, other).unwrap();
        server.state().forget_history();
    };
    let (measured, ()) = tokio::join!(run(&plan), faults);
    let errors = &measured.unwrap().servers[0].rounds[0].errors;
    let expired = errors.iter().filter(|(error, _)| error.contains("410"));
    let expired: u64 = expired.map(|(_, count)| count).sum();
    assert!((1..=40).contains(&expired), "{errors:?}");
    server.shutdown().await;
}

/// Watches that stay open and send nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_never_arrive_count_as_lost() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(vec![target(
        folder.path(),
        "silent",
        &server.kubeconfig_yaml(),
    )]);
    plan.settle = Duration::from_secs(2);
    server.faults().set(|active| active.silent = true);
    let begun = Instant::now();
    let measured = run(&plan).await.unwrap();
    let whole = begun.elapsed();
    let round = &measured.servers[0].rounds[0];
    // Rates are not divided by the settling.
    let load = Duration::from_secs_f64(round.seconds);
    assert!(load + plan.settle <= whole, "{load:?} of {whole:?}");
    assert!(
        round.events_lost > 0 && round.events_delivered == 0,
        "{round:?}"
    );
    assert_eq!(round.events_lost, round.events_expected);
    assert!(!measured.is_clean());
    server.shutdown().await;
}

/// Nothing is to be gained from waiting for the first states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_without_a_permitted_watch_fails_before_its_timeout() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(vec![target(folder.path(), "a", &server.kubeconfig_yaml())]);
    plan.start_timeout = Duration::from_hours(1);
    server
        .faults()
        .refuse_only(403, "LIST", "configmaps", 100_000);
    let measured = within("the load", run(&plan)).await;
    let error = format!("{:#}", measured.unwrap_err());
    assert!(
        error.contains("server a: no watch has begun; ") && error.contains("403 Forbidden"),
        "{error}"
    );
    assert_eq!(left(&server), Vec::<String>::new());

    // A server without streamed lists will not have them later.
    server.faults().set(|active| active.refuse = None);
    server.faults().watch_list(WatchListSupport::Refused);
    plan.groups[0].first_state = FirstState::Stream;
    let measured = within("the load", run(&plan)).await;
    let error = format!("{:#}", measured.unwrap_err());
    assert!(error.contains("422 Unprocessable Entity"), "{error}");
    server.shutdown().await;
}

/// The server has made the namespace, and does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_is_interrupted_while_it_prepares_leaves_nothing_behind() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(vec![target(folder.path(), "a", &server.kubeconfig_yaml())]);
    let hold = Some("/api/v1/namespaces".to_owned());
    server.faults().set(|active| active.hold = hold);
    let interrupt = CancellationToken::new();
    let interrupted = async {
        eventually("the namespace", async || match left(&server).len() {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        })
        .await;
        interrupt.cancel();
    };
    let (measured, ()) = tokio::join!(load::run(&plan, &interrupt, false), interrupted);
    let measured = measured.unwrap();
    assert!(measured.interrupted && measured.is_empty(), "{measured:?}");
    assert_eq!(left(&server), Vec::<String>::new());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_load_options_are_refused_in_one_line() {
    let server = SimulatedServer::start(Options {
        max_streams: 10,
        ..small()
    })
    .await
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let direct = target(folder.path(), "direct", &server.kubeconfig_yaml());
    let mut crowded = plan(vec![direct.clone()]);
    crowded.connections = Some(1);
    let error = format!("{:#}", run(&crowded).await.unwrap_err());
    assert!(
        error.contains("need at least 4 connections (--connections)") && !error.contains('\n'),
        "{error}"
    );
    for (resource, wanted) in [
        ("nonsense", "server direct: there is no nonsense in /api/v1"),
        (
            "pods.v1.example.test",
            "there is no pods in /apis/example.test/v1",
        ),
    ] {
        let mut unserved = plan(vec![direct.clone()]);
        unserved.groups[0].resource = resource.parse().unwrap();
        let error = format!("{:#}", run(&unserved).await.unwrap_err());
        assert!(
            error.contains(wanted) && error.contains("--resource"),
            "{error}"
        );
    }
    let mut homeless = plan(vec![direct]);
    homeless.writes.namespace = Some("team-00".to_owned());
    let taken = r#"{"metadata":{"name":"watershed-load-3","namespace":"team-00"}}"#;
    server
        .state()
        .create(&GroupVersionResource::new("", "v1", "configmaps"), taken)
        .unwrap();
    let error = format!("{:#}", run(&homeless).await.unwrap_err());
    assert!(
        error.contains("watershed-load-3") && error.contains("kubectl delete"),
        "{error}"
    );
    // Objects of others are not deleted.
    assert_eq!(left(&server), ["team-00/watershed-load-3"]);
    server.shutdown().await;
}

/// Runs the program and checks its files, its exit codes and its end after a signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_command_writes_its_files_and_sets_its_exit_code() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let LoadTarget { access, .. } = target(folder.path(), "direct", &server.kubeconfig_yaml());
    let kubeconfig = access.kubeconfig.unwrap();
    let out = folder.path().join("results");
    let command = |duration: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_watershed"));
        command.args([
            "load",
            "--watches",
            "20",
            "--write-rate",
            "10/s",
            "--objects",
            "40",
            "--duration",
            duration,
            "--kubeconfig",
        ]);
        command.arg(&kubeconfig).arg("--out").arg(&out).arg("--pid");
        command
            .arg(format!("simulator={}", std::process::id()))
            .kill_on_drop(true);
        command.env_remove("WATERSHED_LOG_LEVEL");
        command
    };
    let done = within("the load", command("1s").output()).await.unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        text.contains("| write to event, p99") && text.contains("arrived, once and in order"),
        "{text}"
    );
    let result: Value =
        serde_json::from_slice(&std::fs::read(out.join("result.json")).unwrap()).unwrap();
    assert_eq!(
        (&result["clean"], &result["interrupted"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    for pointer in [
        "/setting/machine/cores",
        "/setting/writes/rate",
        "/servers/0/addresses/0",
        "/servers/0/rounds/0/delivery/quantiles/0",
        "/servers/0/rounds/0/firstState/p99",
        "/servers/0/rounds/0/processes/simulator/cpuSeconds",
        "/servers/0/rounds/0/processes/load/memoryBytes",
        "/servers/0/rounds/0/samples/0/cores/simulator",
        "/figures/0/figure",
    ] {
        assert!(
            result.pointer(pointer).is_some(),
            "{pointer} is missing: {result}"
        );
    }
    for picture in ["latency.svg", "time.svg"] {
        let svg = std::fs::read_to_string(out.join(picture)).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok(), "{picture}");
    }

    // What standard output cannot take is in the files.
    #[cfg(target_os = "linux")]
    {
        std::fs::remove_file(out.join("result.json")).unwrap();
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = command("1s");
        command.stdout(full.unwrap()).stderr(Stdio::piped());
        let done = command.spawn().unwrap().wait_with_output();
        let done = within("the load", done).await.unwrap();
        let text = String::from_utf8_lossy(&done.stderr);
        assert!(text.contains("cannot write to standard output"), "{text}");
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert!(out.join("result.json").exists());
    }

    // A refused write makes the run a failure.
    let refusal = PlannedRefusal {
        count: 1,
        code: 500,
        retry_after: None,
        resource: None,
        verb: Some("PATCH".to_owned()),
    };
    server.faults().set(|active| active.refuse = Some(refusal));
    let done = within("the load", command("1s").output()).await.unwrap();
    assert_eq!(
        done.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&done.stdout)
    );

    // Ctrl-C: the measurements are printed, and the created objects are deleted.
    let begun = server.stats().requests_of("PATCH");
    let child = command("10m").stdout(Stdio::piped()).spawn().unwrap();
    eventually("writes", async || {
        let writes = server.stats().requests_of("PATCH") - begun;
        if writes > 5 {
            Ok(())
        } else {
            Err(format!("{writes} writes"))
        }
    })
    .await;
    let pid = child.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    let done = within("the end", child.wait_with_output()).await.unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && text.contains("interrupted"),
        "{text}"
    );
    assert_eq!(left(&server), Vec::<String>::new());
    server.shutdown().await;
}
