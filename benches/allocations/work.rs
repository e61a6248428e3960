//! The work of the proxy whose allocations are counted.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use fastrand::Rng;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::sim::{SimulatedServer, fixtures, pods};

use crate::Args;
use crate::client::Connection;
use crate::counted::{Counted, Counts};
use crate::form::Form;
use crate::stamp::stamps;

const ALL: &str = "/api/v1/pods?resourceVersion=0";
/// Watches on one connection. kube-apiserver allows no more.
const STREAMS: usize = 100;
/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_mins(1);
/// Repetitions before anything is counted, in which tables and buffers grow.
const WARM_UP: usize = 20;

pub(crate) struct Rows {
    pub(crate) object_bytes: usize,
    pub(crate) rows: Vec<Row>,
}

/// The allocations of one piece of work.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) allocations: f64,
    pub(crate) bytes: f64,
}

impl Rows {
    /// Adds a row for work that was done `count` times.
    fn add(&mut self, name: String, counts: Counts, count: usize) {
        let count = count as f64;
        self.rows.push(Row {
            name,
            allocations: counts.allocations as f64 / count,
            bytes: counts.bytes as f64 / count,
        });
    }
}

/// Returns a pod that differs with every `state`, but not in its length.
fn pod(number: usize, state: u64) -> String {
    let (namespace, name) = (
        fixtures::namespace_name(number % 2),
        format!("pod-{number:06}"),
    );
    let node = fixtures::node_name(number % 10);
    let pod = fixtures::pod(&namespace, &name, &node, &mut Rng::with_seed(number as u64));
    let stamp = format!(r#""annotations":{{"bench/stamp":"{state:016}","#);
    pod.replacen(r#""annotations":{"#, &stamp, 1)
}

/// Creates so many pods.
pub(crate) fn create(upstream: &SimulatedServer, count: usize) -> anyhow::Result<()> {
    for number in 0..count {
        upstream
            .state()
            .create(&pods(), &pod(number, 0))
            .context("a pod is refused")?;
    }
    Ok(())
}

/// Counts the allocations of all work.
pub(crate) async fn all(
    args: &Args,
    upstream: &SimulatedServer,
    proxy: &Counted,
) -> anyhow::Result<Rows> {
    let connection = proxy.endpoint.connect(false).await?;
    let list = connection.fetch(ALL).await?;
    // A write to a pod without a stamp would change nothing.
    ensure!(
        stamps(&list) == args.pods,
        "{} of {} pods have a stamp",
        stamps(&list),
        args.pods
    );
    let mut rows = Rows {
        object_bytes: list.len() / args.pods.max(1),
        rows: Vec::new(),
    };
    count_events(args, upstream, proxy, &mut rows).await?;
    count_reads(args, proxy, &mut rows).await?;
    Ok(rows)
}

async fn count_events(
    args: &Args,
    upstream: &SimulatedServer,
    proxy: &Counted,
    rows: &mut Rows,
) -> anyhow::Result<()> {
    let mut writer = Writer {
        upstream,
        pods: args.pods,
        written: 0,
    };
    for watchers in [0, 1, args.watchers] {
        eprintln!("events to {watchers} …");
        let watching = Watching::open(upstream, proxy, watchers).await?;
        writer.write(&watching, proxy, WARM_UP).await?;
        let counts = writer.write(&watching, proxy, args.events).await?;
        let name = match watchers {
            0 => "event taken in, nobody watches".to_owned(),
            1 => "event to its only watcher".to_owned(),
            _ => format!("event to one of {watchers} watchers"),
        };
        rows.add(name, counts, args.events * watchers.max(1));
    }
    Ok(())
}

async fn count_reads(args: &Args, proxy: &Counted, rows: &mut Rows) -> anyhow::Result<()> {
    let one = format!(
        "/api/v1/namespaces/{}/pods/pod-000000?resourceVersion=0",
        fixtures::namespace_name(0)
    );
    let (get, list) = (
        "GET one pod, rv=0".to_owned(),
        format!("LIST {} pods, rv=0, JSON", args.pods),
    );
    let (list_gzip, lists) = (format!("{list} gzip"), args.reads.div_ceil(50));
    for (name, path, form, count) in [
        (get, one.as_str(), Form::Json, args.reads),
        (list, ALL, Form::Json, lists),
        (list_gzip, ALL, Form::JsonGzip, lists),
    ] {
        eprintln!("{name} …");
        let connection = proxy.endpoint.connect(false).await?.asking(form);
        for _ in 0..WARM_UP.min(count) {
            connection.swallow(path).await?;
        }
        let before = proxy.counts()?;
        for _ in 0..count {
            connection.swallow(path).await?;
        }
        rows.add(name, proxy.counts()? - before, count);
    }
    Ok(())
}

struct Writer<'a> {
    upstream: &'a SimulatedServer,
    pods: usize,
    written: usize,
}

impl Writer<'_> {
    /// Writes events and returns the allocations meanwhile. Each waits until the one before has
    /// reached all watchers, so that no two are sent together.
    async fn write(
        &mut self,
        watching: &Watching,
        proxy: &Counted,
        events: usize,
    ) -> anyhow::Result<Counts> {
        let before = settled(proxy).await?;
        let seen = watching.seen.load(Ordering::Acquire);
        for number in 1..=events {
            self.written += 1;
            let text = pod(self.written % self.pods, self.written as u64);
            self.upstream
                .state()
                .update(&pods(), &text)
                .context("an update is refused")?;
            watching
                .until(seen + (number * watching.count) as u64)
                .await?;
        }
        Ok(settled(proxy).await? - before)
    }
}

/// Waits until the proxy hardly allocates any more, and returns the counts.
async fn settled(proxy: &Counted) -> anyhow::Result<Counts> {
    let started = Instant::now();
    let mut last = proxy.counts()?;
    loop {
        sleep(Duration::from_millis(100)).await;
        let now = proxy.counts()?;
        if (now - last).allocations < 10 {
            return Ok(now);
        }
        ensure!(
            started.elapsed() < PATIENCE,
            "the proxy does not come to rest"
        );
        last = now;
    }
}

/// Watches of all pods.
struct Watching {
    count: usize,
    seen: Arc<AtomicU64>,
    _open: Vec<(Connection, Vec<AbortOnDropHandle<()>>)>,
}

impl Watching {
    async fn open(
        upstream: &SimulatedServer,
        proxy: &Counted,
        count: usize,
    ) -> anyhow::Result<Self> {
        let seen = Arc::new(AtomicU64::new(0));
        let path = format!(
            "/api/v1/pods?watch=true&timeoutSeconds=3600&resourceVersion={}",
            upstream.state().version()
        );
        let groups = (0..count).step_by(STREAMS).map(|first| {
            let (seen, path) = (Arc::clone(&seen), path.clone());
            async move {
                let connection = proxy.endpoint.connect(false).await?;
                let mut tasks = Vec::new();
                for _ in first..count.min(first + STREAMS) {
                    let body = connection.get(&path).await?.into_body();
                    tasks.push(AbortOnDropHandle::new(tokio::spawn(follow(
                        body,
                        Arc::clone(&seen),
                    ))));
                }
                anyhow::Ok((connection, tasks))
            }
        });
        let open = join_all(groups)
            .await
            .into_iter()
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            count,
            seen,
            _open: open,
        })
    }

    /// Waits until so many events were seen.
    async fn until(&self, events: u64) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.seen.load(Ordering::Acquire) < events {
            ensure!(
                started.elapsed() < PATIENCE,
                "an event did not reach everybody"
            );
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

async fn follow(mut body: Incoming, seen: Arc<AtomicU64>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Some(data) = frame.data_ref() else {
            continue;
        };
        seen.fetch_add(
            memchr::memchr_iter(b'\n', data).count() as u64,
            Ordering::AcqRel,
        );
    }
}
