//! The program as a process of its own. It has its own metrics and can be sent signals.
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use watershed_lab::sim::SimulatedServer;

use super::admin::{metric, plain_get};
use super::client::{Endpoint, within};
use super::waiting::eventually;

const LOG_LEVEL: &str = "WATERSHED_LOG_LEVEL";
const PROGRAM: &str = env!("CARGO_BIN_EXE_watershed");

pub(crate) struct Program {
    pub(crate) proxied: Endpoint,
    pub(crate) admin: SocketAddr,
    /// The CA of its certificate, as PEM.
    pub(crate) ca: String,
    child: Child,
    /// The lines that it has logged.
    log: Arc<Mutex<String>>,
    _folder: TempDir,
}

impl Program {
    /// Starts `watershed serve` in front of an API server and waits until it is ready. Dropping the
    /// value kills the program.
    pub(crate) async fn start(upstream: &SimulatedServer) -> Self {
        Self::with(upstream, &[]).await
    }

    /// Starts the program with further flags.
    pub(crate) async fn with(upstream: &SimulatedServer, flags: &[&str]) -> Self {
        Self::with_variables(upstream, flags, &[]).await
    }

    /// Starts the program with further flags and environment variables.
    pub(crate) async fn with_variables(
        upstream: &SimulatedServer,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(PROGRAM);
        command
            .env_remove(LOG_LEVEL)
            .envs(variables.iter().copied());
        Self::run(upstream, command, flags).await
    }

    /// Starts the program and does not wait until it is ready.
    pub(crate) async fn unready(upstream: &SimulatedServer) -> Self {
        let mut command = Command::new(PROGRAM);
        command.env_remove(LOG_LEVEL);
        Self::launch(upstream, command, &[]).await
    }

    /// Starts the program with these limits of open files.
    pub(crate) async fn with_file_limits(
        upstream: &SimulatedServer,
        (soft, hard): (u32, u32),
        flags: &[&str],
    ) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -S -n {soft} && ulimit -H -n {hard} && exec \"$0\" \"$@\"");
        command
            .args(["-c", &limited, PROGRAM])
            .env_remove(LOG_LEVEL);
        Self::run(upstream, command, flags).await
    }

    /// Starts the program by this command, to which flags are added, and waits until it is ready.
    async fn run(upstream: &SimulatedServer, command: Command, flags: &[&str]) -> Self {
        let program = Self::launch(upstream, command, flags).await;
        // A listener with TLS does not understand the question.
        if !flags.contains(&"--admin-tls-cert") {
            eventually("readiness", async || {
                let answer = program.admin("GET", "/readyz").await;
                if answer.starts_with("HTTP/1.1 200 ") {
                    Ok(())
                } else {
                    Err(answer)
                }
            })
            .await;
        }
        program
    }

    /// Starts the program by this command, to which flags are added.
    async fn launch(upstream: &SimulatedServer, mut command: Command, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (kubeconfig, certs) = (
            folder.path().join("kubeconfig"),
            folder.path().join("certs"),
        );
        std::fs::write(&kubeconfig, upstream.kubeconfig_yaml()).unwrap();
        // The simulated API server has JSON alone, unless a test is about protobuf.
        let is_derived = flags.contains(&"--derive-json");
        let not_derived: &[&str] = if is_derived {
            &[]
        } else {
            &["--derive-json", "false"]
        };
        let mut child = command
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--admin-listen",
                "127.0.0.1:0",
                "--log-format",
                "json",
            ])
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--cert-dir")
            .arg(&certs)
            .args(not_derived)
            .args(flags)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut proxy, mut admin) = (None, None);
        let log = Arc::new(Mutex::new(String::new()));
        while proxy.is_none() || admin.is_none() {
            let line = within("where it listens", lines.next_line()).await.unwrap();
            let line = line.expect("it says where it listens before it ends");
            log.lock().extend([line.as_str(), "\n"]);
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            let address = || {
                line["fields"]["address"]
                    .as_str()?
                    .parse::<SocketAddr>()
                    .ok()
            };
            match line["fields"]["listener"].as_str() {
                Some("proxy") => proxy = address(),
                Some("admin") => admin = address(),
                _ => {}
            }
        }
        // Without a reader the pipe would fill up and block the program.
        let further = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                *further.lock() += &(line + "\n");
            }
        });
        let ca = std::fs::read_to_string(certs.join("ca.crt")).unwrap();
        let proxied = Endpoint::new(proxy.unwrap(), &ca, upstream.admin_token());
        let admin = admin.unwrap();
        Self {
            proxied,
            admin,
            ca,
            child,
            log,
            _folder: folder,
        }
    }

    /// Returns the admin listener's answer with its head.
    pub(crate) async fn admin(&self, method: &str, path: &str) -> String {
        plain_get(self.admin, method, path).await
    }

    /// Returns the value of a metric series, or zero if the series does not exist.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        metric(self.admin, series).await
    }

    /// Returns the value of a counter, or zero if it has no such series.
    pub(crate) async fn counter(&self, series: &str) -> u64 {
        metric(self.admin, series).await
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// Waits until a line of the log has all these words.
    pub(crate) async fn until_logged(&self, words: &[&str]) {
        eventually("a line of the log", async || {
            let log = self.log();
            let is_wanted = |line: &str| words.iter().all(|word| line.contains(word));
            log.lines()
                .any(is_wanted)
                .then_some(())
                .ok_or_else(|| format!("{words:?} in {log}"))
        })
        .await;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Sends SIGTERM.
    pub(crate) async fn terminate(&self) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .await
            .unwrap();
        assert!(sent.success());
    }

    /// Kills it, as by SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn ended(mut self) -> ExitStatus {
        within("the end of the program", self.child.wait())
            .await
            .unwrap()
    }
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn resident_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
