//! The time of a proxy from its start to its first answer, beside a client that only downloads the
//! same objects: with a list, with the state of another replica, and with a checkpoint.
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

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
            let listed = start(args, servers, form, (Kind::Proxy, Origin::List)).await?;
            let mut starts = vec![(name.clone(), Kind::Proxy, &listed)];
            let own = if args.own_json {
                Some(start(args, servers, form, (Kind::OwnJson, Origin::List)).await?)
            } else {
                None
            };
            starts.extend(own.iter().map(|own| (name.clone(), Kind::OwnJson, own)));
            let mut resumed = Vec::new();
            for origin in [Origin::Replica, Origin::Checkpoint] {
                let started = start(args, servers, form, (Kind::Proxy, origin)).await?;
                resumed.push((format!("{name}, {}", origin.name()), started));
            }
            // The first round opens upstream's caches.
            if round == 0 {
                continue;
            }
            let seconds = listed.took.as_secs_f64();
            let mut add = |what: &str, unit, value| {
                table.add(what, unit, false, Kind::Proxy, value);
            };
            add(
                &format!("{name}: a bare client's download"),
                "s",
                downloaded.as_secs_f64(),
            );
            add(
                &format!("{name}: over the download"),
                "ratio",
                seconds / downloaded.as_secs_f64(),
            );
            for (name, started) in &resumed {
                let ratio = started.took.as_secs_f64() / seconds;
                add(&format!("{name}: over a list"), "ratio", ratio);
                starts.push((name.clone(), Kind::Proxy, started));
            }
            for (name, kind, started) in starts {
                report(args, table, (&name, kind), bytes, started);
            }
        }
    }
    Ok(())
}

/// Adds the rows of one start.
fn report(
    args: &Args,
    table: &mut Table,
    (name, kind): (&str, Kind),
    bytes: usize,
    started: &Started,
) {
    let mut add = |what: &str, unit, value| {
        table.add(&format!("{name}: {what}"), unit, true, kind, value);
    };
    add("until they are cached", "s", started.took.as_secs_f64());
    add(
        "CPU",
        "µs CPU / pod",
        started.used.as_secs_f64() * 1e6 / args.start_pods as f64,
    );
    add(
        "peak memory",
        "RSS / bytes downloaded",
        started.grown as f64 / bytes as f64,
    );
    let (what, others) = ("lists of another type meanwhile", &started.others);
    add(&format!("{what}, median"), "ms", others.percentile(50));
    add(&format!("{what}, longest"), "ms", others.percentile(100));
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

/// The origin of a proxy's first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    List,
    Replica,
    Checkpoint,
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Self::List => "from a list",
            Self::Replica => "from a replica",
            Self::Checkpoint => "from a checkpoint",
        }
    }

    /// Prepares the origin, and returns the flags for a proxy that begins with it.
    async fn prepare(
        self,
        args: &Args,
        servers: &Servers,
        form: Form,
    ) -> anyhow::Result<Vec<String>> {
        match self {
            Self::List => Ok(Vec::new()),
            Self::Replica => {
                let replica = servers.measured[0].endpoint.connect(false).await?;
                until_from_memory(&replica.asking(form), ONE).await?;
                // Its event proves the history to the proxy that begins.
                servers.measured[0].writer.open().await?.emit().await?;
                Ok(vec!["--state-from".to_owned(), servers.replicas()?])
            }
            Self::Checkpoint => {
                let folder = servers.subfolder("checkpoints")?;
                let name = folder.to_str().context("not text")?;
                let flags = ["--checkpoint-dir", name, "--checkpoint-interval"];
                let writing =
                    servers.fresh_proxy(args, Kind::Proxy, &[&flags[..], &["1s"]].concat())?;
                let connection = writing.endpoint.connect(false).await?.asking(form);
                until_from_memory(&connection, ONE).await?;
                // The first of the two files may be without its event.
                for _ in 0..2 {
                    servers.measured[0].writer.open().await?.emit().await?;
                    let before = checkpoint_files(&folder)?;
                    while !is_rewritten(&before, &checkpoint_files(&folder)?, args.start_pods) {
                        sleep(PAUSE).await;
                    }
                }
                let flags = [&flags[..], &["1h"]].concat();
                Ok(flags.into_iter().map(str::to_owned).collect())
            }
        }
    }
}

/// The time and the length of each checkpoint.
type CheckpointFiles = HashMap<PathBuf, (SystemTime, u64)>;

fn checkpoint_files(folder: &Path) -> anyhow::Result<CheckpointFiles> {
    let mut files = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "checkpoint") {
            let metadata = fs::metadata(&path)?;
            files.insert(path, (metadata.modified()?, metadata.len()));
        }
    }
    Ok(files)
}

/// Returns `true` if a checkpoint of so many objects was written since.
fn is_rewritten(before: &CheckpointFiles, now: &CheckpointFiles, objects: usize) -> bool {
    let mut changed = now
        .iter()
        .filter(|(path, file)| before.get(*path) != Some(*file));
    // Nothing but pods is so large.
    changed.any(|(_, (_, length))| *length >= 100 * objects as u64)
}

async fn start(
    args: &Args,
    servers: &Servers,
    form: Form,
    (kind, origin): (Kind, Origin),
) -> anyhow::Result<Started> {
    let flags = origin.prepare(args, servers, form).await?;
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let proxy = servers.fresh_proxy(args, kind, &flags)?;
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
    if origin != Origin::List {
        proxy.await_line(r#""resumed without a list","resource":"pods.v1""#)?;
    }
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
