//! Proxies under test: each the program itself, in a process of its own that can be killed.
use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use watershed_lab::client::Endpoint;

use crate::waiting::eventually;

/// Events are kept for so long, so that slow clients and old versions meet the end of the window.
const WINDOW_SECONDS: &str = "20";

/// The servers that a proxy follows, and what it needs to reach them.
#[derive(Clone)]
pub(crate) struct Servers {
    pub(crate) urls: Vec<String>,
    pub(crate) ca_pem: String,
    pub(crate) token: String,
}

/// A proxy. It keeps its addresses and its certificate when it is restarted.
pub(crate) struct Replica {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    servers: Servers,
    folder: TempDir,
    child: Child,
    /// Self-checks of its processes that were ended by a restart.
    earlier: SelfChecks,
}

/// Numbers of self-checks by their results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SelfChecks {
    pub(crate) same: u64,
    pub(crate) different: u64,
}

/// Figures of a process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) resident_mib: f64,
    pub(crate) descriptors: f64,
    pub(crate) tasks: f64,
}

impl Servers {
    fn kubeconfig(&self) -> String {
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca_pem);
        let (url, token) = (&self.urls[0], &self.token);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: main\n\
             clusters: [{{name: main, cluster: {{server: \"{url}\", \
             certificate-authority-data: {ca}}}}}]\n\
             users: [{{name: main, user: {{token: {token}}}}}]\n\
             contexts: [{{name: main, context: {{cluster: main, user: main}}}}]\n"
        )
    }
}

/// Returns an address that nobody listens on, below the kernel's ephemeral ports.
fn free_address() -> SocketAddr {
    loop {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(20_000..32_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

impl Replica {
    pub(crate) async fn start(name: &'static str, servers: Servers) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("kubeconfig"), servers.kubeconfig()).unwrap();
        let (address, admin) = (free_address(), free_address());
        let child = spawn(folder.path(), [address, admin], &servers);
        let mut replica = Self {
            name,
            address,
            admin,
            servers,
            folder,
            child,
            earlier: SelfChecks::default(),
        };
        replica.ready().await;
        replica
    }

    /// Returns the CA of its certificate.
    pub(crate) fn ca_pem(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("certs/ca.crt")).unwrap()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.address, self.ca_pem(), &self.servers.token).unwrap()
    }

    /// Ends the process, with SIGTERM or SIGKILL, and starts it again.
    pub(crate) async fn restart(&mut self, gently: bool) {
        self.earlier = self.self_checks().await;
        if gently {
            let pid = self.child.id().expect("it runs").to_string();
            let sent = Command::new("kill").args(["-TERM", &pid]).status().await;
            assert!(sent.unwrap().success());
        } else {
            self.child.start_kill().unwrap();
        }
        self.child.wait().await.unwrap();
        self.child = self.spawn();
        self.ready().await;
    }

    /// Waits until it is ready. A process that has ended is started again, as a supervisor does:
    /// the program gives up if upstream refuses it at the start.
    async fn ready(&mut self) {
        let name = self.name;
        eventually(name, async || {
            if self.child.try_wait().unwrap().is_some() {
                self.child = self.spawn();
            }
            match self.admin("/readyz").await {
                Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
                other => Err(format!("{other:?}\n{}", self.log())),
            }
        })
        .await;
    }

    fn spawn(&self) -> Child {
        spawn(
            self.folder.path(),
            [self.address, self.admin],
            &self.servers,
        )
    }

    /// Returns the last lines of its log.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(4000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    async fn admin(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.admin).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(20), reading).await??;
        Ok(answer)
    }

    async fn metrics(&self) -> String {
        let mut metrics = String::new();
        eventually(self.name, async || {
            metrics = self
                .admin("/metrics")
                .await
                .map_err(|error| format!("no metrics: {error}\n{}", self.log()))?;
            Ok(())
        })
        .await;
        metrics
    }

    /// Returns the numbers of self-checks of all its processes.
    pub(crate) async fn self_checks(&self) -> SelfChecks {
        let metrics = self.metrics().await;
        // A result that never was has no series.
        let sum = |result: &str| {
            let lines = metrics.lines().filter(|line| {
                line.starts_with("watershed_self_checks_total{")
                    && line.contains(&format!(r#"result="{result}""#))
            });
            let values = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
            values.sum::<u64>()
        };
        SelfChecks {
            same: self.earlier.same + sum("same"),
            different: self.earlier.different + sum("objects") + sum("bytes"),
        }
    }

    pub(crate) async fn figures(&self) -> Figures {
        let metrics = self.metrics().await;
        let value = |name: &str| -> f64 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|value| value.trim().parse().ok());
            value.unwrap_or_else(|| panic!("{} has no metric {name}", self.name))
        };
        Figures {
            resident_mib: value("process_resident_memory_bytes ") / f64::from(1 << 20),
            descriptors: value("process_open_fds "),
            tasks: value("watershed_tasks "),
        }
    }
}

fn spawn(folder: &Path, [address, admin]: [SocketAddr; 2], servers: &Servers) -> Child {
    let program = std::env::var_os("WATERSHED_BIN");
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_watershed").into());
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("log"));
    let log: File = log.unwrap();
    let mut command = Command::new(program);
    command
        .args(["serve", "--listen", &address.to_string()])
        .args(["--admin-listen", &admin.to_string()])
        .arg("--kubeconfig")
        .arg(folder.join("kubeconfig"))
        .arg("--cert-dir")
        .arg(folder.join("certs"))
        .args(["--window-seconds", WINDOW_SECONDS])
        .args(["--self-check-interval", "5s", "--drain-seconds", "3"]);
    for url in &servers.urls {
        command.args(["--server", url]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
