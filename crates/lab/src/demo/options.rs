//! Flags of a demo, and the proxy that it runs against.
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use watershed_figures::parse_duration;

use crate::number::up_to;
use crate::rate::Rate;

/// Time that the clients have to see the last change, unless the caller says otherwise.
const CONVERGENCE: Duration = Duration::from_secs(20);

/// Bounds of memory and of open files: the demo is one process.
const MAX_PODS: u64 = 100_000;
const MAX_NODES: u64 = 10_000;
const MAX_CLIENTS: u64 = 10_000;

/// Flags of `watershed demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// End the demo after this time and check every client's view. Default: until Ctrl-C
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub run_for: Option<Duration>,
    /// Pods at the start
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = up_to(MAX_PODS))]
    pub pods: usize,
    /// Nodes that run the pods
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = up_to(MAX_NODES))]
    pub nodes: usize,
    /// Watching clients
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = up_to(MAX_CLIENTS))]
    pub clients: usize,
    /// Rate of changes, such as 50/s or 30/m
    #[arg(long, value_name = "RATE", default_value = "50/s")]
    pub rate: Rate,
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DemoArgs,
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let line = Line::try_parse_from(["demo", "--clients=10000", "--rate=30/m"]).unwrap();
        assert_eq!(
            (line.args.clients, line.args.rate.per_second()),
            (10_000, 0.5)
        );
        for wrong in [
            "--clients=18446744073709551615",
            "--pods=100001",
            "--nodes=1000000",
            "--rate=NaN",
            "--rate=inf",
            "--rate=-5",
        ] {
            assert!(Line::try_parse_from(["demo", wrong]).is_err(), "{wrong}");
        }
    }
}
