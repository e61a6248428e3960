//! Assembles the modules into the running program. No other module knows all of them.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::access::{Access, FrontProxyConfig};
use crate::audit::Audit;
use crate::budget::MemoryBudget;
use crate::listener::tls::ServerTls;
use crate::scope::gauges::ScopeGauges;
use crate::scope::{Scopes, SelfCheck, save_finally, save_regularly, watch_for_rollbacks};
use crate::serve::{CachedObjects, ProxyService};
use crate::upstream::{Forwarder, Upstream, UpstreamClient};
use crate::{admin, drain, telemetry};

mod announce;
mod background;
pub mod check;
mod checkpoints;
mod config;
mod connection_memory;
mod discovery;
mod effective_config;
mod listen;
mod metrics;
mod node_grants;
mod open_files;
mod pressure;
mod serving;
mod trust;

pub use config::{AppConfig, Listen};
pub use metrics::metrics;
pub use open_files::raise_file_limit;

use background::BackgroundTasks;
use listen::{BoundListener, bind};
use metrics::Scraper;
use pressure::PressureKeeper;
use serving::with_flag;

/// A running proxy.
pub struct RunningProxy {
    /// The address for clients; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// The address of metrics and health.
    pub admin_address: SocketAddr,
    /// The CA that clients must trust, if the serving certificate is self-signed.
    pub ca_file: Option<PathBuf>,
    drain: drain::DrainTrigger,
    /// The admin listener's own drain: it answers until the proxy has stopped.
    admin_drain: drain::DrainTrigger,
    grace: Duration,
    forwarder: Forwarder,
    scopes: Scopes,
    audit: Option<Audit>,
    traces: Option<telemetry::Traces>,
    /// The listener; `None` once it failed.
    proxy: Option<JoinHandle<()>>,
    background: BackgroundTasks,
}

impl RunningProxy {
    /// Waits until a task fails without which the proxy may show what is out of date, or be of no use.
    /// Returns its name. The proxy must be shut down then.
    pub async fn failed(&mut self) -> &'static str {
        let listener = OptionFuture::from(self.proxy.as_mut());
        tokio::select! {
            Some(_) = listener => {
                self.proxy = None;
                "listener"
            }
            task = self.background.failed() => task,
        }
    }

    /// Stops the proxy: refuses new connections, waits for open ones, and cuts the rest.
    pub async fn shut_down(self) {
        tracing::info!("shutting down");
        self.drain.drain(self.grace);
        let ended = async {
            if let Some(proxy) = self.proxy
                && proxy.await.is_err()
            {
                tracing::error!("the listener failed");
            }
            // Only their users may end sessions of exec and port-forward.
            self.forwarder.tunnels_ended().await;
        };
        if tokio::time::timeout(self.grace, ended).await.is_err() {
            tracing::warn!("closing sessions that outlasted --drain-seconds");
            self.forwarder.cut_tunnels();
        }
        // Side by side, as the whole end may be limited: a slow disk must cost no audit events.
        let audit = OptionFuture::from(self.audit.as_ref().map(Audit::shut_down));
        tokio::join!(save_finally(&self.scopes), audit);
        if let Some(traces) = self.traces {
            traces.end().await;
        }
        self.admin_drain.drain(Duration::ZERO);
        drop(self.background);
        self.scopes.shut_down().await;
        tracing::info!("stopped");
    }
}

/// Starts a proxy. It serves once the future is ready.
pub fn start(config: AppConfig) -> BoxFuture<'static, anyhow::Result<RunningProxy>> {
    // Boxed, so that it is compiled with this crate and not anew with each one that awaits it.
    assemble(config).boxed()
}

async fn assemble(mut config: AppConfig) -> anyhow::Result<RunningProxy> {
    let registry = telemetry::registry(&metrics());
    let traces = telemetry::traces()?;
    let audit = match config.audit.clone() {
        Some(config) => Some(Audit::start(config).await?),
        None => None,
    };
    let upstream = find_upstream(&config).await?;
    config.limits.memory = memory_budget(&config);
    if !config.limits.is_chosen {
        connection_memory::fit(&mut config.limits);
    }
    open_files::fit(&mut config.limits);
    let upstream = upstream.within(open_files::of_upstream(&config.limits));
    let client = UpstreamClient::new(&upstream);
    let scopes = open_scopes(&config, &client).await?;
    let (mut follower, catalog) = discovery::catalog(&config, client.clone(), &scopes);
    if let Some(warning) = trust::overlap(&config).await {
        tracing::warn!("{warning}");
    }
    let shown = effective_config::to_json(&config).to_string();
    let Listeners {
        proxy: listener,
        proxy_tls,
        admin: admin_listener,
        admin_tls,
        admin_token,
    } = Listeners::open(&config).await?;
    let (address, admin_address) = (listener.address()?, admin_listener.local_addr()?);
    discovery::learn_first(&mut follower, &upstream).await;
    let announced = announce::announce(config.policy.clone(), catalog.clone());

    let followed_pods = node_grants::followed_pods(&config);
    if node_grants::lacks_pods(&config) {
        tracing::warn!("{}", node_grants::NOT_FOLLOWED);
    }
    let objects = CachedObjects::new(catalog.clone(), scopes.clone());
    if config.access.authentication.validate_locally {
        objects.follow_accounts();
    }
    let (flags, balancers) = (config.file_flags(), config.balancers());
    let followed_rbac = config.access.authorization.followed_rbac;
    let front_proxy = config.access.front_proxy.as_ref();
    let user_headers = front_proxy.map(FrontProxyConfig::user_headers);
    let access = Access::new(&client, config.access, Arc::new(objects), scopes.timeline())
        .await
        .map_err(|error| with_flag(error, &flags))?;
    let forwarder = Forwarder::new(&upstream).removing(user_headers.unwrap_or_default());
    let (drain, draining) = drain::channel();
    let follow_rbac = access.follow_rbac(scopes.clone(), followed_rbac);
    let follow_pods =
        followed_pods.map(|(key, options)| access.follow_pods(scopes.clone(), key, options));
    let service = ProxyService::new(
        catalog.clone(),
        config.policy,
        scopes.clone(),
        access,
        client,
        forwarder.clone(),
        draining.clone(),
    )
    .audited(audit.clone())
    .behind(config.trusted_proxies)
    .filtered(config.filter)
    .with_hsts(config.hsts);
    let usage = service.usage();
    let keep_scopes_open = service.clone().keep_scopes_open();
    let proxy =
        tokio::spawn(listener.serve(service, config.limits.clone(), balancers, draining.clone()));
    let (admin_drain, admin_draining) = drain::channel();
    let scraper = Scraper {
        registry: registry.clone(),
        catalog,
        scopes: scopes.clone(),
        usage,
        upstream,
        proxy_tls: proxy_tls.clone(),
        admin_tls: admin_tls.clone(),
        gauges: ScopeGauges::default(),
    };
    let state = admin_state(scraper, draining, admin_token, shown);
    let mut background = BackgroundTasks::default();
    background.spawn("discovery", follower.run());
    background.spawn("announcement", announced);
    background.spawn("rbac", follow_rbac);
    if let Some(follow_pods) = follow_pods {
        background.spawn("node-grants", follow_pods);
    }
    background.spawn("always-open", keep_scopes_open);
    background.spawn("idle-scopes", scopes.clone().close_idle());
    background.spawn("checkpoints", save_regularly(scopes.clone()));
    background.spawn("memory-pressure", PressureKeeper::new(scopes.clone()).run());
    background.spawn("self-check", SelfCheck::new(scopes.clone()).run());
    background.spawn("rollbacks", watch_for_rollbacks(scopes.clone()));
    background.spawn(
        "admin",
        admin::serve(
            admin_listener,
            admin_tls,
            Arc::new(state),
            open_files::of_admin(&config.limits),
            admin_draining,
        ),
    );
    background.spawn("metrics-upkeep", upkeep(registry));
    log_addresses(&config.listen, address, admin_address);
    Ok(RunningProxy {
        address,
        admin_address,
        ca_file: proxy_tls.as_ref().and_then(ServerTls::ca_file),
        drain,
        admin_drain,
        grace: config.drain,
        forwarder,
        scopes,
        audit,
        traces,
        proxy: Some(proxy),
        background,
    })
}

/// Loads the way to upstream, and logs it.
async fn find_upstream(config: &AppConfig) -> anyhow::Result<Upstream> {
    let upstream = Upstream::load(&config.upstream).await?;
    let addresses = upstream.addresses();
    tracing::info!(?addresses, from = upstream.source(), "found upstream");
    for what in upstream.insecurities() {
        tracing::warn!("{what}");
    }
    Ok(upstream)
}

fn memory_budget(config: &AppConfig) -> MemoryBudget {
    let budget = MemoryBudget::new(config.memory_limit);
    if let Some(bytes) = budget.limit() {
        tracing::info!(bytes, "memory is limited (--memory-limit)");
    }
    budget
}

/// Returns the scopes within the budget of the limits, with the states that there are already.
async fn open_scopes(config: &AppConfig, client: &UpstreamClient) -> anyhow::Result<Scopes> {
    let policy = config.policy.clone();
    let managed_fields = Arc::new(move |gvr: &_| policy.managed_fields(gvr));
    let scopes = Scopes::new(client.clone(), config.scopes)
        .with_aggregated(&config.aggregated)
        .with_managed_fields(managed_fields)
        .within(&config.limits.memory);
    let checkpoints = checkpoints::open(config, client, &scopes).await?;
    let replica = checkpoints::of_replica(config, client, &scopes).await?;
    Ok(scopes.with_checkpoints(checkpoints).with_replica(replica))
}

/// Returns what the admin listener shows, besides the metrics.
fn admin_state(
    scraper: Scraper,
    draining: drain::DrainWatch,
    token: Option<admin::TokenFile>,
    config: String,
) -> admin::AdminState {
    admin::AdminState {
        catalog: scraper.catalog.clone(),
        scopes: scraper.scopes.clone(),
        usage: scraper.usage.clone(),
        upstream: scraper.upstream.clone(),
        proxy_tls: scraper.proxy_tls.clone(),
        admin_tls: scraper.admin_tls.clone(),
        draining,
        metrics: Arc::new(move || scraper.scrape()),
        rendering: Arc::default(),
        history: admin::History::default(),
        started: Instant::now(),
        token,
        config,
    }
}

/// The listeners of a proxy and their certificates.
struct Listeners {
    proxy: BoundListener,
    proxy_tls: Option<ServerTls>,
    admin: TcpListener,
    admin_tls: Option<ServerTls>,
    admin_token: Option<admin::TokenFile>,
}

impl Listeners {
    async fn open(config: &AppConfig) -> anyhow::Result<Self> {
        let proxy_tls = match &config.listen {
            Listen::Tls(address) => Some(
                config
                    .serving(address.ip(), config.access.authorities())
                    .await?,
            ),
            Listen::Socket { .. } => None,
        };
        if let Some(ca) = proxy_tls.as_ref().and_then(ServerTls::ca_file) {
            tracing::info!(
                ca = %ca.display(),
                "serving a self-signed certificate; clients must trust its CA"
            );
        }
        let admin_tls = config.admin_serving().await?;
        let admin_token = match config.admin.token_file.clone() {
            Some(file) => Some(admin::TokenFile::load(file).await?),
            None => None,
        };
        Ok(Self {
            proxy: BoundListener::new(&config.listen, proxy_tls.clone()).await?,
            proxy_tls,
            admin: bind(config.admin_listen, "--admin-listen").await?,
            admin_tls,
            admin_token,
        })
    }
}

fn log_addresses(listen: &Listen, address: Option<SocketAddr>, admin_address: SocketAddr) {
    match (listen, address) {
        (Listen::Socket { path, .. }, _) => {
            tracing::info!(listener = "proxy", socket = %path.display(), "listening");
        }
        (_, Some(address)) => tracing::info!(listener = "proxy", address = %address, "listening"),
        (_, None) => {}
    }
    tracing::info!(listener = "admin", address = %admin_address, "listening");
}

/// Folds the samples of histograms regularly. Otherwise they would pile up until the next scrape.
async fn upkeep(registry: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        registry.run_upkeep();
    }
}
