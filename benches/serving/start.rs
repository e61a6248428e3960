//! The time of a proxy from its start to its first answer, beside a client that only downloads the
//! same objects.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::Args;
use crate::client::Connection;
use crate::form::Form;
use crate::paced::Waits;
use crate::servers::{Kind, Servers};
use crate::table::Table;
use crate::work::expect_source;
use watershed_lab::process::{cpu_time, peak_memory, resident_memory};

/// The request by which the proxy itself fills its cache.
const ALL: &str = "/api/v1/pods?watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                   &resourceVersionMatch=NotOlderThan";
/// The least that needs all pods to be there. At version 0 the limit would not count.
pub(crate) const ONE: &str =
    "/api/v1/pods?resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=1";
/// Another type, which is cached before.
const OTHERS: &str = "/api/v1/namespaces?resourceVersion=0";
/// Between two reads of it.
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) fn name(args: &Args) -> String {
    format!("start, {} pods", args.start_pods)
}

pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    for form in [Form::Json, Form::Protobuf] {
        let name = format!("{}, {}", name(args), form.name());
        let connection = servers.upstream.endpoint.connect(false).await?.asking(form);
        let answer = connection.try_send(Method::GET, ONE, None).await?;
        if !(answer.status().is_success() && form.is_of(answer.headers())) {
            table
                .remarks
                .push(format!("{name}: upstream does not offer this"));
            continue;
        }
        eprintln!("{name} …");
        for round in 0..=args.rounds {
            let (downloaded, bytes) = download(servers, form).await?;
            for &kind in Kind::proxies(args) {
                let started = start(args, servers, form, kind).await?;
                // The first round opens upstream's caches.
                if round > 0 {
                    let add = |what: &str, unit, value| {
                        table.add(&format!("{name}: {what}"), unit, true, kind, value);
                    };
                    started.report(args, downloaded, bytes, add);
                }
            }
        }
    }
    Ok(())
}

/// Downloads all pods. Returns the time and the bytes that it takes.
async fn download(servers: &Servers, form: Form) -> anyhow::Result<(Duration, usize)> {
    let connection = servers.upstream.endpoint.connect(false).await?.asking(form);
    let begun = Instant::now();
    let bytes = connection.swallow_initial(ALL).await?;
    Ok((begun.elapsed(), bytes))
}

struct Started {
    /// From the first request for pods until it was answered from memory.
    took: Duration,
    used: Duration,
    /// Bytes of memory at most above what there were before.
    grown: u64,
    /// Times of others' reads meanwhile.
    others: Waits,
}

impl Started {
    /// Adds each figure, beside those of a bare client's download.
    fn report(
        &self,
        args: &Args,
        downloaded: Duration,
        bytes: usize,
        mut add: impl FnMut(&str, &'static str, f64),
    ) {
        let (seconds, download) = (self.took.as_secs_f64(), downloaded.as_secs_f64());
        add("until they are cached", "s", seconds);
        add("a bare client's download", "s", download);
        add("over the download", "ratio", seconds / download);
        add(
            "CPU",
            "µs CPU / pod",
            self.used.as_secs_f64() * 1e6 / args.start_pods as f64,
        );
        add(
            "peak memory",
            "RSS / bytes downloaded",
            self.grown as f64 / bytes as f64,
        );
        add(
            "lists of another type meanwhile, median",
            "ms",
            self.others.percentile(50),
        );
        add(
            "lists of another type meanwhile, longest",
            "ms",
            self.others.percentile(100),
        );
    }
}

async fn start(args: &Args, servers: &Servers, form: Form, kind: Kind) -> anyhow::Result<Started> {
    let proxy = servers.fresh_proxy(args, kind)?;
    let other = proxy.endpoint.connect(false).await?.asking(form);
    until_from_memory(&other, OTHERS).await?;
    let connection = proxy.endpoint.connect(false).await?.asking(form);
    let (before, empty, begun) = (
        cpu_time(proxy.pid())?,
        resident_memory(proxy.pid())?,
        Instant::now(),
    );
    let over = AtomicBool::new(false);
    let starting = async {
        let reached = until_from_memory(&connection, ONE).await;
        let took = begun.elapsed();
        over.store(true, Ordering::Release);
        let body = reached?;
        let all = format!(r#""remainingItemCount":{}"#, args.start_pods - 1);
        let whole = form.is_protobuf() || memchr::memmem::find(&body, all.as_bytes()).is_some();
        ensure!(
            whole,
            "not all pods were cached: {}",
            String::from_utf8_lossy(&body[..body.len().min(300)])
        );
        anyhow::Ok(took)
    };
    let millis = Arc::new(Mutex::new(Vec::new()));
    let reading = async {
        while !over.load(Ordering::Acquire) {
            let asked = Instant::now();
            let answer = other.get(OTHERS).await?;
            // Nobody waits for what others need.
            expect_source(&answer, "snapshot")?;
            drop(http_body_util::BodyExt::collect(answer.into_body()).await?);
            millis.lock().push(asked.elapsed().as_secs_f64() * 1e3);
            sleep(PAUSE).await;
        }
        anyhow::Ok(())
    };
    let (took, reading) = tokio::join!(starting, reading);
    let (took, ()) = (took?, reading.context("a reader of another type")?);
    let used = cpu_time(proxy.pid())?.saturating_sub(before);
    let grown = peak_memory(proxy.pid())?.saturating_sub(empty);
    let others = Waits::of(std::mem::take(&mut *millis.lock()))?;
    Ok(Started {
        took,
        used,
        grown,
        others,
    })
}

/// Asks until the answer is from the proxy's memory; it forwards what it would have to wait for too
/// long.
async fn until_from_memory(connection: &Connection, path: &str) -> anyhow::Result<bytes::Bytes> {
    loop {
        let answer = connection.get(path).await?;
        let held = expect_source(&answer, "snapshot").is_ok();
        let body = http_body_util::BodyExt::collect(answer.into_body())
            .await?
            .to_bytes();
        if held {
            return Ok(body);
        }
        sleep(PAUSE).await;
    }
}
