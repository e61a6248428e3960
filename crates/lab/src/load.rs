//! `watershed load`: clients that put load on any server of the Kubernetes API and measure what
//! they get. Several servers do the same work in turn and are compared.
//!
//! It knows kubeconfigs and wire formats, but not the proxy, which is one server among others.
mod connect;
mod counted;
mod grace;
mod group;
mod inflate;
mod list_version;
mod plan;
mod progress;
mod request;
mod result;
mod round;
mod served;
mod stamp;
mod table;
mod tally;
#[cfg(test)]
pub(crate) mod test_support;
mod trouble;
mod watch;
mod write;

use std::sync::Arc;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::process::Machine;
use connect::Connections;
use progress::Bars;
use round::ServerTurn;
use watershed_connect::{ApiServer, ConnectOptions};
use write::LoadWriter;

pub use crate::rate::Rate;
pub use counted::NumberedText;
pub use group::{AnswerEncoding, ClientGroup, FirstState, KubectlResource};
pub use plan::{KubeconfigContext, LoadPlan, LoadTarget, LoadWrites, mix};
pub use result::{
    Distribution, LoadResult, LoadSetting, OWN_PROCESS, ProcessConsumption, RequestStats,
    RoundResult, Sample, ServerResult,
};
pub use table::{comparison, table, verdict};

/// Runs a plan. `interrupt` ends it early, with the results so far. The objects that were written
/// are deleted in any case. `bars` shows the progress on a terminal.
pub fn run<'a>(
    plan: &'a LoadPlan,
    interrupt: &'a CancellationToken,
    bars: bool,
) -> BoxFuture<'a, anyhow::Result<LoadResult>> {
    run_plan(plan, interrupt, bars).boxed()
}

async fn run_plan(
    plan: &LoadPlan,
    interrupt: &CancellationToken,
    bars: bool,
) -> anyhow::Result<LoadResult> {
    plan.check()?;
    let run = fastrand::u64(..);
    let mut measured = LoadResult {
        setting: setting(plan),
        servers: Vec::new(),
        interrupted: false,
        errors: Vec::new(),
    };
    let Some(loaded) = interrupt.run_until_cancelled(load_all(plan)).await else {
        measured.interrupted = true;
        return Ok(measured);
    };
    let (mut servers, writing) = loaded?;
    let writer = if plan.writes.rate.is_never() {
        None
    } else {
        let writer = LoadWriter::new(writing.clone(), &plan.writes, run)?;
        Some(Arc::new(writer))
    };
    let done = rounds(
        plan,
        run,
        &mut servers,
        &writing,
        writer.as_ref(),
        interrupt,
        bars,
    )
    .await;
    if let Some(writer) = writer
        && !writer.clean_up().await
    {
        let namespace = &writer.ledger().namespace;
        measured.errors.push(format!(
            "not all that was written could be deleted: look into namespace {namespace}"
        ));
    }
    match done {
        Err(error) if servers.iter().all(|(_, server)| server.rounds.is_empty()) => {
            return Err(match measured.errors.pop() {
                Some(left) => error.context(left),
                None => error,
            });
        }
        Err(error) => measured.errors.push(format!("{error:#}")),
        Ok(()) => {}
    }
    measured.servers = servers.into_iter().map(|(_, server)| server).collect();
    measured.interrupted = interrupt.is_cancelled();
    Ok(measured)
}

/// Loads the servers, checks that they serve what the plan reads, and loads the writer's server.
async fn load_all(plan: &LoadPlan) -> anyhow::Result<(Vec<(ApiServer, ServerResult)>, ApiServer)> {
    let servers = load_servers(&plan.targets).await?;
    for (server, result) in &servers {
        let checked = served::check(server, &plan.groups).await;
        checked.with_context(|| format!("server {}", result.name))?;
    }
    let writing = load(plan.writer()).await.context("the writer")?;
    Ok((servers, writing))
}

async fn load_servers(targets: &[LoadTarget]) -> anyhow::Result<Vec<(ApiServer, ServerResult)>> {
    let mut servers = Vec::new();
    for target in targets {
        let upstream = load(&target.access)
            .await
            .with_context(|| format!("server {}", target.name))?;
        let addresses = upstream
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        let result = ServerResult {
            name: target.name.clone(),
            addresses,
            rounds: Vec::new(),
        };
        servers.push((upstream, result));
    }
    Ok(servers)
}

fn setting(plan: &LoadPlan) -> LoadSetting {
    LoadSetting {
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::this(),
        clients: plan.groups.iter().map(ClientGroup::describe).collect(),
        writes: plan.writes.clone(),
        duration_seconds: plan.duration.as_secs_f64(),
        rounds: plan.rounds,
    }
}

async fn rounds(
    plan: &LoadPlan,
    run: u64,
    servers: &mut [(ApiServer, ServerResult)],
    writing: &ApiServer,
    writer: Option<&Arc<LoadWriter>>,
    interrupt: &CancellationToken,
    bars: bool,
) -> anyhow::Result<()> {
    if let Some(writer) = writer {
        writer.make(interrupt).await?;
    }
    let names = names_to_get(plan, writing);
    let Some(names) = interrupt.run_until_cancelled(names).await else {
        return Ok(());
    };
    let names = names?;
    let titles: Vec<&str> = plan.targets.iter().map(|target| &*target.name).collect();
    let bars = Bars::new(&titles, plan.duration * u32::try_from(plan.rounds)?, bars);
    let order: Vec<usize> = (0..servers.len()).collect();
    for n in 0..plan.rounds {
        // Every second round reverses the order, so that no server always comes first.
        let turns: Vec<usize> = if n % 2 == 0 {
            order.clone()
        } else {
            order.iter().rev().copied().collect()
        };
        for server in turns {
            let (upstream, results) = &mut servers[server];
            let progress = bars.round(server, n, plan.rounds, plan.duration, plan.watches());
            let turn = ServerTurn {
                plan,
                upstream,
                writer,
                names: &names,
                run,
                progress: &progress,
                interrupt,
            };
            tracing::info!(server = results.name, round = n + 1, "round begins");
            let round = turn
                .run()
                .await
                .with_context(|| format!("server {}", results.name))?;
            progress.done();
            let Some(round) = round else { return Ok(()) };
            tracing::info!(
                server = results.name,
                round = n + 1,
                events = round.events,
                lost = round.events_lost,
                errors = round.errors.values().sum::<u64>(),
                "round measured"
            );
            results.rounds.push(round);
            if interrupt.is_cancelled() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the paths that gets ask for, by group.
async fn names_to_get(
    plan: &LoadPlan,
    writing: &ApiServer,
) -> anyhow::Result<Vec<Arc<Vec<String>>>> {
    let connections = Connections::new(writing.clone(), false, 1);
    let mut names = Vec::new();
    for group in &plan.groups {
        names.push(Arc::new(if group.gets.is_never() {
            Vec::new()
        } else {
            request::names(&connections, group).await?
        }));
    }
    Ok(names)
}

async fn load(access: &KubeconfigContext) -> anyhow::Result<ApiServer> {
    let options = ConnectOptions {
        kubeconfig: access.kubeconfig.clone(),
        context: access.context.clone(),
        allow_insecure: true,
        ..ConnectOptions::default()
    };
    Ok(ApiServer::load(&options).await?)
}
