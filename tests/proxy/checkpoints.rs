//! Checkpoints on disk: a restarted proxy resumes its watches without a list, or lists.
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use watershed_lab::sim::{SimulatedServer, pods};
use watershed_protocol::GroupVersionResource;

use crate::bad_answers::source_of_watch;
use crate::support::client::{Endpoint, Protocol, within};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::Program;
use crate::support::{becomes, eventually, small, unless_stalled};

pub(crate) const PODS: &str = "/api/v1/pods?resourceVersion=0";

/// Starts a program that keeps checkpoints in a folder.
async fn launch(upstream: &SimulatedServer, folder: &Path, flags: &[&str]) -> Program {
    let folder = folder.to_str().unwrap();
    let own = ["--checkpoint-dir", folder, "--checkpoint-interval", "1s"];
    Program::with(upstream, &[&own, flags].concat()).await
}

/// Starts a program like [`launch`], and waits until memory answers lists of pods.
async fn start(upstream: &SimulatedServer, folder: &Path, flags: &[&str]) -> Program {
    let program = launch(upstream, folder, flags).await;
    answered_from_memory(&program, PODS).await;
    program
}

/// Waits until memory answers a list.
async fn answered_from_memory(program: &Program, path: &str) {
    becomes("memory answers", "snapshot".to_owned(), async || {
        let list = program.proxied.get(Protocol::Http2, path).await;
        list.header("x-watershed-source").to_owned()
    })
    .await;
}

async fn reads(program: &Program, result: &str) -> f64 {
    let series = format!(r#"watershed_checkpoint_reads_total{{result="{result}"}}"#);
    program.metric(&series).await
}

/// Fails if a program could not use its checkpoint because the machine stalled.
async fn unless_late(program: &Program) -> Result<(), String> {
    for result in ["unverified", "slow"] {
        if reads(program, result).await >= 1.0 {
            return Err(format!("{result}: {}", program.log()));
        }
    }
    Ok(())
}

/// Checks that a program has read its checkpoint with this result. Fails if the machine stalled.
async fn has_read(program: &Program, result: &str) -> Result<(), String> {
    if reads(program, result).await >= 1.0 {
        return Ok(());
    }
    unless_late(program).await?;
    panic!("it was not {result}: {}", program.log());
}

/// Checks that a program has read its checkpoint with this result, and has listed the type instead. Fails if the
/// machine stalled. Ends both.
async fn has_listed_instead(
    program: Program,
    upstream: SimulatedServer,
    result: &str,
) -> Result<(), String> {
    has_read(&program, result).await?;
    assert!(lists(&program).await >= 1.0);
    assert_exact(&program, &upstream).await;
    program.kill().await;
    upstream.shutdown().await;
    Ok(())
}

pub(crate) async fn lists(program: &Program) -> f64 {
    let series = r#"watershed_upstream_lists_total{group="",resource="pods"}"#;
    program.metric(series).await
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Returns the file with the checkpoint of pods, and the version of the state in it.
fn pods_file(folder: &Path) -> Option<(PathBuf, u64)> {
    let (path, header) = checkpoint_of(folder, "pods")?;
    Some((path, header["version"].as_u64().unwrap()))
}

/// Returns the file with the checkpoint of a core type, and its header.
fn checkpoint_of(folder: &Path, resource: &str) -> Option<(PathBuf, serde_json::Value)> {
    let is_checkpoint = |path: &PathBuf| path.extension().is_some_and(|end| end == "checkpoint");
    files(folder)
        .into_iter()
        .filter(is_checkpoint)
        .find_map(|path| {
            let file = fs::read(&path).ok()?;
            // After the first line comes the header, with its length before it.
            let length = u32::from_le_bytes(file.get(24..28)?.try_into().ok()?);
            let header = file.get(28..28 + length as usize)?;
            let header: serde_json::Value = serde_json::from_slice(header).ok()?;
            let is_wanted = header["resource"] == serde_json::json!(["", resource]);
            is_wanted.then_some((path, header))
        })
}

/// Waits until the checkpoint of pods has this version.
async fn written(folder: &Path, version: u64) {
    written_of(folder, "pods", version).await;
}

/// Waits until the checkpoint of a core type has this version.
async fn written_of(folder: &Path, resource: &str, version: u64) {
    eventually("a checkpoint", async || {
        let stored = checkpoint_of(folder, resource);
        let stored = stored.and_then(|(_, header)| header["version"].as_u64());
        let is_written = stored.is_some_and(|stored| stored >= version);
        is_written
            .then_some(())
            .ok_or(format!("{stored:?} of {version}"))
    })
    .await;
}

pub(crate) fn create_pod(upstream: &SimulatedServer, name: &str) -> u64 {
    let pod = format!(r#"{{"metadata":{{"name":"{name}","namespace":"default"}}}}"#);
    upstream.state().create(&pods(), &pod).unwrap()
}

/// Leaves a checkpoint of pods behind, as a program that ended in order.
async fn leave_checkpoint(upstream: &SimulatedServer, folder: &Path) {
    let program = start(upstream, folder, &[]).await;
    let version = create_pod(upstream, "checkpointed");
    written(folder, version).await;
    program.terminate().await;
    assert!(program.ended().await.success());
}

/// Checks that a program answers as upstream does.
pub(crate) async fn assert_exact(program: &Program, upstream: &SimulatedServer) {
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    eventually("the same objects", async || {
        let ours = program.proxied.get(Protocol::Http2, PODS).await.json();
        let theirs = direct.get(Protocol::Http2, "/api/v1/pods").await.json();
        let is_same = ours["items"] == theirs["items"];
        is_same.then_some(()).ok_or("they differ".to_owned())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_proxy_goes_on_from_its_checkpoint_without_a_list() {
    unless_stalled("a proxy goes on from its checkpoint", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        let history = WriteHistory::new(upstream.state(), 1);
        let first = start(&upstream, folder.path(), &[]).await;
        history.writes(50).await;
        let last = history.between(&Interest::All, 0, u64::MAX).pop().unwrap();
        written(folder.path(), last.version).await;
        history.writes(50).await;
        first.kill().await;
        // Nobody sees these.
        history.writes(50).await;

        let listed = upstream.stats().states_of("pods");
        let second = start(&upstream, folder.path(), &[]).await;
        has_read(&second, "restored").await?;
        assert_eq!(upstream.stats().states_of("pods"), listed);
        assert!(lists(&second).await < 1.0);
        let connection = second.proxied.connect(Protocol::Http2).await.unwrap();
        let followers = [Opening::List, Opening::WatchList]
            .map(|opening| Follower::start(&connection, Interest::All, opening));
        for follower in &followers {
            follower.synced().await;
        }
        history.writes(50).await;
        for follower in &followers {
            follower.judge_undisturbed(&history).await;
        }
        assert_exact(&second, &upstream).await;
        let direct = upstream.stats().states_of("pods");
        assert!(direct - listed <= 20, "those of this test itself");
        second.kill().await;
        upstream.shutdown().await;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_for_this_user_alone_and_has_no_secrets() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let checkpoints = folder.path().join("made/here");
    let config = folder.path().join("config.yaml");
    fs::write(
        &config,
        "resources: [{resource: secrets, cache: onDemand}]\n",
    )
    .unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let program = start(&upstream, &checkpoints, &flags).await;
    let secrets = "/api/v1/secrets?resourceVersion=0";
    answered_from_memory(&program, secrets).await;
    let version = create_pod(&upstream, "checkpointed");
    written(&checkpoints, version).await;
    program.terminate().await;
    assert!(program.ended().await.success());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&checkpoints), 0o700);
    for file in files(&checkpoints) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        let text = fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains(r#"["","secrets"]"#), "{}", file.display());
    }
    upstream.shutdown().await;
}

/// Puts a file of 2 MiB into the folder, as the checkpoint of a scope that was closed so long ago.
fn plant_checkpoint(folder: &Path, name: &str, age: Duration) -> PathBuf {
    let path = folder.join(name).with_extension("checkpoint");
    fs::write(&path, vec![0; 2 << 20]).unwrap();
    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_of_closed_scopes_are_removed_after_an_hour_or_make_room() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let flags = ["--checkpoint-max-mib", "3"];
    let program = start(&upstream, folder.path(), &flags).await;
    let minute = Duration::from_mins(1);
    let young = plant_checkpoint(folder.path(), "young", minute);
    let old = plant_checkpoint(folder.path(), "old", 61 * minute);
    let future = plant_checkpoint(folder.path(), "future", minute);
    let tomorrow = SystemTime::now() + 24 * 60 * minute;
    fs::File::open(&future)
        .unwrap()
        .set_modified(tomorrow)
        .unwrap();
    becomes("one is there", false, async || {
        old.exists() || future.exists()
    })
    .await;
    assert!(young.exists());
    let version = create_pod(&upstream, "checkpointed");
    written(folder.path(), version).await;
    assert!(young.exists(), "there is room for both");
    plant_checkpoint(folder.path(), "more", minute);
    let version = create_pod(&upstream, "again");
    written(folder.path(), version).await;
    assert!(!young.exists(), "what is open comes first");
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_is_refused_and_the_type_is_listed() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    leave_checkpoint(&upstream, folder.path()).await;
    // In the header, and in the objects.
    for at in [30, 5_000] {
        let (path, _) = pods_file(folder.path()).unwrap();
        let mut file = fs::read(&path).unwrap();
        file[at] ^= 0x80;
        fs::write(&path, file).unwrap();
        let program = start(&upstream, folder.path(), &[]).await;
        assert!(lists(&program).await >= 1.0);
        assert!(reads(&program, "damaged").await >= 1.0);
        program.until_logged(&["it is damaged"]).await;
        assert_exact(&program, &upstream).await;
        program.terminate().await;
        assert!(program.ended().await.success());
    }
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_others_may_have_written_is_refused_and_reported() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    leave_checkpoint(&upstream, folder.path()).await;
    let (path, _) = pods_file(folder.path()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let program = start(&upstream, folder.path(), &[]).await;
    assert!(lists(&program).await >= 1.0);
    assert!(reads(&program, "foreign").await >= 1.0);
    program
        .until_logged(&["other users may have written it"])
        .await;
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_another_cluster_is_refused() {
    unless_stalled("a checkpoint is refused", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        leave_checkpoint(&upstream, folder.path()).await;
        upstream.shutdown().await;
        let other = SimulatedServer::start(small()).await.unwrap();
        let program = start(&other, folder.path(), &[]).await;
        has_listed_instead(program, other, "foreign").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_a_lost_history_is_not_shown() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let backup = upstream.state().branch();
    leave_checkpoint(&upstream, folder.path()).await;
    // The same cluster, restored from a backup, has other objects in the same versions.
    for n in 0..30 {
        let pod = format!(r#"{{"metadata":{{"name":"other-{n}","namespace":"default"}}}}"#);
        backup.create(&pods(), &pod).unwrap();
    }
    upstream.restore(&backup);
    let program = launch(&upstream, folder.path(), &[]).await;
    becomes("memory answers", "snapshot".to_owned(), async || {
        let list = program.proxied.get(Protocol::Http2, PODS).await;
        assert!(!list.json().to_string().contains("checkpointed"));
        list.header("x-watershed-source").to_owned()
    })
    .await;
    assert_exact(&program, &upstream).await;
    assert!(lists(&program).await >= 1.0);
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_whose_history_upstream_has_compacted_is_replaced_by_a_list() {
    unless_stalled("a checkpoint is replaced", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        leave_checkpoint(&upstream, folder.path()).await;
        for n in 0..10 {
            create_pod(&upstream, &format!("later-{n}"));
        }
        upstream.state().forget_history();
        let program = start(&upstream, folder.path(), &[]).await;
        has_listed_instead(program, upstream, "not-continued").await
    })
    .await;
}

/// Refusals such as of an API server that has just started: it knows neither tokens nor roles yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_outlasts_refusals_that_pass() {
    unless_stalled("a proxy goes on from its checkpoint", async || {
        for code in [401, 403, 404] {
            let upstream = SimulatedServer::start(small()).await.unwrap();
            let folder = TempDir::new().unwrap();
            leave_checkpoint(&upstream, folder.path()).await;
            create_pod(&upstream, "later");
            upstream.faults().refuse_only(code, "WATCH", "pods", 3);
            let program = start(&upstream, folder.path(), &[]).await;
            unless_late(&program).await?;
            assert!(lists(&program).await < 1.0, "{code}");
            assert_eq!(upstream.faults().active().refuse, None, "{code}");
            assert_exact(&program, &upstream).await;
            program.kill().await;
            upstream.shutdown().await;
        }
        Ok(())
    })
    .await;
}

/// Refusals that last half a minute end no scope, and are not answered with the same file again and
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_upstream_refuses_to_continue_is_replaced_by_a_list() {
    unless_stalled("a checkpoint is replaced", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        leave_checkpoint(&upstream, folder.path()).await;
        let later = create_pod(&upstream, "later");
        create_pod(&upstream, "last");
        // The watches that would continue it.
        upstream
            .faults()
            .refuse_only(403, "WATCH", "pods", u32::MAX);
        let program = launch(&upstream, folder.path(), &[]).await;
        // The first request opens the scope, and is forwarded.
        program.proxied.get(Protocol::Http2, PODS).await;
        becomes(
            "the checkpoint is given up, or not used",
            true,
            async || {
                unless_late(&program).await.is_err()
                    || reads(&program, "not-continued").await >= 1.0
            },
        )
        .await;
        unless_late(&program).await?;
        upstream.faults().set(|active| active.refuse = None);
        answered_from_memory(&program, PODS).await;
        assert!(lists(&program).await >= 1.0);
        assert_exact(&program, &upstream).await;
        // No client lists anew, as after a start without a checkpoint.
        let path = format!("/api/v1/pods?watch=1&resourceVersion={later}");
        let (_, source) = source_of_watch(&program.proxied, &path).await;
        assert_eq!(source, "forward; reason=before-first-list");
        let relists = r#"watershed_scope_relists_total{group="",resource="pods"}"#;
        assert!(program.metric(relists).await < 1.0);
        program.kill().await;
        upstream.shutdown().await;
        Ok(())
    })
    .await;
}

/// Such as behind a gateway that does not lead to `/version`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_replaced_by_a_list_if_upstream_does_not_tell_its_release() {
    unless_stalled("a checkpoint is replaced", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        leave_checkpoint(&upstream, folder.path()).await;
        create_pod(&upstream, "later");
        let program = launch(&upstream, folder.path(), &[]).await;
        // The first request opens the scope, and upstream's answers about its release no longer count.
        let hold = Some("/version".to_owned());
        upstream.faults().set(|active| active.hold = hold);
        upstream.faults().cut_connections();
        answered_from_memory(&program, PODS).await;
        has_listed_instead(program, upstream, "not-continued").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_with_another_setting_of_managed_fields_is_not_used() {
    unless_stalled("a proxy goes on from its checkpoint", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let (folder, configs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let config = configs.path().join("config.yaml");
        let flags = ["--config", config.to_str().unwrap()];
        let mut results = Vec::new();
        for managed_fields in ["keep", "drop", "drop", "keep"] {
            fs::write(&config, format!("managedFields: {managed_fields}\n")).unwrap();
            let program = start(&upstream, folder.path(), &flags).await;
            let list = program.proxied.get(Protocol::Http2, PODS).await.json();
            let has_any = list["items"][0]["metadata"]["managedFields"].is_array();
            assert_eq!(has_any, managed_fields == "keep");
            unless_late(&program).await?;
            results.push(lists(&program).await);
            written(folder.path(), 1).await;
            program.kill().await;
        }
        // The third resumes what the second held.
        assert_eq!(results, [1.0, 1.0, 0.0, 1.0]);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_of_a_lost_history_end_no_second_one() {
    unless_stalled("a proxy goes on from its checkpoints", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        let configmaps = "/api/v1/configmaps?resourceVersion=0";
        let backup = upstream.state().branch();
        let first = start(&upstream, folder.path(), &[]).await;
        answered_from_memory(&first, configmaps).await;
        for n in 0..20 {
            create_pod(&upstream, &format!("lost-{n}"));
        }
        let configmap = r#"{"metadata":{"name":"lost","namespace":"default"}}"#;
        let gvr = GroupVersionResource::new("", "v1", "configmaps");
        let lost = upstream.state().create(&gvr, configmap).unwrap();
        let last = create_pod(&upstream, "lost");
        written(folder.path(), last).await;
        written_of(folder.path(), "configmaps", lost).await;
        first.kill().await;
        upstream.restore(&backup);

        // Nothing is written, or removed, for an hour.
        let path = folder.path().to_str().unwrap();
        let flags = ["--checkpoint-dir", path, "--checkpoint-interval", "1h"];
        let second = Program::with(&upstream, &flags).await;
        let rollbacks = r#"watershed_upstream_rollbacks_total{evidence="version"}"#;
        answered_from_memory(&second, PODS).await;
        unless_late(&second).await?;
        becomes("the end of the lost history", true, async || {
            second.metric(rollbacks).await >= 1.0
        })
        .await;
        answered_from_memory(&second, configmaps).await;
        let list = second.proxied.get(Protocol::Http2, "/api/v1/configmaps");
        assert!(!list.await.json().to_string().contains("lost"));
        assert_exact(&second, &upstream).await;
        assert!(second.metric(rollbacks).await < 2.0, "one end");
        second.kill().await;
        upstream.shutdown().await;
        Ok(())
    })
    .await;
}

/// Lets others that open a file wait, for as long as the process lives that is returned. `None` where
/// the file system has no leases.
async fn hold_lease(file: &Path) -> Option<Child> {
    const HOLD: &str = "import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = open(sys.argv[1], 'r+b')
try:
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print('held', flush=True)
except OSError:
    print('none', flush=True)
sys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", HOLD])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut held = [0; 4];
    let output = child.stdout.as_mut().unwrap();
    within("the lease", output.read_exact(&mut held))
        .await
        .unwrap();
    (held == *b"held").then_some(child)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_file_of_the_proxy_is_no_checkpoint() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    leave_checkpoint(&upstream, folder.path()).await;
    let (file, _) = pods_file(folder.path()).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&file, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    fs::create_dir(folder.path().join("a.checkpoint")).unwrap();
    let pipe = folder.path().join("b.checkpoint");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let program = start(&upstream, folder.path(), &[]).await;
    answered_from_memory(&program, PODS).await;
    assert!(lists(&program).await >= 1.0, "a link is not followed");
    assert_exact(&program, &upstream).await;
    let writes = r#"watershed_checkpoint_writes_total{result="written"}"#;
    becomes("others are written", true, async || {
        program.metric(writes).await >= 1.0
    })
    .await;
    program.terminate().await;
    assert!(program.ended().await.success());
    assert!(
        elsewhere.exists() && pipe.exists(),
        "they are not the proxy's"
    );
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_delays_neither_the_list_nor_the_end_for_long() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    leave_checkpoint(&upstream, folder.path()).await;
    let program = launch(&upstream, folder.path(), &[]).await;
    let (file, _) = pods_file(folder.path()).unwrap();
    let Some(lease) = hold_lease(&file).await else {
        eprintln!("not tried: the file system has no leases");
        return;
    };
    answered_from_memory(&program, PODS).await;
    assert!(reads(&program, "slow").await >= 1.0);
    assert_exact(&program, &upstream).await;
    program.terminate().await;
    assert!(program.ended().await.success());
    drop(lease);
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_two_processes_share_is_read_by_both_and_written_by_one() {
    unless_stalled("two proxies share a folder", async || {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = TempDir::new().unwrap();
        leave_checkpoint(&upstream, folder.path()).await;
        let first = start(&upstream, folder.path(), &[]).await;
        let second = start(&upstream, folder.path(), &[]).await;
        has_read(&second, "restored").await?;
        let in_use = r#"watershed_checkpoint_writes_total{result="in-use"}"#;
        becomes("the folder is in use", true, async || {
            second.metric(in_use).await >= 1.0
        })
        .await;
        // What this one cannot use stays for the others.
        let configs = TempDir::new().unwrap();
        let config = configs.path().join("config.yaml");
        fs::write(&config, "managedFields: drop\n").unwrap();
        let flags = ["--config", config.to_str().unwrap()];
        let other = start(&upstream, folder.path(), &flags).await;
        has_read(&other, "outdated").await?;
        becomes("the folder is in use", true, async || {
            other.metric(in_use).await >= 1.0
        })
        .await;
        assert!(pods_file(folder.path()).is_some());
        other.kill().await;
        first.kill().await;
        let version = create_pod(&upstream, "later");
        written(folder.path(), version).await;
        second.kill().await;
        upstream.shutdown().await;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_checkpoints_are_also_of_types_without_changes() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let program = start(&upstream, folder.path(), &[]).await;
    let version = create_pod(&upstream, "checkpointed");
    written(folder.path(), version).await;
    let saved = || {
        let (_, header) = checkpoint_of(folder.path(), "pods").unwrap();
        header["saved"].as_u64().unwrap()
    };
    let before = saved();
    tokio::time::sleep(Duration::from_secs(3)).await;
    program.terminate().await;
    assert!(program.ended().await.success());
    assert!(saved() >= before + 2, "{} after {before}", saved());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_whole_objects_is_removed_where_only_metadata_may_be_kept() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    leave_checkpoint(&upstream, folder.path()).await;
    assert!(pods_file(folder.path()).is_some());
    let config = TempDir::new().unwrap();
    let config = config.path().join("config.yaml");
    fs::write(&config, "resources: [{resource: pods, cache: metadata}]\n").unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let program = launch(&upstream, folder.path(), &flags).await;
    assert!(pods_file(folder.path()).is_none());
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_replaced_where_there_is_no_room_for_two() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let flags = ["--checkpoint-max-mib", "1"];
    let program = start(&upstream, folder.path(), &flags).await;
    let large = format!(
        r#"{{"metadata":{{"name":"large","namespace":"default","annotations":{{"a":"{}"}}}}}}"#,
        "x".repeat(700 << 10)
    );
    let version = upstream.state().create(&pods(), &large).unwrap();
    written(folder.path(), version).await;
    let version = create_pod(&upstream, "later");
    written(folder.path(), version).await;
    program.kill().await;
    upstream.shutdown().await;
}
