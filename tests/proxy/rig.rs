//! The simulated API server with the proxy in front of it.
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use watershed::app::{self, AppConfig, RunningProxy};
use watershed::serve::CacheMode;
use watershed::telemetry;
use watershed_connect::ConnectOptions;
use watershed_lab::sim::{Options, Population, SimulatedServer};

use crate::client::{Answer, Endpoint};

/// Generous, as it only decides how long a failure takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) struct Rig {
    pub(crate) upstream: SimulatedServer,
    /// The proxy.
    pub(crate) proxied: Endpoint,
    /// The API server itself, to compare with.
    pub(crate) direct: Endpoint,
    pub(crate) admin: SocketAddr,
    running: RunningProxy,
    folder: TempDir,
}

/// A small cluster with an eventful life: bookmarks and progress come in tenths of seconds.
pub(crate) fn small() -> Options {
    Options {
        population: Population {
            nodes: 4,
            namespaces: 3,
            pods: 40,
            ..Population::default()
        },
        bookmark_every: Duration::from_millis(300),
        progress_every: Duration::from_millis(300),
        ..Options::default()
    }
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

impl Rig {
    pub(crate) async fn start(options: Options) -> Self {
        Self::prepared(options, |_| {}).await
    }

    /// `configure` changes how the proxy runs.
    pub(crate) async fn configured(
        options: Options,
        configure: impl FnOnce(&mut AppConfig),
    ) -> Self {
        Self::build(options, |_| {}, configure).await
    }

    /// `prepare` sees the API server before the proxy does.
    pub(crate) async fn prepared(options: Options, prepare: impl FnOnce(&SimulatedServer)) -> Self {
        Self::build(options, prepare, |_| {}).await
    }

    /// Both.
    pub(crate) async fn build(
        options: Options,
        prepare: impl FnOnce(&SimulatedServer),
        configure: impl FnOnce(&mut AppConfig),
    ) -> Self {
        let upstream = SimulatedServer::start(options).await.unwrap();
        prepare(&upstream);
        let (running, folder) = start_configured(&upstream.kubeconfig_yaml(), configure)
            .await
            .unwrap();
        let ca = std::fs::read_to_string(running.ca_file.as_ref().unwrap()).unwrap();
        Self {
            proxied: Endpoint::new(running.address.unwrap(), &ca, upstream.admin_token()),
            direct: Endpoint::new(
                upstream.address(),
                upstream.ca_pem(),
                upstream.admin_token(),
            ),
            admin: running.admin_address,
            upstream,
            running,
            folder,
        }
    }

    /// Begins the proxy's shutdown, as SIGTERM does; the rest goes on.
    pub(crate) fn shut_down(self) -> (SimulatedServer, impl Future<Output = ()>) {
        let Self {
            upstream,
            running,
            folder,
            ..
        } = self;
        (upstream, async move {
            running.shut_down().await;
            drop(folder);
        })
    }

    /// Ends the API server alone; the rest ends with the future.
    pub(crate) async fn without_upstream(self) -> impl Future<Output = ()> {
        let Self {
            upstream,
            running,
            folder,
            ..
        } = self;
        upstream.shutdown().await;
        async move {
            running.shut_down().await;
            drop(folder);
        }
    }

    /// Ends everything.
    pub(crate) async fn stop(self) {
        let (upstream, end) = self.shut_down();
        end.await;
        upstream.shutdown().await;
    }
}

/// The proxy as `watershed serve` runs it, on free ports, with everything it writes in a temporary
/// folder.
pub(crate) async fn start_proxy(kubeconfig: &str) -> anyhow::Result<(RunningProxy, TempDir)> {
    start_configured(kubeconfig, |_| {}).await
}

pub(crate) async fn start_configured(
    kubeconfig: &str,
    configure: impl FnOnce(&mut AppConfig),
) -> anyhow::Result<(RunningProxy, TempDir)> {
    watershed_connect::install_crypto();
    // The proxy's log, for whoever looks for the cause of a failure.
    if let Ok(filter) = std::env::var("WATERSHED_LOG_LEVEL") {
        let _ = telemetry::logs(telemetry::LogFormat::Text, &filter);
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig)?;
    let options = ConnectOptions {
        kubeconfig: Some(file),
        ..ConnectOptions::default()
    };
    let mut config = AppConfig::new(options, loopback(), loopback(), folder.path().join("certs"));
    // No test is about these, and none shall fail on a machine that stalls.
    config.limits.start = PATIENCE;
    configure(&mut config);
    Ok((app::start(config).await?, folder))
}

/// The operator lets secrets be kept in memory.
pub(crate) fn with_secrets(config: &mut AppConfig) {
    config.policy.set_mode("", "secrets", CacheMode::Objects);
}

/// Waits for a condition; what is missing is said when it doesn't come.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(10);
    loop {
        match holds().await {
            Ok(()) => return,
            Err(why) if Instant::now() >= deadline => {
                panic!("{what}: not after {PATIENCE:?}: {why}")
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        // To look costs something, too.
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
}

/// Waits for a value.
pub(crate) async fn becomes<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: T,
    mut now: impl AsyncFnMut() -> T,
) {
    eventually(what, async || {
        let now = now().await;
        if now == wanted {
            Ok(())
        } else {
            Err(format!("it is {now:?}, wanted is {wanted:?}"))
        }
    })
    .await;
}

/// Tries again what may fail on a machine that stalls. `holds` returns `Err` for such a failure, and
/// fails the test itself where a stall is no excuse.
pub(crate) async fn unless_stalled(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let mut whys = Vec::new();
    while whys.len() < 10 {
        match holds().await {
            Ok(()) => return,
            Err(why) => whys.push(why),
        }
    }
    panic!("{what}: not once: {whys:#?}");
}

/// Consistent reads from memory wait this long for their proof (`serve/fence.rs`), and reviews for
/// their first answer.
const PROOF: Duration = Duration::from_secs(3);

/// An answer that comes from memory, with a proof that it is new enough. On a machine that stalls
/// for as long as a proof may take the answer is upstream's: then it is asked for again.
pub(crate) async fn proven(mut ask: impl AsyncFnMut() -> Answer) -> Answer {
    for _ in 0..10 {
        let asked = Instant::now();
        let answer = ask().await;
        if answer.header("x-watershed-source") == "linearizable" {
            return answer;
        }
        assert!(
            asked.elapsed() >= PROOF,
            "not from memory: {:?}",
            answer.headers
        );
    }
    panic!("this machine is too slow for a proof");
}

/// Returns whether counts of requests at upstream are reliable. A request that is not answered in
/// time is sent again.
pub(crate) fn at_leisure(since: Instant) -> bool {
    since.elapsed() < PROOF
}

/// A request without TLS, as probes and scrapers send them; the answer with its head.
pub(crate) async fn plain_get(address: SocketAddr, method: &str, path: &str) -> String {
    plain_request(address, method, path, &[]).await
}

/// The same with headers.
pub(crate) async fn plain_request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut lines = vec![
        format!("{method} {path} HTTP/1.1"),
        "Connection: close".to_owned(),
    ];
    if !headers.iter().any(|(name, _)| *name == "Host") {
        lines.push("Host: admin".to_owned());
    }
    lines.extend(
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}")),
    );
    let request = lines.join("\r\n") + "\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// The value of a series, zero when there is none.
pub(crate) async fn metric(admin: SocketAddr, series: &str) -> f64 {
    let text = plain_get(admin, "GET", "/metrics").await;
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
        .unwrap_or(0.0)
}
