//! Allocations of the proxy for an event and for a read: their number and their bytes.
//!
//! The proxy runs with its defaults in a process of its own, in front of the simulated API server,
//! and every allocation there is counted, those of HTTP and TLS included. Figures hardly depend on
//! how busy the machine is. `cargo bench --bench allocations -- --help`; docs/benchmarks.md says
//! what they mean.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an instrument for developers: it prints"
)]
#[path = "../serving/children.rs"]
#[expect(
    dead_code,
    reason = "the other benchmark's, of which this one needs less"
)]
mod children;
#[path = "../serving/client.rs"]
#[expect(dead_code, reason = "the same")]
mod client;
mod counted;
#[path = "../serving/form.rs"]
#[expect(dead_code, reason = "the same")]
mod form;
mod limits;
#[path = "../serving/stamp.rs"]
#[expect(dead_code, reason = "the same")]
mod stamp;
mod work;

use std::alloc::System;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, Subcommand};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use watershed_lab::sim::{Options, Population, SimulatedServer};

use counted::{Counted, Counts, PLANTED, PLANTED_BYTES};
use limits::Limits;
use work::Row;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Counts what the proxy allocates.
#[derive(Debug, Parser)]
#[command(name = "allocations", args_conflicts_with_subcommands = true)]
struct Args {
    /// Pods there are
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pods: usize,
    /// Watchers of all pods, where they are many
    #[arg(long, default_value_t = 500, value_name = "N")]
    watchers: usize,
    /// Events for which is counted
    #[arg(long, default_value_t = 500, value_name = "N")]
    events: usize,
    /// Reads for which is counted; a fiftieth of it of lists of everything
    #[arg(long, default_value_t = 1000, value_name = "N")]
    reads: usize,
    /// Fail if a figure exceeds its limit in this file
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Check the instrument itself, and count nothing else
    #[arg(long)]
    check: bool,
    /// Set by cargo bench. Without it (cargo test --benches) the instrument is only checked
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Roles of this program as a child of itself.
#[derive(Debug, Subcommand)]
enum Part {
    /// Be the proxy whose allocations are counted
    #[command(hide = true)]
    Proxy { folder: PathBuf },
    /// Run a program that ends with its parent
    #[command(hide = true)]
    Exec {
        #[arg(long)]
        parent: i32,
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match &args.part {
        Some(Part::Proxy { folder }) => return counted::run(folder),
        Some(Part::Exec {
            parent,
            program,
            arguments,
        }) => {
            return children::become_program(*parent, program, arguments);
        }
        None => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // On this thread, which starts the child: it ends with it.
    runtime.block_on(run(&args))
}

async fn run(args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let measure = args.bench && !args.check;
    let population = Population {
        namespaces: 2,
        nodes: 10,
        ..Population::default()
    };
    let upstream = SimulatedServer::start(Options {
        population,
        ..Options::default()
    })
    .await?;
    let pods = if measure { args.pods } else { 10 };
    work::create(&upstream, pods)?;
    let proxy = Counted::start(folder.path(), &upstream)?;
    check(&proxy).await?;
    if measure {
        let rows = work::all(args, &upstream, &proxy).await?;
        println!(
            "\n{pods} pods of {} bytes; for one of each:\n",
            rows.object_bytes
        );
        println!(
            "| {:<46} | {:>11} | {:>9} |",
            "work", "allocations", "bytes"
        );
        println!("|{:-<48}|{:->12}:|{:->10}:|", "", "", "");
        for Row {
            name,
            allocations,
            bytes,
        } in &rows.rows
        {
            println!("| {name:<46} | {allocations:>11.2} | {bytes:>9.0} |");
        }
        if let Some(file) = &args.limits {
            Limits::read(file)?.check(&rows.rows)?;
        }
    }
    upstream.shutdown().await;
    Ok(())
}

/// Fails when planted allocations are not counted, or others where next to nothing is done.
async fn check(proxy: &Counted) -> anyhow::Result<()> {
    // Work of the start may still be under way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = proxy.counts()?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = proxy.counts()? - before;
    let before = proxy.counts()?;
    let planted = proxy.plant()? - before;
    let Counts { allocations, bytes } = planted;
    println!(
        "{PLANTED} planted allocations of {PLANTED_BYTES} bytes are read as {allocations} and \
         {bytes} bytes in all, half a second of nothing as {}",
        idle.allocations
    );
    ensure!(
        allocations.abs_diff(PLANTED) < PLANTED / 10,
        "planted allocations are not counted"
    );
    ensure!(
        bytes.abs_diff(PLANTED * PLANTED_BYTES as u64) < 10_000,
        "their bytes are not counted"
    );
    ensure!(
        idle.allocations < PLANTED,
        "allocations are counted where nothing is done"
    );
    Ok(())
}
