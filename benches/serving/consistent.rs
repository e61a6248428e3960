//! Consistent reads: how long they take, and what they cost upstream.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::try_join_all;
use http::Method;
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::Args;
use crate::client::{Connection, Endpoint};
use crate::form::Form;
use crate::paced::{Waits, open_loop};
use crate::servers::{Kind, Server, Servers};
use crate::table::Table;
use crate::upstream::node_name;

/// Readers that share a connection, where there are many.
const READERS_OF_A_CONNECTION: usize = 20;
/// Connections of few readers. One reader has one.
const FEW_CONNECTIONS: usize = 4;
/// Gets a second, all clients together.
const GETS: f64 = 500.0;
/// Writes to another type while the listed one is idle: they move upstream's version, and the
/// version of each list with it. Where nothing at all is written, every cache is new enough.
const OTHERS: Duration = Duration::from_millis(100);

struct Case {
    name: String,
    read: ConsistentRead,
    form: Form,
    /// Name of the type in metrics.
    resource: &'static str,
    /// The type is written to, at `--rate`.
    busy: bool,
}

/// The request of a client.
#[derive(Clone)]
enum ConsistentRead {
    List(String),
    /// A watch that begins with the state, up to the end of that.
    WatchList(String),
    /// Gets of different objects, at [`GETS`].
    Gets(Arc<Vec<String>>),
}

impl ConsistentRead {
    fn name(&self) -> &'static str {
        match self {
            Self::List(_) => "LIST",
            Self::WatchList(_) => "WatchList",
            Self::Gets(_) => "GET",
        }
    }

    /// Reads for `length`: at [`GETS`] whatever the answers take, or with one request after the
    /// other on each connection. Returns the times of the requests.
    async fn read_on(&self, connections: &[Connection], length: Duration) -> anyhow::Result<Waits> {
        match self {
            Self::List(path) => {
                let read = async |connection: &Connection| connection.swallow(path).await;
                closed_loop(connections, length, read).await
            }
            Self::WatchList(path) => {
                let read = async |connection: &Connection| connection.swallow_initial(path).await;
                closed_loop(connections, length, read).await
            }
            Self::Gets(paths) => {
                let path = |number: usize| paths[number % paths.len()].clone();
                open_loop(connections, GETS, length, path).await
            }
        }
    }
}

/// Reads on all connections for `length`, on each as soon as the answer before is there.
async fn closed_loop(
    connections: &[Connection],
    length: Duration,
    read: impl AsyncFn(&Connection) -> anyhow::Result<usize>,
) -> anyhow::Result<Waits> {
    let end = Instant::now() + length;
    let read = &read;
    let clients = connections.iter().map(|connection| async move {
        let mut millis = Vec::new();
        while Instant::now() < end {
            let start = Instant::now();
            read(connection).await?;
            millis.push(start.elapsed().as_secs_f64() * 1e3);
        }
        anyhow::Ok(millis)
    });
    Waits::of(try_join_all(clients).await?.concat())
}

fn cases(args: &Args, servers: &Servers) -> Vec<Case> {
    let one_node = format!("fieldSelector=spec.nodeName%3D{}", node_name(0));
    let list = |query: &str| ConsistentRead::List(format!("{PODS}?{query}"));
    let watch = |query: &str| ConsistentRead::WatchList(format!("{PODS}?{WATCH_LIST}{query}"));
    let case = |name: String, read, form, resource, busy| Case {
        name,
        read,
        form,
        resource,
        busy,
    };
    let (busy, idle) = (
        format!("busy type ({} events/s)", args.rate),
        format!("idle type ({} objects)", args.pods),
    );
    let part = format!("one node's of an {idle}");
    let namespaces = ConsistentRead::List("/api/v1/namespaces".to_owned());
    let gets = || ConsistentRead::Gets(Arc::clone(&servers.pods.paths));
    let mut cases = vec![
        case(busy.clone(), list(&one_node), Form::Json, "pods", true),
        case(
            "idle small type".to_owned(),
            namespaces,
            Form::Json,
            "namespaces",
            false,
        ),
        case(part.clone(), list(&one_node), Form::Json, "pods", false),
        case(
            part,
            watch(&format!("&{one_node}")),
            Form::Json,
            "pods",
            false,
        ),
        case(idle.clone(), watch(""), Form::Json, "pods", false),
        case(busy, gets(), Form::Json, "pods", true),
        case(idle.clone(), gets(), Form::Json, "pods", false),
    ];
    let forms = [
        Form::Json,
        Form::JsonGzip,
        Form::Protobuf,
        Form::ProtobufGzip,
    ];
    cases.extend(forms.map(|form| {
        let name = format!("{idle}, {}", form.name());
        case(name, list(""), form, "pods", false)
    }));
    cases
}

pub(crate) async fn all(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
    wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    for case in cases(args, servers) {
        for &clients in &args.readers {
            let connections = (clients / READERS_OF_A_CONNECTION)
                .max(FEW_CONNECTIONS)
                .min(clients);
            let read = case.read.name();
            let name = format!("consistent {read}, {}, {clients} at a time", case.name);
            if !wanted(&name) {
                continue;
            }
            eprintln!("{name} …");
            for number in 0..=args.rounds {
                for server in servers
                    .measured
                    .iter()
                    .filter(|server| !matches!(server.kind, Kind::Limit | Kind::OwnJson))
                {
                    let round = case
                        .run(args, servers, server, clients, connections)
                        .await
                        .with_context(|| format!("{name}, {}", server.kind.name()))?;
                    // The first round opens caches and connections.
                    if number > 0 {
                        round.add_to(table, &name, server.kind);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Result of one round.
struct ConsistentRound {
    waits: Waits,
    upstream: u64,
    /// CPU time of the real API server beyond what it spends without the reads. The simulated one
    /// has no figure for it.
    cpu: Option<Duration>,
    /// Writes a second to a busy type.
    writes: Option<f64>,
}

impl ConsistentRound {
    fn add_to(&self, table: &mut Table, name: &str, kind: Kind) {
        let figures = [
            ("median", Some(self.waits.percentile(50))),
            ("p99", self.waits.p99()),
        ];
        for (what, millis) in figures {
            if let Some(millis) = millis {
                table.add(&format!("{name}: {what}"), "ms", true, kind, millis);
            }
        }
        if !self.waits.kept_up {
            let remark = format!("{name}: {} did not keep up with {GETS}/s", kind.name());
            table.remarks.push(remark);
        }
        if let Some(rate) = self.writes {
            table.add(&format!("{name}: writes"), "1 / s", false, kind, rate);
        }
        if let Some(cpu) = self.cpu {
            let row = format!("{name}: CPU at upstream");
            let each = cpu.as_secs_f64() * 1e3 / self.waits.len() as f64;
            table.add(&row, "ms / read", true, kind, each);
        }
        if kind == Kind::Proxy {
            let row = format!("{name}: at upstream");
            let asked = self.upstream_per_thousand();
            table.add(&row, "requests / 1000", false, kind, asked);
        }
    }

    fn upstream_per_thousand(&self) -> f64 {
        self.upstream as f64 * 1e3 / self.waits.len() as f64
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
    ) -> anyhow::Result<ConsistentRound> {
        let mut open = Vec::new();
        for number in 0..clients {
            let connection = if number < connections {
                server.endpoint.connect(false).await?.asking(self.form)
            } else {
                Connection::clone(&open[number % connections])
            };
            open.push(connection);
        }
        let writes = self.writes(args, servers).await?;
        sleep(OTHERS).await;
        let unread = servers.upstream.share_of_cpu(args.length() / 2).await?;
        let before = asked(&servers.upstream.endpoint, self.resource).await?;
        let cpu_before = servers.upstream.cpu_time()?;
        let (began, written) = (Instant::now(), writes.count());
        let waits = self.read.read_on(&open, args.length()).await?;
        let rate = (writes.count() - written) as f64 / began.elapsed().as_secs_f64();
        let cpu_after = servers.upstream.cpu_time()?;
        let cpu = cpu_after.zip(cpu_before);
        let cpu = cpu.map(|(after, before)| {
            let of_others = began.elapsed().mul_f64(unread);
            after.saturating_sub(before).saturating_sub(of_others)
        });
        let upstream = asked(&servers.upstream.endpoint, self.resource).await? - before;
        writes.stop().await?;
        Ok(ConsistentRound {
            waits,
            upstream,
            cpu,
            writes: self.busy.then_some(rate),
        })
    }

    /// Starts the writes at upstream.
    async fn writes(&self, args: &Args, servers: &Servers) -> anyhow::Result<Writes> {
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
        let count = Arc::new(AtomicU64::new(0));
        let writing = write_on(connection, paths, every, Arc::clone(&count));
        Ok(Writes {
            count,
            task: AbortOnDropHandle::new(tokio::spawn(writing)),
        })
    }
}

/// Writes that go on until this is dropped.
struct Writes {
    count: Arc<AtomicU64>,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl Writes {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends the writes. It is an error if one of them has failed before.
    async fn stop(self) -> anyhow::Result<()> {
        if self.task.is_finished() {
            let ended = self.task.await.context("the task of the writes failed")?;
            ended.context("a write meanwhile failed")?;
        }
        Ok(())
    }
}

/// Writes for ever, each time an interval after the last write was due.
async fn write_on(
    connection: Connection,
    paths: Arc<Vec<String>>,
    every: Duration,
    count: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let mut due = Instant::now();
    loop {
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let body = format!(r#"{{"metadata":{{"annotations":{{"bench/number":"{number}"}}}}}}"#);
        let body = Some(("application/merge-patch+json", body.into()));
        let path = &paths[usize::try_from(number).unwrap_or(0) % paths.len()];
        let answer = connection.send(Method::PATCH, path, body).await?;
        answer.into_body().collect().await?;
        count.fetch_add(1, Ordering::Relaxed);
        due += every;
        sleep_until(due).await;
    }
}

/// Counts the writes of all runs. A write that changes nothing is no event at upstream.
static WRITES: AtomicU64 = AtomicU64::new(0);
const PODS: &str = "/api/v1/pods";
const WATCH_LIST: &str = "watch=true&sendInitialEvents=true&\
    resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=600";
const NAMESPACE: &str = "/api/v1/namespaces/bench-0";

/// Reads of a type that upstream has answered, from its own metrics.
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
        let is_read = [r#"verb="GET""#, r#"verb="LIST""#, r#"verb="WATCH""#]
            .iter()
            .any(|verb| line.contains(verb));
        if is_read {
            let value = line
                .rsplit(' ')
                .next()
                .context("a metric without a value")?;
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum as u64)
}
