//! The work that is measured: each is done by every server in turn, round by round, so that a disturbance of the
//! machine hits all of them alike.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::Args;
use crate::client::Connection;
use crate::process::{cpu, resident};
use crate::servers::{ALL_PODS, Kind, Server, Servers, node_pods};
use crate::table::Table;
use crate::upstream::{STAMP, STAMP_DIGITS, Session, micros};
use crate::{abuse, consistent};

/// Connections opened at a time.
const OPENERS: usize = 16;
/// Watches on one connection, where they share: what kube-apiserver allows.
const STREAMS: usize = 100;
/// Writes under way at a time, when as many events as possible are wanted.
const WRITERS: usize = 16;
/// Events written ahead of the slowest delivery then. Few enough that no server cuts its watchers.
const AHEAD: u64 = 100;
/// No delivery for this long: the rest is lost.
const LOST: Duration = Duration::from_secs(5);
/// For what a server does after the fact.
const SETTLE: Duration = Duration::from_millis(300);
const WARM_UP: Duration = Duration::from_millis(500);

/// Runs every kind of work whose name contains the wanted word.
pub(crate) async fn all(args: &Args, servers: &Servers) -> anyhow::Result<Table> {
    let mut table = Table::default();
    let wanted = |name: &str| args.only.as_deref().is_none_or(|word| name.contains(word));
    // Memory first, while the servers are fresh.
    if wanted("memory") {
        memory(args, servers, &mut table).await?;
    }
    for reads in reads(args, servers) {
        if wanted(&reads.name) {
            reads.measure(args, servers, &mut table).await?;
        }
    }
    if wanted("consistent LIST") {
        consistent::all(args, servers, &mut table).await?;
    }
    for fan in fans(args) {
        if wanted(&fan.name) {
            fan.measure(args, servers, &mut table).await?;
        }
    }
    // Long, and of another sort than the rest.
    if args.only.as_deref().is_some_and(|word| word == "abuse") {
        abuse::all(args, servers, &mut table).await?;
    }
    Ok(table)
}

// === memory ===

async fn memory(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let proxy = &servers.measured[0];
    eprintln!("memory …");
    sleep(Duration::from_secs(1)).await;
    let held = resident(proxy.pid)?.saturating_sub(servers.proxy_empty);
    let share = held as f64 / servers.list_bytes as f64;
    table.add("memory: all pods held", "RSS / bytes of their list", false, proxy.kind, share);
    let watches = args.idle_watches;
    for server in &servers.measured {
        let few = Watchers::open(args, server, 16, |_| ALL_PODS.to_owned(), 1).await?;
        sleep(SETTLE).await;
        let mut before = resident(server.pid)?;
        let mut open = vec![few];
        for (per_connection, work) in [
            (1, format!("memory: an idle watch, own connection ({watches} open)")),
            (STREAMS, format!("memory: one more idle watch, {STREAMS} to a connection")),
        ] {
            if per_connection > 1 && args.http1 {
                continue;
            }
            open.push(Watchers::open(args, server, watches, |_| ALL_PODS.to_owned(), per_connection).await?);
            sleep(Duration::from_secs(1)).await;
            let after = resident(server.pid)?;
            let each = (after as f64 - before as f64) / watches as f64 / 1024.0;
            table.add(&work, "KiB RSS", true, server.kind, each);
            before = after;
        }
    }
    Ok(())
}

// === reads ===

struct Reads {
    name: String,
    unit: &'static str,
    /// How many of the unit are in a second.
    scale: f64,
    /// The n-th request.
    path: Box<dyn Fn(usize) -> String + Send + Sync>,
    clients: usize,
    /// Where the proxy is to take the answer from.
    source: &'static str,
    with_limit: bool,
}

fn reads(args: &Args, servers: &Servers) -> Vec<Reads> {
    let (pods, nodes) = (args.pods, args.nodes);
    let paths = Arc::clone(&servers.pods.paths);
    let (one, many) = (paths[0].clone(), Arc::clone(&paths));
    let megabytes = servers.list_bytes as f64 / 1e6;
    let from_memory = "snapshot";
    vec![
        Reads {
            name: format!("LIST {pods} pods, rv=0, JSON ({megabytes:.1} MB)"),
            unit: "ms CPU / request",
            scale: 1e3,
            path: Box::new(|_| ALL_PODS.to_owned()),
            clients: 1,
            source: from_memory,
            with_limit: true,
        },
        Reads {
            name: format!("LIST one node's {} pods by fieldSelector, rv=0", pods / nodes),
            unit: "µs CPU / request",
            scale: 1e6,
            path: Box::new(move |number| node_pods(number % nodes)),
            clients: args.clients,
            source: from_memory,
            with_limit: true,
        },
        Reads {
            name: "GET one pod, rv=0".to_owned(),
            unit: "µs CPU / request",
            scale: 1e6,
            path: Box::new(move |_| format!("{one}?resourceVersion=0")),
            clients: args.clients,
            source: from_memory,
            with_limit: true,
        },
        // Whether a caller may is asked upstream for each name.
        Reads {
            name: format!("GET {pods} pods in turn, rv=0"),
            unit: "µs CPU / request",
            scale: 1e6,
            path: Box::new(move |number| format!("{}?resourceVersion=0", many[number % many.len()])),
            clients: args.clients,
            source: from_memory,
            with_limit: true,
        },
        Reads {
            name: "GET one pod, most recent (the proxy forwards it)".to_owned(),
            unit: "µs CPU / request",
            scale: 1e6,
            path: Box::new(move |number| paths[number % paths.len()].clone()),
            clients: args.clients,
            source: "forward",
            with_limit: false,
        },
    ]
}

impl Reads {
    async fn measure(&self, args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
        eprintln!("{} …", self.name);
        let measured = || servers.measured.iter().filter(|s| self.with_limit || s.kind != Kind::Limit);
        for server in measured() {
            if server.kind == Kind::Proxy {
                let mut connection = server.reach.connect(args.http1).await?;
                let answer = connection.get(&(self.path)(0)).await?;
                expect_source(&answer, self.source)?;
                answer.into_body().collect().await?;
            }
            self.run(args, server, WARM_UP).await?;
        }
        for _ in 0..args.rounds {
            for server in measured() {
                let seconds = self.run(args, server, args.length()).await?;
                table.add(&self.name, self.unit, true, server.kind, seconds * self.scale);
            }
        }
        Ok(())
    }

    /// CPU seconds per request.
    async fn run(&self, args: &Args, server: &Server, length: Duration) -> anyhow::Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..self.clients {
            connections.push(server.reach.connect(args.http1).await?);
        }
        sleep(SETTLE).await;
        let done = AtomicUsize::new(0);
        let before = cpu(server.pid)?;
        let end = Instant::now() + length;
        let done = &done;
        let clients = connections.into_iter().map(|mut connection| async move {
            while Instant::now() < end {
                let number = done.fetch_add(1, Ordering::Relaxed);
                connection.swallow(&(self.path)(number)).await?;
            }
            anyhow::Ok(())
        });
        futures_util::future::try_join_all(clients).await?;
        let used = cpu(server.pid)?.saturating_sub(before);
        Ok(used.as_secs_f64() / done.load(Ordering::Relaxed) as f64)
    }
}

fn expect_source(answer: &http::Response<Incoming>, wanted: &str) -> anyhow::Result<()> {
    let source = answer.headers().get("x-watershed-source").and_then(|value| value.to_str().ok());
    let source = source.unwrap_or_default();
    ensure!(source.starts_with(wanted), "the proxy answered from {source:?}, not from {wanted}");
    Ok(())
}

// === watches ===

/// How events come.
#[derive(Clone, Copy)]
enum Pace {
    /// So many a second.
    Rate(f64),
    /// As fast as they are delivered.
    Flood,
}

struct Fan {
    name: String,
    watchers: usize,
    pace: Pace,
    /// Whether each watcher wants only its own node's pods, and not all.
    one_node_each: bool,
}

fn fans(args: &Args) -> Vec<Fan> {
    let (watchers, rate) = (args.watchers, args.rate);
    vec![
        Fan {
            name: "event taken in, nobody watches".to_owned(),
            watchers: 0,
            pace: Pace::Flood,
            one_node_each: false,
        },
        Fan {
            name: format!("event, {} watchers with a node each", args.nodes),
            watchers: args.nodes,
            pace: Pace::Flood,
            one_node_each: true,
        },
        Fan {
            name: format!("fan-out to {watchers}, {rate} events/s"),
            watchers,
            pace: Pace::Rate(rate),
            one_node_each: false,
        },
        Fan {
            name: format!("fan-out to {watchers}, as fast as delivered"),
            watchers,
            pace: Pace::Flood,
            one_node_each: false,
        },
    ]
}

struct Outcome {
    used: Duration,
    took: Duration,
    events: u64,
    delivered: u64,
    expected: u64,
    /// 99 of 100 deliveries came within this many milliseconds of the write.
    p99: Option<f64>,
}

impl Fan {
    async fn measure(&self, args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
        eprintln!("{} …", self.name);
        for _ in 0..args.rounds {
            for server in &servers.measured {
                // The limit server knows no selectors: it would send everything to everybody.
                if !(self.one_node_each && server.kind == Kind::Limit) {
                    self.round(args, server, table).await?;
                }
            }
        }
        Ok(())
    }

    async fn round(&self, args: &Args, server: &Server, table: &mut Table) -> anyhow::Result<()> {
        let path = |number| if self.one_node_each { node_pods(number) } else { ALL_PODS.to_owned() };
        let watchers = Watchers::open(args, server, self.watchers, path, 1).await?;
        self.run(server, &watchers, WARM_UP).await?;
        let outcome = self.run(server, &watchers, args.length()).await?;
        drop(watchers);
        let Outcome { used, took, events, delivered, expected, p99 } = outcome;
        if delivered < expected {
            table.remarks.push(format!(
                "{}: {} lost {} of {expected} deliveries",
                self.name,
                server.kind.name(),
                expected - delivered
            ));
        }
        let micros = used.as_secs_f64() * 1e6;
        if self.one_node_each || self.watchers == 0 {
            table.add(&self.name, "µs CPU / event", true, server.kind, micros / events as f64);
            return Ok(());
        }
        ensure!(delivered > 0, "{}: nothing was delivered", server.kind.name());
        table.add(&self.name, "µs CPU / delivery", true, server.kind, micros / delivered as f64);
        match self.pace {
            Pace::Rate(_) => {
                let p99 = p99.context("no delivery had a stamp")?;
                table.add(&format!("{}: p99 after the write", self.name), "ms", true, server.kind, p99);
            }
            Pace::Flood => {
                let rate = delivered as f64 / took.as_secs_f64() / 1e3;
                table.add(&format!("{}: rate", self.name), "1000 deliveries / s", false, server.kind, rate);
            }
        }
        sleep(SETTLE).await;
        Ok(())
    }

    async fn run(&self, server: &Server, watchers: &Watchers, length: Duration) -> anyhow::Result<Outcome> {
        let seen = &watchers.seen;
        let fan = if self.one_node_each { 1 } else { self.watchers as u64 };
        let session = server.writer.open().await?;
        sleep(SETTLE).await;
        seen.delays.lock().clear();
        let first = seen.events.load(Ordering::Acquire);
        let (start, before) = (Instant::now(), cpu(server.pid)?);
        let events = match self.pace {
            Pace::Rate(rate) => paced(&session, rate, length).await?,
            Pace::Flood => {
                flood(&session, length, |emitted| {
                    fan * emitted <= seen.events.load(Ordering::Acquire) - first + fan * AHEAD
                })
                .await?
            }
        };
        let expected = events * fan;
        let mut progress = (Instant::now(), first);
        let mut delivered = 0;
        while delivered < expected && progress.0.elapsed() < LOST {
            sleep(Duration::from_millis(1)).await;
            let now = seen.events.load(Ordering::Acquire);
            if now != progress.1 {
                progress = (Instant::now(), now);
            }
            delivered = now - first;
        }
        let took = start.elapsed();
        if fan == 0 {
            // Nobody tells when the last event has arrived.
            sleep(SETTLE).await;
        }
        let used = cpu(server.pid)?.saturating_sub(before);
        ensure!(delivered <= expected, "{}: {delivered} deliveries of {expected}", server.kind.name());
        let broken = seen.broken.load(Ordering::Acquire);
        if broken > 0 {
            eprintln!("  {}: {broken} watches ended", server.kind.name());
        }
        let mut delays = std::mem::take(&mut *seen.delays.lock());
        delays.sort_unstable();
        let p99 = delays.get(delays.len() * 99 / 100).map(|&micros| f64::from(micros) / 1e3);
        Ok(Outcome { used, took, events, delivered, expected, p99 })
    }
}

/// Writes at a steady rate, whatever a write takes. Returns how many events there were.
async fn paced(session: &Session<'_>, rate: f64, length: Duration) -> anyhow::Result<u64> {
    let wanted = (rate * length.as_secs_f64()).ceil() as u32;
    let start = Instant::now();
    let writes = (0..wanted).map(|number| async move {
        sleep_until(start + Duration::from_secs_f64(f64::from(number) / rate)).await;
        session.emit().await
    });
    let writes = futures_util::stream::iter(writes).buffer_unordered(WRITERS);
    writes.try_for_each(|()| std::future::ready(Ok(()))).await?;
    Ok(wanted.into())
}

/// Writes as fast as `may_go_on` allows. Returns how many events there were.
async fn flood(
    session: &Session<'_>,
    length: Duration,
    may_go_on: impl Fn(u64) -> bool,
) -> anyhow::Result<u64> {
    let end = Instant::now() + length;
    let emitted = AtomicU64::new(0);
    let (emitted, may_go_on) = (&emitted, &may_go_on);
    let writers = (0..WRITERS).map(|_| async move {
        while Instant::now() < end {
            if may_go_on(emitted.load(Ordering::Relaxed)) {
                emitted.fetch_add(1, Ordering::Relaxed);
                session.emit().await?;
            } else {
                sleep(Duration::from_millis(1)).await;
            }
        }
        anyhow::Ok(())
    });
    futures_util::future::try_join_all(writers).await?;
    Ok(emitted.load(Ordering::Relaxed))
}

/// What watchers have seen.
#[derive(Default)]
struct Seen {
    events: AtomicU64,
    /// Microseconds from the write to the delivery.
    delays: Mutex<Vec<u32>>,
    /// Watches that ended.
    broken: AtomicU64,
}

/// Open watches. Dropping them closes them.
struct Watchers {
    seen: Arc<Seen>,
    _opened: Vec<(Connection, Vec<AbortOnDropHandle<()>>)>,
}

impl Watchers {
    /// Opens watches from the newest version on; `path` is the read whose changes the n-th one wants.
    async fn open(
        args: &Args,
        server: &Server,
        watches: usize,
        path: impl Fn(usize) -> String,
        per_connection: usize,
    ) -> anyhow::Result<Self> {
        let seen = Arc::new(Seen::default());
        let version = format!("watch=true&timeoutSeconds=3600&resourceVersion={}", server.writer.version());
        let path = |number| path(number).replacen("resourceVersion=0", &version, 1);
        let is_proxy = server.kind == Kind::Proxy;
        let groups = (0..watches).step_by(per_connection).map(|first| {
            let paths: Vec<_> = (first..watches.min(first + per_connection)).map(&path).collect();
            let seen = Arc::clone(&seen);
            async move {
                let mut connection = server.reach.connect(args.http1).await?;
                let mut tasks = Vec::new();
                for path in paths {
                    let answer = connection.get(&path).await?;
                    if is_proxy {
                        expect_source(&answer, "window")?;
                    }
                    let watch = watch(answer.into_body(), Arc::clone(&seen));
                    tasks.push(AbortOnDropHandle::new(tokio::spawn(watch)));
                }
                anyhow::Ok((connection, tasks))
            }
        });
        let opened = futures_util::stream::iter(groups).buffered(OPENERS).try_collect().await?;
        Ok(Self { seen, _opened: opened })
    }
}

/// Counts events by their newlines, and reads their stamps where a chunk has them whole.
async fn watch(mut body: Incoming, seen: Arc<Seen>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Some(data) = frame.data_ref() else { continue };
        let now = micros();
        let delays = memchr::memmem::find_iter(data, STAMP).filter_map(|at| {
            let digits = data.get(at + STAMP.len()..at + STAMP.len() + STAMP_DIGITS)?;
            let stamp: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
            u32::try_from(now.saturating_sub(stamp)).ok()
        });
        seen.delays.lock().extend(delays);
        let events = memchr::memchr_iter(b'\n', data).count() as u64;
        seen.events.fetch_add(events, Ordering::AcqRel);
    }
    seen.broken.fetch_add(1, Ordering::AcqRel);
}
