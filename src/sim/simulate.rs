//! `watershed simulate`: the server alone, until Ctrl-C.
#![expect(clippy::print_stdout, reason = "a command line program talks on its standard output")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;

use super::churn::{Churn, Mix};
use super::options::{Options, Population};
use super::server::Server;

/// Flags of `watershed simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6444")]
    pub listen: SocketAddr,
    /// Pods at the start; other objects are made in proportion
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub pods: usize,
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub nodes: usize,
    /// Changes per second
    #[arg(long, value_name = "EVENTS", default_value_t = 50.0)]
    pub rate: f64,
    /// Decides every random choice
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Writes a kubeconfig for the admin to this file
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
}

/// Runs the server until Ctrl-C.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let population = Population::cluster(args.pods, args.nodes);
    let options = Options { listen: args.listen, seed: args.seed, population, ..Options::default() };
    let server = Server::start(options).await?;
    println!("simulated API server at {}", server.url());
    println!(
        "  {} pods on {} nodes, {} changes per second, seed {}",
        args.pods, args.nodes, args.rate, args.seed
    );
    println!(
        "  tokens: {} (may everything), {} (may read some types)",
        server.admin_token(),
        server.viewer_token()
    );
    println!("  counters at {0}/metrics, faults at {0}/sim/faults", server.url());
    if let Some(path) = &args.kubeconfig_out {
        tokio::fs::write(path, server.kubeconfig_yaml())
            .await
            .with_context(|| format!("the kubeconfig can't be written to {}", path.display()))?;
        println!("  kubectl --kubeconfig {} get pods --all-namespaces", path.display());
    }
    let churn = Churn::start(Arc::clone(server.state()), args.rate, args.seed, Mix::default());
    tokio::signal::ctrl_c().await?;
    let changes = churn.stop().await;
    let counts = server.stats();
    println!(
        "stopped after {changes} changes, {} lists, {} watches and {} watch events",
        counts.requests_of("LIST"),
        counts.requests_of("WATCH"),
        counts.total_events()
    );
    server.shutdown().await;
    Ok(())
}
