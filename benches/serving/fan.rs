//! Watches: what an event costs for many watchers, and how long it takes to reach all of them.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::process::cpu_time;

use crate::Args;
use crate::client::Connection;
use crate::paced::{Waits, keeps_up};
use crate::servers::{ALL_PODS, Kind, Server, Servers, node_pods};
use crate::stamp::{STAMP, STAMP_DIGITS};
use crate::table::Table;
use crate::upstream::{Session, micros};
use crate::work::{SETTLE, WARM_UP, expect_source};

/// Connections opened at a time.
const OPENERS: usize = 16;
/// Watches on a shared connection. kube-apiserver allows no more.
pub(crate) const STREAMS: usize = 100;
/// Concurrent writes of a flood of events.
const WRITERS: usize = 16;
/// Events that a flood writes ahead of the slowest delivery. A server cuts slower watchers.
const AHEAD: u64 = 100;
/// Time without a delivery after which the missing ones count as lost.
const LOST: Duration = Duration::from_secs(5);

/// The pace of events.
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
    /// The moment from which a delivery is timed.
    since: &'static str,
    /// True if each watcher watches only its own node's pods.
    one_node_each: bool,
    /// Watchers of one connection.
    per_connection: usize,
}

/// Measures every wanted kind of watching.
pub(crate) async fn all(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
    wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    for fan in fans(args) {
        if wanted(&fan.name) {
            fan.measure(args, &servers.measured, table).await?;
        }
    }
    let fan = Fan::from_arrival(args);
    if wanted(&fan.name) {
        let following = servers.following(args).await?;
        fan.measure(args, &following.measured, table).await?;
    }
    Ok(())
}

fn fans(args: &Args) -> Vec<Fan> {
    let (watchers, rate) = (args.watchers, args.rate);
    let mut fans = vec![
        Fan::new("event taken in, nobody watches".to_owned(), 0, Pace::Flood),
        Fan::node_each(args.nodes, 1),
    ];
    // Most of these watchers have other nodes, so an event should not cost more.
    if !args.http1 {
        fans.extend([1, 10, 100].map(|times| Fan::node_each(args.nodes * times, STREAMS)));
    }
    fans.push(Fan::new(
        format!("fan-out to {watchers}, {rate} events/s"),
        watchers,
        Pace::Rate(rate),
    ));
    fans.push(Fan::new(
        format!("fan-out to {watchers}, as fast as delivered"),
        watchers,
        Pace::Flood,
    ));
    fans
}

struct Outcome {
    used: Duration,
    took: Duration,
    events: u64,
    delivered: u64,
    expected: u64,
    /// Microseconds from when the write was due to each delivery.
    delays: Vec<u32>,
    /// Writes at a rate were done soon after they were due.
    kept_up: bool,
}

impl Fan {
    fn new(name: String, watchers: usize, pace: Pace) -> Self {
        Self {
            name,
            watchers,
            pace,
            since: "the write",
            one_node_each: false,
            per_connection: 1,
        }
    }

    fn node_each(watchers: usize, per_connection: usize) -> Self {
        let shared = if per_connection > 1 {
            format!(", {per_connection} to a connection")
        } else {
            String::new()
        };
        let name = format!("event, {watchers} watchers with a node each{shared}");
        Self {
            one_node_each: true,
            per_connection,
            ..Self::new(name, watchers, Pace::Flood)
        }
    }

    /// Events that are handed to the measured server by a limit server, which takes microseconds:
    /// the time of the write at upstream is not in the figures.
    fn from_arrival(args: &Args) -> Self {
        let (watchers, rate) = (args.watchers, args.rate);
        let name = format!("fan-out to {watchers}, {rate} events/s from a bare upstream");
        Self {
            since: "the arrival",
            ..Self::new(name, watchers, Pace::Rate(rate))
        }
    }

    async fn measure(
        &self,
        args: &Args,
        measured: &[Server],
        table: &mut Table,
    ) -> anyhow::Result<()> {
        eprintln!("{} …", self.name);
        // The limit server knows no selectors: it would send everything to everybody.
        let measured = measured
            .iter()
            .filter(|s| !(self.one_node_each && s.kind == Kind::Limit));
        let measured: Vec<_> = measured.collect();
        if self.per_connection > 1 {
            // So many watches are opened only once. The other servers' watches of the same
            // upstream then get the events too, which is one more delivery.
            let mut opened = Vec::new();
            for server in measured {
                let watchers = self.open(args, server).await?;
                self.run(server, &watchers, WARM_UP).await?;
                opened.push((server, watchers));
            }
            for _ in 0..args.rounds {
                for (server, watchers) in &opened {
                    self.round(args, server, watchers, table).await?;
                }
            }
            return Ok(());
        }
        for _ in 0..args.rounds {
            for server in &measured {
                let watchers = self.open(args, server).await?;
                self.run(server, &watchers, WARM_UP).await?;
                self.round(args, server, &watchers, table).await?;
                drop(watchers);
                sleep(SETTLE).await;
            }
        }
        Ok(())
    }

    async fn open(&self, args: &Args, server: &Server) -> anyhow::Result<Watchers> {
        let path = |number| {
            if self.one_node_each {
                node_pods(number)
            } else {
                ALL_PODS.to_owned()
            }
        };
        Watchers::open(args.http1, server, self.watchers, path, self.per_connection).await
    }

    async fn round(
        &self,
        args: &Args,
        server: &Server,
        watchers: &Watchers,
        table: &mut Table,
    ) -> anyhow::Result<()> {
        let kind = server.kind;
        let Outcome {
            used,
            took,
            events,
            delivered,
            expected,
            delays,
            kept_up,
        } = self.run(server, watchers, args.length()).await?;
        if !kept_up {
            table.remarks.push(format!(
                "{}: writes did not keep up with their rate before {}",
                self.name,
                kind.name()
            ));
        }
        if delivered < expected {
            table.remarks.push(format!(
                "{}: {} lost {} of {expected} deliveries",
                self.name,
                kind.name(),
                expected - delivered
            ));
        }
        let micros = used.as_secs_f64() * 1e6;
        if self.one_node_each || self.watchers == 0 {
            let each = micros / events as f64;
            table.add(&self.name, "µs CPU / event", true, kind, each);
            return Ok(());
        }
        ensure!(delivered > 0, "{}: nothing was delivered", kind.name());
        let each = micros / delivered as f64;
        table.add(&self.name, "µs CPU / delivery", true, kind, each);
        match self.pace {
            Pace::Rate(_) => {
                let millis = delays.iter().map(|micros| f64::from(*micros) / 1e3);
                let delays = Waits::of(millis.collect()).context("no delivery had a stamp")?;
                for (what, millis) in [
                    ("median", Some(delays.percentile(50))),
                    ("p99", delays.p99()),
                ] {
                    let name = format!("{}: {what} after {}", self.name, self.since);
                    if let Some(millis) = millis {
                        table.add(&name, "ms", true, kind, millis);
                    }
                }
            }
            Pace::Flood => {
                let name = format!("{}: rate", self.name);
                let rate = delivered as f64 / took.as_secs_f64() / 1e3;
                table.add(&name, "1000 deliveries / s", false, kind, rate);
            }
        }
        Ok(())
    }

    async fn run(
        &self,
        server: &Server,
        watchers: &Watchers,
        length: Duration,
    ) -> anyhow::Result<Outcome> {
        let seen = &watchers.seen;
        let fan = if self.one_node_each {
            1
        } else {
            self.watchers as u64
        };
        let session = server.writer.open().await?;
        sleep(SETTLE).await;
        seen.delays.lock().clear();
        let first = seen.events.load(Ordering::Acquire);
        let (start, before) = (Instant::now(), cpu_time(server.pid)?);
        let (events, kept_up) = match self.pace {
            Pace::Rate(rate) => {
                let emitted = paced(&session, rate, length).await?;
                (emitted.events, emitted.kept_up)
            }
            Pace::Flood => {
                let events = flood(&session, length, |emitted| {
                    fan * emitted <= seen.events.load(Ordering::Acquire) - first + fan * AHEAD
                });
                (events.await?, true)
            }
        };
        let expected = events * fan;
        let delivered = seen.deliveries(first, expected).await;
        let took = start.elapsed();
        if fan == 0 {
            // Without a watcher, nothing tells when the last event has arrived.
            sleep(SETTLE).await;
        }
        let used = cpu_time(server.pid)?.saturating_sub(before);
        ensure!(
            delivered <= expected,
            "{}: {delivered} deliveries of {expected}",
            server.kind.name()
        );
        let broken = seen.broken.load(Ordering::Acquire);
        if broken > 0 {
            eprintln!("  {}: {broken} watches ended", server.kind.name());
        }
        Ok(Outcome {
            used,
            took,
            events,
            delivered,
            expected,
            delays: std::mem::take(&mut *seen.delays.lock()),
            kept_up,
        })
    }
}

/// Events at a rate.
pub(crate) struct Emitted {
    pub(crate) events: u64,
    /// The last write was done soon after it was due.
    pub(crate) kept_up: bool,
}

/// Writes at a steady rate, of which [`WRITERS`] writes at a time may be behind.
pub(crate) async fn paced(
    session: &Session<'_>,
    rate: f64,
    length: Duration,
) -> anyhow::Result<Emitted> {
    let wanted = (rate * length.as_secs_f64()).ceil() as u32;
    let (start, start_micros) = (Instant::now(), micros());
    let writes = (0..wanted).map(|number| async move {
        let due = Duration::from_secs_f64(f64::from(number) / rate);
        sleep_until(start + due).await;
        session
            .emit_due(start_micros + due.as_micros() as u64)
            .await
    });
    let writes = futures_util::stream::iter(writes).buffer_unordered(WRITERS);
    writes.try_for_each(|()| std::future::ready(Ok(()))).await?;
    Ok(Emitted {
        events: wanted.into(),
        kept_up: keeps_up(start.elapsed(), length),
    })
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

/// Counts of what watchers have received.
#[derive(Default)]
struct Seen {
    events: AtomicU64,
    /// Microseconds from the write to the delivery.
    delays: Mutex<Vec<u32>>,
    /// Watches that ended.
    broken: AtomicU64,
}

impl Seen {
    /// Waits until all expected events have arrived, or until none arrives for [`LOST`]. Returns
    /// the number of arrivals since the `first` event.
    async fn deliveries(&self, first: u64, expected: u64) -> u64 {
        let (mut changed, mut last) = (Instant::now(), first);
        while last - first < expected && changed.elapsed() < LOST {
            sleep(Duration::from_millis(1)).await;
            let now = self.events.load(Ordering::Acquire);
            if now != last {
                (changed, last) = (Instant::now(), now);
            }
        }
        last - first
    }
}

/// Open watches. Dropping them closes them.
pub(crate) struct Watchers {
    seen: Arc<Seen>,
    _opened: Vec<(Connection, Vec<AbortOnDropHandle<()>>)>,
}

impl Watchers {
    /// Opens watches from the newest version on; `path` is the read whose changes the n-th one
    /// wants.
    pub(crate) async fn open(
        http1: bool,
        server: &Server,
        watches: usize,
        path: impl Fn(usize) -> String,
        per_connection: usize,
    ) -> anyhow::Result<Self> {
        let seen = Arc::new(Seen::default());
        let version = format!(
            "watch=true&timeoutSeconds=3600&resourceVersion={}",
            server.writer.version()
        );
        let path = |number| path(number).replacen("resourceVersion=0", &version, 1);
        let is_proxy = server.kind.is_proxy();
        let groups = (0..watches).step_by(per_connection).map(|first| {
            let paths: Vec<_> = (first..watches.min(first + per_connection))
                .map(&path)
                .collect();
            let seen = Arc::clone(&seen);
            async move {
                let connection = server.endpoint.connect(http1).await?;
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
        let opened = futures_util::stream::iter(groups)
            .buffered(OPENERS)
            .try_collect()
            .await?;
        Ok(Self {
            seen,
            _opened: opened,
        })
    }
}

/// Counts events by their newlines, and reads their stamps where a chunk has them whole.
async fn watch(mut body: Incoming, seen: Arc<Seen>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Some(data) = frame.data_ref() else {
            continue;
        };
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
