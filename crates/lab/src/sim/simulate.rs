//! `watershed simulate`: the server alone, until it is interrupted.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::churn::{Churn, ChurnMix};
use super::options::{Options, Population};
use super::server::SimulatedServer;
use crate::number::up_to;
use crate::output::print_line;
use crate::rate::Rate;

/// Bounds of memory, and of the time that the start takes.
const MAX_OBJECTS: u64 = 1_000_000;
const MAX_NODES: u64 = 100_000;
const MAX_NAMESPACES: u64 = 10_000;
const MAX_HISTORY: u64 = 10_000_000;

/// Flags of `watershed simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6444")]
    pub listen: SocketAddr,
    /// Pods at the start; other objects are made in proportion
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = up_to(MAX_OBJECTS))]
    pub pods: usize,
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = up_to(MAX_NODES))]
    pub nodes: usize,
    /// Namespaces. Default, here and for the counts below: in proportion to the pods
    #[arg(long, value_name = "N", value_parser = up_to(MAX_NAMESPACES))]
    pub namespaces: Option<usize>,
    /// ConfigMaps
    #[arg(long, value_name = "N", value_parser = up_to(MAX_OBJECTS))]
    pub configmaps: Option<usize>,
    /// Bytes of data in each ConfigMap; 0 for a few hundred
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=1_000_000)
    )]
    pub configmap_bytes: u32,
    /// Secrets
    #[arg(long, value_name = "N", value_parser = up_to(MAX_OBJECTS))]
    pub secrets: Option<usize>,
    /// Services
    #[arg(long, value_name = "N", value_parser = up_to(MAX_OBJECTS))]
    pub services: Option<usize>,
    /// Deployments
    #[arg(long, value_name = "N", value_parser = up_to(MAX_OBJECTS))]
    pub deployments: Option<usize>,
    /// Objects of a custom type
    #[arg(long, value_name = "N", value_parser = up_to(MAX_OBJECTS))]
    pub widgets: Option<usize>,
    /// Rate of changes, such as 50/s or 30/m
    #[arg(long, value_name = "RATE", default_value = "50/s")]
    pub rate: Rate,
    /// Weights of the changes, relative to each other:
    /// pods=70,configmaps=5,leases=15,deployments=5,widgets=5
    #[arg(long, value_name = "KIND=WEIGHT,…")]
    pub churn: Option<ChurnMix>,
    /// Events kept for each type: a watch from before them is too old, as after a compaction
    #[arg(long, value_name = "EVENTS", default_value_t = 4096, value_parser = up_to(MAX_HISTORY))]
    pub history: usize,
    /// Seed for random choices
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write the admin's kubeconfig to this file
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
}

impl SimulateArgs {
    fn population(&self) -> Population {
        let usual = Population::cluster(self.pods, self.nodes);
        Population {
            namespaces: self.namespaces.unwrap_or(usual.namespaces),
            configmaps: self.configmaps.unwrap_or(usual.configmaps),
            configmap_bytes: self.configmap_bytes as usize,
            secrets: self.secrets.unwrap_or(usual.secrets),
            services: self.services.unwrap_or(usual.services),
            deployments: self.deployments.unwrap_or(usual.deployments),
            widgets: self.widgets.unwrap_or(usual.widgets),
            ..usual
        }
    }
}

/// Runs the server until `interrupt` is cancelled.
///
/// # Errors
///
/// The server cannot start, or standard output cannot be written. The server runs without it.
pub fn run(
    args: SimulateArgs,
    interrupt: CancellationToken,
) -> BoxFuture<'static, anyhow::Result<()>> {
    simulate(args, interrupt).boxed()
}

async fn simulate(args: SimulateArgs, interrupt: CancellationToken) -> anyhow::Result<()> {
    let population = args.population();
    let options = Options {
        listen: args.listen,
        seed: args.seed,
        population,
        history: args.history.max(1),
        ..Options::default()
    };
    let server = SimulatedServer::start(options).await?;
    if let Some(path) = &args.kubeconfig_out {
        tokio::fs::write(path, server.kubeconfig_yaml())
            .await
            .with_context(|| format!("the kubeconfig can't be written to {}", path.display()))?;
    }
    let introduced = introduce(&args, &server);
    let mix = ChurnMix {
        configmap_bytes: population.configmap_bytes,
        ..args.churn.unwrap_or_default()
    };
    let rate = args.rate.per_second();
    let churn = Churn::start(Arc::clone(server.state()), rate, args.seed, mix);
    interrupt.cancelled().await;
    let changes = churn.stop().await;
    let counts = server.stats();
    let summed_up = print_line(format_args!(
        "stopped after {changes} changes, {} lists, {} watches and {} watch events",
        counts.requests_of("LIST"),
        counts.requests_of("WATCH"),
        counts.total_events()
    ));
    server.shutdown().await;
    introduced.and(summed_up)
}

/// Prints the server's address, tokens and what else a user needs.
fn introduce(args: &SimulateArgs, server: &SimulatedServer) -> anyhow::Result<()> {
    let url = server.url();
    print_line(format_args!("simulated API server at {url}"))?;
    print_line(format_args!(
        "  {} pods on {} nodes, {} changes per second, seed {}",
        args.pods,
        args.nodes,
        args.rate.per_second(),
        args.seed
    ))?;
    print_line(format_args!(
        "  tokens: {} (may everything), {} (may read some types)",
        server.admin_token(),
        server.viewer_token()
    ))?;
    print_line(format_args!(
        "  counters at {url}/metrics, faults at {url}/sim/faults"
    ))?;
    let Some(path) = &args.kubeconfig_out else {
        return Ok(());
    };
    print_line(format_args!(
        "  kubectl --kubeconfig {} get pods --all-namespaces",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use watershed_protocol::GroupVersionResource;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SimulateArgs,
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for wrong in [
            "--pods=1000000000000",
            "--nodes=1000000",
            "--namespaces=1000000",
            "--secrets=-1",
            "--history=1000000000000",
            "--rate=NaN",
            "--rate=inf",
            "--rate=-5",
        ] {
            assert!(
                Line::try_parse_from(["simulate", wrong]).is_err(),
                "{wrong}"
            );
        }
    }

    #[tokio::test]
    async fn flags_decide_the_size_of_the_cluster() {
        watershed_connect::install_crypto();
        let line = "simulate --listen 127.0.0.1:0 --pods 20 --nodes 2 --configmaps 3 \
                    --configmap-bytes 5000 --secrets 0 --churn configmaps=1";
        let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
        let population = args.population();
        assert_eq!(
            (population.pods, population.nodes, population.secrets),
            (20, 2, 0)
        );
        assert_eq!(population.namespaces, Population::cluster(20, 2).namespaces);
        let server = SimulatedServer::start(Options {
            listen: args.listen,
            population,
            ..Options::default()
        })
        .await
        .unwrap();
        let configmaps =
            server
                .state()
                .snapshot(&GroupVersionResource::new("", "v1", "configmaps"));
        assert_eq!(configmaps.len(), 3);
        assert!(
            configmaps
                .values()
                .all(|(_, bytes)| (5_000..7_000).contains(&bytes.len()))
        );
        server.shutdown().await;
    }
}
