//! Puts the rooms together. The only place that knows all of them.
pub mod check;
mod listen;
mod metrics;
mod report;
mod serving;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::access::{Access, AccessConfig};
use crate::audit::{Audit, AuditConfig};
use crate::catalog::{Catalog, CatalogFollower, DiscoveryError};
use crate::listener::tls::ServerTls;
use crate::scope::gauges::ScopeGauges;
use crate::scope::{self, Scopes};
use crate::serve::{CacheMode, CachedObjects, CachingException, CachingPolicy, ProxyService};
use crate::{drain, listener};
use listen::Bound;
pub use listen::Listen;
use metrics::Scraper;
pub use metrics::metrics;
use serving::named;

use crate::upstream::{Forwarder, Upstream, UpstreamClient};
use crate::{admin, telemetry};
use watershed_connect::ConnectOptions;

/// Everything `watershed serve` can be told.
#[derive(Clone, Debug)]
pub struct AppConfig {
    /// The API server, and the proxy's own identity there.
    pub upstream: ConnectOptions,
    /// Where clients connect.
    pub listen: Listen,
    /// The serving certificate and its key (PEM files); without them a self-signed pair is made.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Where a self-signed pair and its CA are kept.
    pub cert_dir: PathBuf,
    /// Further names and addresses in the self-signed certificate.
    pub names: Vec<String>,
    /// Where metrics and health are served.
    pub admin_listen: SocketAddr,
    /// Who may see them.
    pub admin: admin::Protection,
    /// How callers are known and let in.
    pub access: AccessConfig,
    /// How scopes keep their data.
    pub scopes: scope::ScopeConfig,
    /// What is done with requests where there is a choice.
    pub policy: CachingPolicy,
    /// Aggregated API groups whose types are cached, too. Only for servers that answer everyone
    /// alike.
    pub aggregated: Vec<String>,
    /// What is logged of the requests that are answered here, if anything.
    pub audit: Option<AuditConfig>,
    /// How many connections are served at a time, and the like.
    pub limits: listener::ConnectionLimits,
    /// How long open requests and watches may take to end at shutdown.
    pub drain: Duration,
}

impl AppConfig {
    /// Defaults for everything but the places.
    pub fn new(
        upstream: ConnectOptions,
        listen: impl Into<Listen>,
        admin_listen: SocketAddr,
        cert_dir: PathBuf,
    ) -> Self {
        Self {
            upstream,
            listen: listen.into(),
            certificate: None,
            cert_dir,
            names: Vec::new(),
            admin_listen,
            admin: admin::Protection::default(),
            access: AccessConfig::default(),
            scopes: scope::ScopeConfig::default(),
            policy: CachingPolicy::default(),
            aggregated: Vec::new(),
            audit: None,
            limits: listener::ConnectionLimits::default(),
            // kube-apiserver and most balancers give up on a server within a minute.
            drain: Duration::from_secs(20),
        }
    }
}

/// Why upstream does not say which types it has.
fn undiscovered(error: DiscoveryError, upstream: &Upstream) -> anyhow::Error {
    let ended = upstream
        .certificate()
        .filter(|valid| !valid.is_valid(Timestamp::now()));
    let unknown = matches!(error, DiscoveryError::Unknown { .. });
    let knob = match ended {
        Some(valid) if unknown => {
            format!(
                "the client certificate of {}: {}",
                upstream.source(),
                valid.describe(Timestamp::now())
            )
        }
        _ if unknown => format!("check the user's part of {}", upstream.source()),
        _ => "check --kubeconfig, --server and the proxy's permissions".to_owned(),
    };
    anyhow::Error::new(error).context(format!("cannot read upstream's discovery ({knob})"))
}

/// A running proxy.
pub struct Running {
    /// Where clients connect, if that is not a Unix socket.
    pub address: Option<SocketAddr>,
    /// Where metrics and health are served.
    pub admin_address: SocketAddr,
    /// The CA clients must trust, when the serving certificate is self-signed.
    pub ca_file: Option<PathBuf>,
    drain: drain::DrainTrigger,
    /// The admin listener's own: it answers while the proxy ends.
    admin_drain: drain::DrainTrigger,
    grace: Duration,
    forwarder: Forwarder,
    scopes: Scopes,
    audit: Option<Audit>,
    traces: Option<telemetry::Traces>,
    proxy: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
}

impl Running {
    /// Stops in three acts: no new connections, open ones end, and what is left is cut.
    pub async fn shut_down(self) {
        tracing::info!("shutting down");
        self.drain.drain(self.grace);
        let ended = async {
            if self.proxy.await.is_err() {
                tracing::error!("the listener failed");
            }
            // Sessions of exec and port-forward are nobody's to end but their users'.
            self.forwarder.tunnels_ended().await;
        };
        if tokio::time::timeout(self.grace, ended).await.is_err() {
            tracing::warn!("some sessions did not end in time and are cut (--drain-seconds)");
        }
        if let Some(audit) = &self.audit {
            audit.shut_down().await;
        }
        if let Some(traces) = self.traces {
            traces.end().await;
        }
        self.admin_drain.drain(Duration::ZERO);
        self.background.iter().for_each(JoinHandle::abort);
        self.scopes.shut_down();
        tracing::info!("stopped");
    }
}

/// Starts a proxy. It serves when this returns.
pub async fn start(config: AppConfig) -> anyhow::Result<Running> {
    let registry = telemetry::registry(&metrics());
    let traces = telemetry::traces()?;
    let audit = match config.audit.clone() {
        Some(config) => Some(Audit::start(config).await?),
        None => None,
    };
    let upstream = Upstream::load(&config.upstream).await?;
    tracing::info!(upstream = ?upstream, from = upstream.source(), "found upstream");
    let client = UpstreamClient::new(&upstream);
    let scopes = Scopes::new(client.clone(), config.scopes);
    let started =
        CatalogFollower::start(client.clone(), scopes.clone(), config.aggregated.clone()).await;
    let (follower, catalog) = started.map_err(|error| undiscovered(error, &upstream))?;
    tracing::info!(types = catalog.len(), "read discovery");
    for name in config.policy.possibly_stale() {
        tracing::warn!(
            resource = name,
            "consistent reads may get an older state (consistentReads: stale in --config)"
        );
    }
    config
        .policy
        .exceptions()
        .iter()
        .for_each(|kept| announce(kept, &catalog));
    for ((group, resource), selections) in &config.policy.scopes {
        let selections: Vec<_> = selections.iter().map(ToString::to_string).collect();
        tracing::info!(
            group,
            resource,
            ?selections,
            "no more than these is held, each once somebody asks for it"
        );
    }

    let shown = report::of(&config).to_string();
    let tls = match &config.listen {
        Listen::Tls(address) => Some(
            config
                .serving(address.ip(), config.access.authorities())
                .await?,
        ),
        Listen::Socket { .. } => None,
    };
    let ca_file = tls.as_ref().and_then(ServerTls::ca_file);
    if let Some(ca) = &ca_file {
        tracing::info!(ca = %ca.display(), "serving a self-signed certificate; clients must trust its CA");
    }
    let admin_tls = config.admin_serving().await?;
    let token = match config.admin.token_file.clone() {
        Some(file) => Some(admin::TokenFile::load(file).await?),
        None => None,
    };
    let proxy_tls = tls.clone();
    let listener = Bound::new(&config.listen, tls).await?;
    let admin_listener = bind(config.admin_listen, "--admin-listen").await?;
    let (address, admin_address) = (listener.address()?, admin_listener.local_addr()?);

    let objects = CachedObjects::new(catalog.clone(), scopes.clone());
    let knobs = config.knobs();
    let access = Access::new(&client, config.access, Arc::new(objects)).await;
    let access = access.map_err(|error| named(error, &knobs))?;
    let forwarder = Forwarder::new(&upstream);
    let (drain, draining) = drain::channel();
    let follow_rbac = access.follow_rbac(scopes.clone());
    let server = ProxyService::new(
        catalog.clone(),
        config.policy,
        scopes.clone(),
        access,
        client,
        forwarder.clone(),
        draining.clone(),
    )
    .audited(audit.clone());
    let usage = server.usage();
    let keep_scopes_open = server.clone().keep_scopes_open();
    let proxy = tokio::spawn(listener.serve(server, config.limits.clone(), draining.clone()));
    let (admin_drain, admin_draining) = drain::channel();
    let scraper = Scraper {
        registry: registry.clone(),
        catalog: catalog.clone(),
        scopes: scopes.clone(),
        usage: usage.clone(),
        upstream: upstream.clone(),
        proxy_tls: proxy_tls.clone(),
        admin_tls: admin_tls.clone(),
        gauges: ScopeGauges::default(),
    };
    let state = admin::State {
        catalog,
        scopes: scopes.clone(),
        usage,
        upstream,
        proxy_tls,
        admin_tls: admin_tls.clone(),
        draining,
        metrics: Box::new(move || scraper.scrape()),
        history: admin::History::default(),
        started: Instant::now(),
        token,
        config: shown,
    };
    let background = vec![
        tokio::spawn(follower.run()),
        tokio::spawn(follow_rbac),
        tokio::spawn(keep_scopes_open),
        tokio::spawn(scopes.clone().close_idle()),
        tokio::spawn(admin::serve(
            admin_listener,
            admin_tls,
            Arc::new(state),
            config.limits,
            admin_draining,
        )),
        tokio::spawn(upkeep(registry)),
    ];
    match (&config.listen, address) {
        (Listen::Socket { path, .. }, _) => {
            tracing::info!(listener = "proxy", socket = %path.display(), "listening");
        }
        (_, Some(address)) => tracing::info!(listener = "proxy", address = %address, "listening"),
        (_, None) => {}
    }
    tracing::info!(listener = "admin", address = %admin_address, "listening");
    Ok(Running {
        address,
        admin_address,
        ca_file,
        drain,
        admin_drain,
        grace: config.drain,
        forwarder,
        scopes,
        audit,
        traces,
        proxy,
        background,
    })
}

/// Says what is kept of a type for which that is not the rule.
fn announce(kept: &CachingException, catalog: &Catalog) {
    let (resource, cache) = (kept.name(), kept.mode.as_str());
    match (kept.sensitive, kept.mode) {
        (true, CacheMode::Objects) => {
            tracing::warn!(
                resource,
                cache,
                "held in this process's memory, by choice (cache in --config)"
            );
        }
        (true, CacheMode::Metadata) => tracing::warn!(
            resource,
            cache,
            "the metadata is held in memory, by choice (cache in --config); \
             kubectl apply keeps what it was given in annotations, and so there"
        ),
        (_, CacheMode::Nothing) => {
            tracing::info!(
                resource,
                cache,
                "not held in memory; its reads are forwarded (cache in --config)"
            );
        }
        (false, _) => tracing::info!(
            resource,
            cache,
            "held in memory by choice (cache in --config)"
        ),
    }
    // A type of another group may be defined later.
    if catalog.has(&kept.group, None)
        && kept.resource != "*"
        && !catalog.has_resource(&kept.group, &kept.resource)
    {
        tracing::warn!(
            resource,
            cache,
            "upstream has no type of this name (resources in --config)"
        );
    }
}

async fn bind(address: SocketAddr, knob: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({knob})"))
}

/// Histograms collect samples until somebody folds them in.
async fn upkeep(registry: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        registry.run_upkeep();
    }
}
