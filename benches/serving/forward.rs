//! The cost of a hop through the proxy where it forwards: time and CPU of small requests, and
//! throughput of large answers.
//!
//! The limit server is the upstream here, and the client also asks it directly. A slower upstream
//! would hide the cost of the hop. One more row measures the hop in front of a real API server.
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use http::HeaderMap;
use tokio::time::{Instant, sleep};

use crate::Args;
use crate::client::Endpoint;
use crate::limit::{LOG, LOG_BYTES, RATE};
use crate::paced::open_loop;
use crate::servers::{ALL_PODS, Kind, Running, Servers, set_answer};
use crate::table::Table;
use crate::work::{SETTLE, WARM_UP, expect_source};
use watershed_lab::process::cpu_time;

/// Connections of the small requests.
const CONNECTIONS: usize = 8;
/// Pairs of short rounds of the small requests, for each of `--rounds`.
const PAIRS: usize = 20;
/// Length of such a round, and the pause before it.
const PAIRED: Duration = Duration::from_millis(250);
const BETWEEN: Duration = Duration::from_millis(20);
/// Speed of the simulated link of a log, in Gbit/s.
const LINK: usize = 1;

/// Names of the rows.
pub(crate) struct Names {
    pub(crate) get: String,
    pub(crate) list: String,
    pub(crate) log: String,
    pub(crate) link: String,
    pub(crate) real: String,
}

pub(crate) fn names(args: &Args, servers: &Servers) -> Names {
    let megabytes = servers.list_bytes as f64 / 1e6;
    Names {
        get: format!("forwarded GET, {}/s", args.forward_rate),
        list: format!("forwarded LIST of everything ({megabytes:.1} MB)"),
        log: format!("forwarded log ({} MiB in pieces)", LOG_BYTES >> 20),
        link: format!("forwarded log, upstream at {LINK} Gbit/s"),
        real: format!("forwarded LIST of everything from kube-apiserver ({megabytes:.1} MB)"),
    }
}

/// A proxy that forwards, and its upstream.
struct Hop {
    kind: Kind,
    origin: Endpoint,
    origin_pid: u32,
    proxy: Running,
}

/// A large answer.
struct Large<'a> {
    name: &'a str,
    path: &'a str,
    /// Length to expect. Lists of kube-apiserver itself differ by a few bytes and have none.
    length: Option<usize>,
}

pub(crate) async fn all(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
    wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    let names = names(args, servers);
    let (origin, proxy) = servers.forwarding(args)?;
    let hop = Hop {
        kind: Kind::Limit,
        origin: origin.endpoint.clone(),
        origin_pid: origin.pid(),
        proxy,
    };
    let json = HeaderMap::from_iter([(http::header::CONTENT_TYPE, "application/json".parse()?)]);
    if wanted(&names.get) {
        set_answer(&hop.origin, &json, servers.object.clone(), None).await?;
        hop.small(args, servers, table, &names.get).await?;
    }
    if wanted(&names.list) {
        let list = servers.measured[0]
            .endpoint
            .connect(false)
            .await?
            .fetch(ALL_PODS)
            .await?;
        let answer = Large {
            name: &names.list,
            path: "/api/v1/pods",
            length: Some(list.len()),
        };
        set_answer(&hop.origin, &json, list, None).await?;
        hop.large(args, table, &answer).await?;
    }
    if wanted(&names.log) {
        let path = format!("{}{LOG}?follow=true", servers.pods.paths[0]);
        let answer = Large::log(&names.log, &path);
        hop.large(args, table, &answer).await?;
    }
    if wanted(&names.link) {
        let rate = LINK * 1_000_000_000 / 8;
        let path = format!("{}{LOG}?follow=true&{RATE}{rate}", servers.pods.paths[0]);
        let answer = Large::log(&names.link, &path);
        hop.large(args, table, &answer).await?;
    }
    Ok(())
}

/// Measures a forwarded list of the real API server, if there is one.
pub(crate) async fn from_kube_apiserver(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
    name: &str,
) -> anyhow::Result<()> {
    let real = servers
        .measured
        .iter()
        .find(|server| server.kind == Kind::KubeApiserver);
    let Some(server) = real else { return Ok(()) };
    let (kind, origin, origin_pid) = (server.kind, server.endpoint.clone(), server.pid);
    let hop = Hop {
        kind,
        origin,
        origin_pid,
        proxy: servers.forwarding_to_upstream(args)?,
    };
    hop.large(
        args,
        table,
        &Large {
            name,
            path: "/api/v1/pods",
            length: None,
        },
    )
    .await
}

/// Adds the times of two short rounds, through the proxy and directly: mean, median and 99th
/// percentile in milliseconds.
fn add_pair(table: &mut Table, name: &str, through: [f64; 3], direct: (Kind, [f64; 3])) {
    let (kind, direct) = direct;
    for (at, what) in ["mean", "p50", "p99"].into_iter().enumerate() {
        let row = format!("{name}: {what}");
        table.add(&row, "ms", true, Kind::Proxy, through[at]);
        table.add(&row, "ms", true, kind, direct[at]);
        let added = through[at] - direct[at];
        table.add(&format!("{row} added"), "ms", false, Kind::Proxy, added);
    }
}

impl<'a> Large<'a> {
    /// The log that the limit server sends.
    fn log(name: &'a str, path: &'a str) -> Self {
        let length = Some(LOG_BYTES);
        Self { name, path, length }
    }
}

impl Hop {
    /// Returns the way to the upstream first, then the way through the proxy.
    fn ways(&self) -> [(Kind, &Endpoint, u32); 2] {
        [
            (self.kind, &self.origin, self.origin_pid),
            (Kind::Proxy, &self.proxy.endpoint, self.proxy.pid()),
        ]
    }

    /// Returns the CPU time of client, upstream and proxy together. They share the machine: where
    /// all its cores are busy, this says how much of the direct throughput is left.
    fn cpu_of_all(&self, kind: Kind) -> anyhow::Result<Duration> {
        let ends = cpu_time(std::process::id())? + cpu_time(self.origin_pid)?;
        Ok(if kind == Kind::Proxy {
            ends + cpu_time(self.proxy.pid())?
        } else {
            ends
        })
    }

    /// Measures small requests in pairs of short rounds, one to upstream and one through the proxy,
    /// in alternating order. A neighbour on the machine disturbs some pairs; the median of the
    /// pairs' differences is of the others.
    async fn small(
        &self,
        args: &Args,
        servers: &Servers,
        table: &mut Table,
        name: &str,
    ) -> anyhow::Result<()> {
        eprintln!("{name} …");
        let path = |number: usize| servers.pods.paths[number % servers.pods.paths.len()].clone();
        let connection = self.proxy.endpoint.connect(false).await?;
        expect_source(&connection.get(&path(0)).await?, "forward")?;
        let mut ways = Vec::new();
        for (kind, endpoint, pid) in self.ways() {
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                connections.push(endpoint.connect(false).await?);
            }
            open_loop(&connections, args.forward_rate, WARM_UP, path).await?;
            ways.push((kind, pid, connections));
        }
        let mut late = 0;
        for _ in 0..args.rounds {
            // The kernel counts CPU in steps that are too coarse for one short round.
            let mut cpu = BTreeMap::new();
            for _ in 0..PAIRS {
                ways.reverse();
                let mut times = BTreeMap::new();
                for (kind, pid, connections) in &ways {
                    sleep(BETWEEN).await;
                    let before = cpu_time(*pid)?;
                    let waits = open_loop(connections, args.forward_rate, PAIRED, path).await?;
                    let (used, count) = cpu.entry(*kind).or_insert((Duration::ZERO, 0));
                    *used += cpu_time(*pid)?.saturating_sub(before);
                    *count += waits.len();
                    late += usize::from(!waits.kept_up);
                    let figures = [waits.mean(), waits.percentile(50), waits.percentile(99)];
                    times.insert(*kind, figures);
                }
                add_pair(
                    table,
                    name,
                    times[&Kind::Proxy],
                    (self.kind, times[&self.kind]),
                );
            }
            for (kind, (used, count)) in cpu {
                let each = used.as_secs_f64() * 1e6 / count as f64;
                let row = format!("{name}: CPU");
                table.add(&row, "µs CPU / request", true, kind, each);
            }
        }
        if late > 0 {
            let remark = format!("{name}: {late} short rounds did not keep up");
            table.remarks.push(remark);
        }
        Ok(())
    }

    /// Measures one client that reads the answer over and over.
    async fn large(
        &self,
        args: &Args,
        table: &mut Table,
        answer: &Large<'_>,
    ) -> anyhow::Result<()> {
        let Large { name, path, length } = answer;
        eprintln!("{name} …");
        let connection = self.proxy.endpoint.connect(false).await?;
        expect_source(&connection.get(path).await?, "forward")?;
        for round in 0..=args.rounds {
            let least = if round == 0 {
                Duration::ZERO
            } else {
                args.length()
            };
            for (kind, endpoint, pid) in self.ways() {
                let connection = endpoint.connect(args.http1).await?;
                sleep(SETTLE).await;
                let (before, all_before, start) =
                    (cpu_time(pid)?, self.cpu_of_all(kind)?, Instant::now());
                let mut bytes = 0;
                loop {
                    let came = connection.swallow(path).await?;
                    ensure!(
                        length.is_none_or(|length| came == length),
                        "{name}: {came} bytes, not {length:?}"
                    );
                    bytes += came;
                    if start.elapsed() >= least {
                        break;
                    }
                }
                let (took, used) = (start.elapsed(), cpu_time(pid)?.saturating_sub(before));
                let all = self.cpu_of_all(kind)?.saturating_sub(all_before);
                if round == 0 {
                    continue;
                }
                let megabytes = bytes as f64 / 1e6;
                table.add(name, "MB / s", true, kind, megabytes / took.as_secs_f64());
                let each = used.as_secs_f64() * 1e3 / megabytes;
                table.add(&format!("{name}: CPU"), "ms CPU / MB", true, kind, each);
                let all = all.as_secs_f64() * 1e3 / megabytes;
                table.add(
                    &format!("{name}: CPU, client and upstream too"),
                    "ms CPU / MB",
                    true,
                    kind,
                    all,
                );
            }
        }
        Ok(())
    }
}
