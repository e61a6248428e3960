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
use tokio_util::sync::CancellationToken;

use crate::sim::churn::{Churn, ChurnMix};
use crate::sim::{Options, Population, SimulatedServer};
use fleet::Fleet;
pub use options::{DemoArgs, DemoProxy, DemoUpstream, StartProxy};
use picture::{Moment, Picture};

/// Runs the demo until its time is over or `interrupt` is cancelled. Returns `true` if every client's
/// view was equal to upstream's state at the end.
pub fn run(
    args: DemoArgs,
    start_proxy: StartProxy,
    interrupt: CancellationToken,
) -> BoxFuture<'static, anyhow::Result<bool>> {
    run_demo(args, start_proxy, interrupt).boxed()
}

async fn run_demo(
    args: DemoArgs,
    start_proxy: StartProxy,
    interrupt: CancellationToken,
) -> anyhow::Result<bool> {
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
    let opened = picture::opening(&args, &server.url(), &front);
    let token = server.admin_token();
    let fleet = opened.and_then(|()| Fleet::start(&args, population.namespaces, &front, token));
    let equal = match fleet {
        Ok(fleet) => show(&args, &server, fleet, &interrupt).await,
        Err(error) => Err(error),
    };
    front.shutdown.await;
    server.shutdown().await;
    equal
}

/// Shows what the clients get. Returns `true` if all views are equal at the end.
async fn show(
    args: &DemoArgs,
    server: &SimulatedServer,
    fleet: Fleet,
    interrupt: &CancellationToken,
) -> anyhow::Result<bool> {
    let mut picture = Picture::new();
    let started = Instant::now();
    let churn = Churn::start(
        Arc::clone(server.state()),
        args.rate.per_second(),
        args.seed,
        ChurnMix::default(),
    );
    let live = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.tick().await;
        loop {
            second.tick().await;
            if let Err(error) = picture.live(&moment(started, &fleet, server)) {
                break error;
            }
        }
    };
    tokio::select! {
        () = until_end(args.run_for, interrupt) => {}
        error = live => return Err(error),
    }

    let changes = churn.stop().await;
    let state = server.state();
    picture::waiting(state.version())?;
    let differences = converge(&fleet, state, args.patience).await;
    picture::summary(&moment(started, &fleet, server), changes, &differences)?;
    fleet.stop().await;
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

/// Waits until the given time is over or the user interrupts.
async fn until_end(run_for: Option<Duration>, interrupt: &CancellationToken) {
    let Some(time) = run_for else {
        return interrupt.cancelled().await;
    };
    // An error says that the time is over.
    let _ = tokio::time::timeout(time, interrupt.cancelled()).await;
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

    fn args(run_for: Duration) -> DemoArgs {
        DemoArgs {
            run_for: Some(run_for),
            pods: 100,
            nodes: 5,
            clients: 30,
            rate: "100/s".parse().unwrap(),
            seed: 3,
            direct: true,
            patience: Duration::from_mins(3),
        }
    }

    fn no_proxy() -> StartProxy {
        Box::new(|_| async { anyhow::bail!("not asked for") }.boxed())
    }

    #[tokio::test]
    async fn views_are_equal_without_a_proxy() {
        let args = args(Duration::from_secs(2));
        assert!(
            run(args, no_proxy(), CancellationToken::new())
                .await
                .unwrap()
        );
    }

    #[tokio::test]
    async fn an_interrupted_demo_ends_before_its_time_and_compares() {
        let interrupt = CancellationToken::new();
        interrupt.cancel();
        let args = args(Duration::from_hours(1));
        assert!(run(args, no_proxy(), interrupt).await.unwrap());
    }
}
