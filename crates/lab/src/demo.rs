//! `watershed demo`: a simulated API server, the real proxy and many watching clients in one
//! process, with a live picture of what the proxy saves and, at the end, proof that every client
//! saw the truth.
//!
//! The demo knows neither the proxy's modules nor its configuration. The caller of [`run`] starts
//! the proxy.
mod check;
mod client;
mod connect;
mod fleet;
mod options;
mod picture;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::sim::churn::{Churn, ChurnMix};
use crate::sim::{Options, Population, SimulatedServer};
use fleet::Fleet;
pub use options::{DemoArgs, DemoProxy, DemoUpstream, StartProxy};
use picture::{Moment, Picture};

/// Runs the demo. Returns `true` if every client's view was equal to upstream's state at the end.
pub fn run(args: DemoArgs, start_proxy: StartProxy) -> BoxFuture<'static, anyhow::Result<bool>> {
    show(args, start_proxy).boxed()
}

async fn show(args: DemoArgs, start_proxy: StartProxy) -> anyhow::Result<bool> {
    let population = Population {
        configmaps: 0,
        secrets: 0,
        ..Population::cluster(args.pods, args.nodes)
    };
    let server = SimulatedServer::start(Options {
        seed: args.seed,
        population,
        ..Options::default()
    })
    .await?;
    let front = if args.direct {
        direct(&server)
    } else {
        start_proxy(upstream(&server)).await?
    };
    let mut picture = Picture::new();
    picture::opening(&args, &server.url(), &front);

    let started = Instant::now();
    let fleet = Fleet::start(&args, population.namespaces, &front, server.admin_token())?;
    let churn = Churn::start(
        Arc::clone(server.state()),
        args.rate,
        args.seed,
        ChurnMix::default(),
    );
    let live = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.tick().await;
        loop {
            second.tick().await;
            picture.live(&moment(started, &fleet, &server));
        }
    };
    tokio::select! {
        () = until_end(args.run_for) => {}
        () = live => {}
    }

    let changes = churn.stop().await;
    let state = server.state();
    picture::waiting(state.version());
    let differences = converge(&fleet, state, args.patience).await;
    picture::summary(&moment(started, &fleet, &server), changes, &differences);
    fleet.stop().await;
    front.shutdown.await;
    server.shutdown().await;
    Ok(differences.is_empty())
}

fn moment(started: Instant, fleet: &Fleet, server: &SimulatedServer) -> Moment {
    Moment {
        elapsed: started.elapsed(),
        clients: fleet.totals(),
        upstream: server.stats(),
        version: server.state().version(),
    }
}

/// Waits until the given time is over or the user presses Ctrl-C.
async fn until_end(run_for: Option<Duration>) {
    match run_for {
        Some(time) => tokio::time::sleep(time).await,
        // An error means that no signal can be waited for. Then only the end of the process ends
        // the demo.
        None if tokio::signal::ctrl_c().await.is_err() => std::future::pending().await,
        None => {}
    }
}

/// Compares until every view is equal or time is up. Returns the remaining differences.
async fn converge(
    fleet: &Fleet,
    state: &crate::sim::ClusterState,
    patience: Duration,
) -> Vec<check::Difference> {
    let deadline = Instant::now() + patience;
    let truth = check::Truth::of(state);
    loop {
        let differences = truth.compare(fleet.views());
        if differences.is_empty() || Instant::now() >= deadline {
            return differences;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn upstream(server: &SimulatedServer) -> DemoUpstream {
    DemoUpstream {
        url: server.url(),
        ca_pem: server.ca_pem().to_owned(),
        token: server.admin_token().to_owned(),
        kubeconfig_yaml: server.kubeconfig_yaml(),
    }
}

fn direct(server: &SimulatedServer) -> DemoProxy {
    DemoProxy {
        address: server.address(),
        ca_pem: server.ca_pem().to_owned(),
        admin_address: None,
        shutdown: Box::pin(std::future::ready(())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn views_are_equal_without_a_proxy() {
        let args = DemoArgs {
            run_for: Some(Duration::from_secs(2)),
            pods: 100,
            nodes: 5,
            clients: 30,
            rate: 100.0,
            seed: 3,
            direct: true,
            patience: Duration::from_mins(3),
        };
        let start = |_| async { anyhow::bail!("not asked for") }.boxed();
        assert!(run(args, Box::new(start)).await.unwrap());
    }
}
