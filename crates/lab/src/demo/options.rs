//! Flags of a demo, and the proxy that it runs against.
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::duration::parse_duration;

/// Time that the clients have to see the last change, unless the caller says otherwise.
const CONVERGENCE: Duration = Duration::from_secs(20);

/// Flags of `watershed demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// End the demo after this time and check every client's view. Default: until Ctrl-C
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub run_for: Option<Duration>,
    /// Pods at the start
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub pods: usize,
    /// Nodes that run the pods
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub nodes: usize,
    /// Watching clients
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub clients: usize,
    /// Changes per second
    #[arg(long, value_name = "EVENTS", default_value_t = 50.0)]
    pub rate: f64,
    /// Seed for random choices
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Run without the proxy, to compare upstream's load
    #[arg(long)]
    pub direct: bool,
    /// Time that the clients have to see the last change.
    #[arg(skip = CONVERGENCE)]
    pub patience: Duration,
}

/// The upstream that the proxy is put in front of.
#[derive(Clone, Debug)]
pub struct DemoUpstream {
    /// Its URL: `https://…`.
    pub url: String,
    /// CA of its certificate, in PEM.
    pub ca_pem: String,
    /// Token of a caller who may do everything.
    pub token: String,
    /// The same as a kubeconfig.
    pub kubeconfig_yaml: String,
}

/// The running proxy.
pub struct DemoProxy {
    /// Address that clients connect to.
    pub address: SocketAddr,
    /// CA of its certificate, in PEM.
    pub ca_pem: String,
    /// Address of its status page.
    pub admin_address: Option<SocketAddr>,
    /// Stops the proxy.
    pub shutdown: BoxFuture<'static, ()>,
}

/// Starts the proxy in front of an upstream.
pub type StartProxy =
    Box<dyn FnOnce(DemoUpstream) -> BoxFuture<'static, anyhow::Result<DemoProxy>> + Send>;
