//! Consistent lists: how long they take, and what they cost upstream.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use http::Method;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::Args;
use crate::client::{Connection, Endpoint};
use crate::servers::{Kind, Server, Servers};
use crate::table::Table;
use crate::upstream::node_name;

/// Lists at a time, and the connections they share.
const CROWD: (usize, usize) = (200, 10);
/// Writes to another type while the listed one is idle: they move upstream's version, and the
/// version of each list with it. Where nothing at all is written, every cache is new enough.
const OTHERS: Duration = Duration::from_millis(100);

struct Case {
    name: String,
    path: String,
    /// Name of the type in metrics.
    resource: &'static str,
    /// The listed type is written to, at `--rate`.
    busy: bool,
}

fn cases(args: &Args) -> Vec<Case> {
    let one_node = format!(
        "/api/v1/pods?fieldSelector=spec.nodeName%3D{}",
        node_name(0)
    );
    let case = |name: String, path: &str, resource, busy| Case {
        name,
        path: path.to_owned(),
        resource,
        busy,
    };
    let pods = args.pods;
    vec![
        case(
            format!("busy type ({} events/s)", args.rate),
            &one_node,
            "pods",
            true,
        ),
        case(
            "idle small type".to_owned(),
            "/api/v1/namespaces",
            "namespaces",
            false,
        ),
        case(
            format!("idle large type ({pods} objects)"),
            &one_node,
            "pods",
            false,
        ),
    ]
}

pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    for case in cases(args) {
        for (clients, connections) in [(1, 1), CROWD] {
            let name = format!("consistent LIST, {}, {clients} at a time", case.name);
            eprintln!("{name} …");
            for round in 0..=args.rounds {
                for server in servers
                    .measured
                    .iter()
                    .filter(|server| server.kind != Kind::Limit)
                {
                    let ran = case
                        .run(args, servers, server, clients, connections)
                        .await?;
                    // The first round opens caches and connections.
                    if round == 0 {
                        continue;
                    }
                    for (what, share) in [("median", 50), ("p99", 99)] {
                        let row = format!("{name}: {what}");
                        table.add(&row, "ms", true, server.kind, ran.percentile(share));
                    }
                    if server.kind == Kind::Proxy {
                        let row = format!("{name}: at upstream");
                        table.add(
                            &row,
                            "requests / 1000",
                            false,
                            server.kind,
                            ran.upstream_per_thousand(),
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// Result of one round.
struct Ran {
    /// Milliseconds, sorted.
    took: Vec<f64>,
    upstream: u64,
}

impl Ran {
    fn percentile(&self, share: usize) -> f64 {
        self.took[(self.took.len() - 1) * share / 100]
    }

    fn upstream_per_thousand(&self) -> f64 {
        self.upstream as f64 * 1e3 / self.took.len() as f64
    }
}

impl Case {
    async fn run(
        &self,
        args: &Args,
        servers: &Servers,
        server: &Server,
        clients: usize,
        connections: usize,
    ) -> anyhow::Result<Ran> {
        let mut open = Vec::new();
        for number in 0..clients {
            let connection = if number < connections {
                server.endpoint.connect(false).await?
            } else {
                Connection::clone(&open[number % connections])
            };
            open.push(connection);
        }
        let _writes = self.writes(args, servers).await?;
        sleep(OTHERS).await;
        let before = asked(&servers.upstream.endpoint, self.resource).await?;
        let took = Arc::new(Mutex::new(Vec::new()));
        let end = Instant::now() + args.length();
        let clients = open.into_iter().map(|connection| {
            let took = Arc::clone(&took);
            async move {
                while Instant::now() < end {
                    let start = Instant::now();
                    connection.swallow(&self.path).await?;
                    took.lock().push(start.elapsed().as_secs_f64() * 1e3);
                }
                anyhow::Ok(())
            }
        });
        try_join_all(clients).await?;
        let upstream = asked(&servers.upstream.endpoint, self.resource).await? - before;
        let mut took = std::mem::take(&mut *took.lock());
        ensure!(!took.is_empty(), "{}: nothing was listed", self.name);
        took.sort_unstable_by(f64::total_cmp);
        Ok(Ran { took, upstream })
    }

    /// Writes at upstream until the handle is dropped.
    async fn writes(
        &self,
        args: &Args,
        servers: &Servers,
    ) -> anyhow::Result<AbortOnDropHandle<()>> {
        let (every, paths) = if self.busy {
            (
                Duration::from_secs_f64(1.0 / args.rate),
                Arc::clone(&servers.pods.paths),
            )
        } else {
            let other = if self.resource == "namespaces" {
                &servers.pods.paths[0]
            } else {
                NAMESPACE
            };
            (OTHERS, Arc::new(vec![other.to_owned()]))
        };
        let connection = servers.upstream.endpoint.connect(false).await?;
        Ok(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let number = WRITES.fetch_add(1, Ordering::Relaxed);
                let body =
                    format!(r#"{{"metadata":{{"annotations":{{"bench/number":"{number}"}}}}}}"#);
                let body = Some(("application/merge-patch+json", body.into()));
                let path = &paths[usize::try_from(number).unwrap_or(0) % paths.len()];
                let Ok(answer) = connection.send(Method::PATCH, path, body).await else {
                    return;
                };
                if answer.into_body().collect().await.is_err() {
                    return;
                }
                sleep(every).await;
            }
        })))
    }
}

/// Counts the writes of all runs. A write that changes nothing is no event at upstream.
static WRITES: AtomicU64 = AtomicU64::new(0);
const NAMESPACE: &str = "/api/v1/namespaces/bench-0";

/// Lists and watches of a type that upstream has answered, from its own metrics.
async fn asked(upstream: &Endpoint, resource: &str) -> anyhow::Result<u64> {
    let text = upstream.connect(false).await?.fetch("/metrics").await?;
    let text = std::str::from_utf8(&text)?;
    let (name, resource) = (
        "apiserver_request_total{",
        format!(r#"resource="{resource}""#),
    );
    let mut sum = 0.0;
    for line in text
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(&resource))
    {
        if line.contains(r#"verb="LIST""#) || line.contains(r#"verb="WATCH""#) {
            let value = line
                .rsplit(' ')
                .next()
                .context("a metric without a value")?;
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum as u64)
}
