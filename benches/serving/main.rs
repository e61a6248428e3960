//! The cost of serving: CPU and memory of the proxy, of a server that does nothing but send, and of
//! kube-apiserver.
//!
//! `cargo bench --bench serving -- --help`; docs/benchmarks.md says what the figures mean.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_sign_loss,
    clippy::struct_excessive_bools,
    reason = "an instrument for developers: it prints, and its flags are many"
)]
mod abuse;
mod check;
mod children;
mod client;
mod consistent;
mod encodings;
mod fan;
mod form;
mod forward;
mod hostile;
mod limit;
mod memory;
mod paced;
mod planted;
mod profile;
mod read_on;
mod reads;
mod relay;
mod servers;
mod stamp;
mod start;
mod table;
mod upstream;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use watershed_lab::process::Machine;

/// The allocator that the proxy has, so that memory is compared alike.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures the CPU and the memory that serving costs.
#[derive(Debug, Parser)]
#[command(name = "serving", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Put the proxy in front of a real kube-apiserver, and measure that too (make real builds it)
    #[arg(long)]
    kube_apiserver: bool,
    /// Pods there are
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = at_least_one)]
    pods: usize,
    /// Nodes they are on, evenly
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = at_least_one)]
    nodes: usize,
    /// Size of a pod as JSON
    #[arg(long, default_value_t = 4400, value_name = "BYTES")]
    object_bytes: usize,
    /// Watchers of all pods
    #[arg(long, default_value_t = 200, value_name = "N")]
    watchers: usize,
    /// Events a second, where they are paced
    #[arg(long, default_value_t = 50.0, value_name = "EVENTS")]
    rate: f64,
    /// Watches whose memory is measured, for each way to connect them
    #[arg(long, default_value_t = 500, value_name = "N")]
    idle_watches: usize,
    /// Connections that read at a time, except for the list of everything, which one reads
    #[arg(long, default_value_t = 4, value_name = "N")]
    clients: usize,
    /// Rounds of each work on each server; the median counts
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Length of a round
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    /// Abusers, as a share of 5,000 idle connections, 500 watchers and 1,000 slow ones
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    abusers: f64,
    /// Consistent reads at a time, a row for each
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,20,200",
        value_name = "N,…"
    )]
    #[arg(value_parser = at_least_one)]
    readers: Vec<usize>,
    /// Requests a second that are forwarded, where the hop through the proxy is timed
    #[arg(long, default_value_t = 2000.0, value_name = "REQUESTS")]
    forward_rate: f64,
    /// Pods there are where a start is measured, and one node's list among more; no fewer than
    /// --pods
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = at_least_one)]
    start_pods: usize,
    /// Measure another proxy, too, which lists and watches JSON at upstream instead of deriving it
    /// from protobuf
    #[arg(long)]
    own_json: bool,
    /// Clients speak HTTP/1.1 instead of HTTP/2
    #[arg(long)]
    http1: bool,
    /// Only work whose name contains this (memory, LIST, WatchList, GET, gzip, forwarded,
    /// consistent, event, fan-out, start); abuse and encodings are done only when they are asked for
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Write all rounds to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program to measure, instead of the one built with this
    #[arg(
        long,
        default_value = env!("CARGO_BIN_EXE_watershed"),
        hide_default_value = true,
        value_name = "FILE"
    )]
    watershed: PathBuf,
    /// The harness that runs kube-apiserver
    #[arg(long, default_value = "tests/real/.bin/cluster", value_name = "FILE")]
    cluster: PathBuf,
    /// Check the instrument itself, and measure nothing
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
    /// Be the limit server
    #[command(hide = true)]
    Limit {
        folder: PathBuf,
        /// The API server to ask what is not about pods
        #[arg(long)]
        relay: Option<SocketAddr>,
    },
    /// Use CPU
    #[command(hide = true)]
    Burn { milliseconds: u64 },
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

impl Args {
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("not a number above zero".to_owned()),
    }
}

fn main() -> anyhow::Result<()> {
    let mut args = Args::parse();
    // Pods only come.
    args.start_pods = args.start_pods.max(args.pods);
    match &args.part {
        Some(Part::Limit { folder, relay }) => return limit::run(folder, *relay),
        Some(Part::Burn { milliseconds }) => return check::burn(*milliseconds),
        Some(Part::Exec {
            parent,
            program,
            arguments,
        }) => {
            return children::become_program(*parent, program, arguments);
        }
        None => {}
    }
    check::run()?;
    // Thousands of connections are thousands of files, here and in the children.
    let files = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            maximum: files.maximum,
        },
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // On this thread, which starts the children: they end with it.
    runtime.block_on(async {
        planted::run().await?;
        if args.check || !args.bench {
            return Ok(());
        }
        run(&args).await
    })
}

async fn run(args: &Args) -> anyhow::Result<()> {
    let started = std::time::Instant::now();
    eprintln!("starting servers, making {} pods …", args.pods);
    let servers = servers::start(args).await?;
    let mut table = table::Table::default();
    // What was measured before a failure is shown, too.
    let outcome = work::all(args, &servers, &mut table).await;
    let kinds: Vec<_> = servers.measured.iter().map(|server| server.kind).collect();
    let flags: Vec<_> = std::env::args()
        .skip(1)
        .filter(|flag| flag != "--bench")
        .collect();
    let setting = table::Setting {
        command: format!("cargo bench --bench serving -- {}", flags.join(" "))
            .trim_end_matches(" --")
            .trim_end()
            .to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Machine::this(),
    };
    let Machine {
        cores,
        processor,
        memory_gib,
        kernel,
        ..
    } = &setting.machine;
    println!("\n{}", setting.command);
    println!(
        "watershed {}; {cores} cores ({processor}), {memory_gib} GiB, Linux {kernel}",
        setting.version
    );
    println!(
        "{} rounds of {} s each, medians; {} over TLS, clients on the same machine\n",
        args.rounds,
        args.seconds,
        if args.http1 { "HTTP/1.1" } else { "HTTP/2" }
    );
    if let Err(error) = &outcome {
        table
            .remarks
            .push(format!("the run ended early: {error:#}"));
    }
    println!("{}", table.text(&kinds));
    for remark in &table.remarks {
        println!("- {remark}");
    }
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&table.json(&setting))?)?;
    }
    outcome?;
    anyhow::ensure!(!table.is_empty(), "no work is called that (see --only)");
    eprintln!("took {:.0?}", started.elapsed());
    Ok(())
}
