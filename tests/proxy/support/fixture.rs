//! The test fixture: a simulated API server with the proxy in front of it.
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tempfile::TempDir;
use watershed::app::{self, AppConfig, RunningProxy};
use watershed::serve::CacheMode;
use watershed::telemetry;
use watershed_connect::ConnectOptions;
use watershed_lab::sim::{Options, Population, SimulatedServer};

use super::client::Endpoint;
use super::waiting::PATIENCE;

/// A running API server and a running proxy.
pub(crate) struct Fixture {
    pub(crate) upstream: SimulatedServer,
    /// The proxy.
    pub(crate) proxied: Endpoint,
    /// The API server itself, for comparison.
    pub(crate) direct: Endpoint,
    pub(crate) admin: SocketAddr,
    running: RunningProxy,
    folder: TempDir,
}

/// Returns the options of a small cluster with frequent bookmarks and progress notifications.
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

impl Fixture {
    pub(crate) async fn start(options: Options) -> Self {
        Self::prepared(options, |_| {}).await
    }

    /// Starts both. `configure` changes the proxy's configuration.
    pub(crate) async fn configured(
        options: Options,
        configure: impl FnOnce(&mut AppConfig),
    ) -> Self {
        Self::build(options, |_| {}, configure).await
    }

    /// Starts both. `prepare` gets the API server before the proxy connects to it.
    pub(crate) async fn prepared(options: Options, prepare: impl FnOnce(&SimulatedServer)) -> Self {
        Self::build(options, prepare, |_| {}).await
    }

    /// Starts both, with `prepare` and `configure`.
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

    /// Returns the running API server, and a future that shuts the proxy down as SIGTERM does.
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

    /// Stops the API server. The returned future shuts the proxy down.
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

    /// Stops the proxy and the API server.
    pub(crate) async fn stop(self) {
        let (upstream, end) = self.shut_down();
        end.await;
        upstream.shutdown().await;
    }
}

/// Starts the proxy as `watershed serve` does, on free ports. All its files are in a temporary
/// folder.
pub(crate) async fn start_proxy(kubeconfig: &str) -> anyhow::Result<(RunningProxy, TempDir)> {
    start_configured(kubeconfig, |_| {}).await
}

/// Starts the proxy as [`start_proxy`] does, after `configure` changed its configuration.
pub(crate) async fn start_configured(
    kubeconfig: &str,
    configure: impl FnOnce(&mut AppConfig),
) -> anyhow::Result<(RunningProxy, TempDir)> {
    watershed_connect::install_crypto();
    // The proxy's log helps to find the cause of a failure.
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
    // The default would fail tests on a machine that stalls. No test is about this limit.
    config.limits.start = PATIENCE;
    // Tests count requests at upstream, and may take minutes on such a machine.
    config.scopes.self_check = Duration::ZERO;
    // Tests count requests at upstream. Those about rollbacks choose another interval.
    config.scopes.rollback_check = Duration::from_hours(1);
    // The simulated API server has JSON alone, unless a test is about protobuf. Each scope would ask
    // it for protobuf first.
    config.policy.scope_policy.derive_json = Some(false);
    configure(&mut config);
    Ok((app::start(config).await?, folder))
}

/// Configures the proxy to cache secrets.
pub(crate) fn with_secrets(config: &mut AppConfig) {
    config.policy.types.entry("", "secrets").mode = Some(CacheMode::Objects);
}
