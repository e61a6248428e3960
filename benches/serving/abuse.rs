//! The cost of abusers: memory of the proxy, and delays of well-behaved clients.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::client::TlsStream;

use crate::Args;
use crate::client::Endpoint;
use crate::servers::{ALL_PODS, Server, Servers};
use crate::table::Table;
use watershed_lab::process::resident_memory;

const IDLE: usize = 5_000;
const UNREAD: usize = 500;
const RESETTING: usize = 4;
const SLOW: usize = 1_000;

/// Concurrent connects. More would only wait for the CPU time of handshakes.
const AT_A_TIME: usize = 32;
/// Pause between two requests of a well-behaved client, so that it does not cause delays itself.
const PAUSE: Duration = Duration::from_millis(10);
/// Time limit for the connects of all abusers.
const PATIENCE: Duration = Duration::from_mins(2);
/// Pause after the abusers, in which the proxy notices their end.
const SETTLE: Duration = Duration::from_secs(2);

/// State that abusers and the measurement share.
#[derive(Default)]
struct Progress {
    over: AtomicBool,
    /// Number of open connections, or of cancelled requests.
    done: AtomicU64,
}

/// Behaviour of a held connection.
#[derive(Clone, Copy)]
enum Holding {
    /// It has read an answer and stays idle.
    Idle,
    /// It reads nothing.
    Unread,
    /// It sends its request letter by letter.
    Slow,
}

/// Runs every kind of abuse and measures its effect on well-behaved clients.
pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let proxy = &servers.measured[0];
    let bearer = proxy.endpoint.bearer();
    let watch =
        format!("GET {ALL_PODS}&watch=1 HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n\r\n");
    let version = "GET /version HTTP/1.1\r\nHost: h\r\n\r\n";
    let endless = "GET / HTTP/1.1\r\nX-Slow: ";
    let share = |count: usize| (count as f64 * args.abusers) as usize;
    let (idle, unread, slow) = (share(IDLE), share(UNREAD), share(SLOW));
    for _ in 0..args.rounds {
        let nobody = async |_: Arc<Progress>| {};
        scene(args, proxy, table, "nobody", 0, nobody).await?;
        let abuse = async |progress| hold(proxy, progress, idle, Holding::Idle, version).await;
        scene(
            args,
            proxy,
            table,
            &format!("{idle} idle connections"),
            idle,
            abuse,
        )
        .await?;
        let abuse = async |progress| hold(proxy, progress, unread, Holding::Unread, &watch).await;
        scene(
            args,
            proxy,
            table,
            &format!("{unread} watchers that read nothing"),
            unread,
            abuse,
        )
        .await?;
        let abuse = async |progress| rapid_reset(proxy, progress).await;
        scene(
            args,
            proxy,
            table,
            &format!("rapid reset, {RESETTING} connections"),
            1_000,
            abuse,
        )
        .await?;
        let abuse = async |progress| hold(proxy, progress, slow, Holding::Slow, endless).await;
        scene(
            args,
            proxy,
            table,
            &format!("slow loris, {slow} connections"),
            slow,
            abuse,
        )
        .await?;
    }
    Ok(())
}

/// Measures well-behaved clients during one kind of abuse, once `count` abusers are connected. The
/// memory is the growth since before the abuse.
async fn scene(
    args: &Args,
    proxy: &Server,
    table: &mut Table,
    name: &str,
    count: usize,
    abuse: impl AsyncFnOnce(Arc<Progress>),
) -> anyhow::Result<()> {
    eprintln!("abuse: {name} …");
    let before = resident_memory(proxy.pid)?;
    let progress = Arc::new(Progress::default());
    let measured = async {
        let begun = Instant::now();
        while progress.done.load(Ordering::Acquire) < count as u64 && begun.elapsed() < PATIENCE {
            sleep(Duration::from_millis(50)).await;
        }
        let waits = polite(&proxy.endpoint, args.length()).await;
        let (memory, done) = (
            resident_memory(proxy.pid),
            progress.done.load(Ordering::Acquire),
        );
        progress.over.store(true, Ordering::Release);
        anyhow::Ok((waits?, memory?, done))
    };
    let (measured, ()) = tokio::join!(measured, abuse(Arc::clone(&progress)));
    let (mut waits, memory, done) = measured?;
    ensure!(!waits.is_empty(), "{name}: nobody else was answered");
    if done < count as u64 {
        table
            .remarks
            .push(format!("{name}: only {done} were there after {PATIENCE:?}"));
    }
    eprintln!("{done} in all, {} requests beside them", waits.len());
    waits.sort();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    table.add(
        &format!("abuse: {name}: others' list, median"),
        "ms",
        false,
        proxy.kind,
        at(0.5),
    );
    table.add(
        &format!("abuse: {name}: others' list, p99"),
        "ms",
        false,
        proxy.kind,
        at(0.99),
    );
    let grown = (memory as f64 - before as f64) / 1024.0 / 1024.0;
    table.add(
        &format!("abuse: {name}: memory"),
        "MiB RSS more",
        false,
        proxy.kind,
        grown,
    );
    sleep(SETTLE).await;
    Ok(())
}

/// Measures each request of two well-behaved clients.
async fn polite(endpoint: &Endpoint, length: Duration) -> anyhow::Result<Vec<Duration>> {
    // At version 0 the limit would not count.
    let path = "/api/v1/pods?resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=5";
    let mut clients = Vec::new();
    for _ in 0..2 {
        let connection = endpoint.connect(false).await?;
        clients.push(async move {
            let (begun, mut waits) = (Instant::now(), Vec::new());
            while begun.elapsed() < length {
                let asked = Instant::now();
                connection
                    .fetch(path)
                    .await
                    .context("a well-behaved client")?;
                waits.push(asked.elapsed());
                sleep(PAUSE).await;
            }
            anyhow::Ok(waits)
        });
    }
    Ok(join_all(clients)
        .await
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?
        .concat())
}

/// Holds connections that begin with a given text, and replaces those that the proxy closes.
async fn hold(proxy: &Server, progress: Arc<Progress>, count: usize, how: Holding, said: &str) {
    let said: Arc<str> = said.into();
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let mut holding = JoinSet::new();
    for _ in 0..count {
        let (endpoint, progress) = (proxy.endpoint.clone(), Arc::clone(&progress));
        let (said, turns) = (Arc::clone(&said), Arc::clone(&turns));
        holding.spawn(async move {
            while !progress.over.load(Ordering::Acquire) {
                let turn = turns.acquire().await;
                let Ok(mut stream) = endpoint.tls(true).await else {
                    continue;
                };
                let said = stream
                    .write_all(said.as_bytes())
                    .await
                    .and(stream.flush().await);
                drop(turn);
                progress.done.fetch_add(1, Ordering::AcqRel);
                let mut held = said.is_ok();
                while held && !progress.over.load(Ordering::Acquire) {
                    held = stays(&mut stream, how).await;
                }
                if !held {
                    progress.done.fetch_sub(1, Ordering::AcqRel);
                }
            }
        });
    }
    while holding.join_next().await.is_some() {}
}

/// Holds a connection for half a second. Returns false when the proxy has ended it.
async fn stays(stream: &mut TlsStream<TcpStream>, how: Holding) -> bool {
    let pause = Duration::from_millis(500);
    match how {
        Holding::Idle => {
            let read = tokio::time::timeout(pause, stream.read(&mut [0; 4096])).await;
            !matches!(read, Ok(Ok(0) | Err(_)))
        }
        Holding::Unread => {
            sleep(pause).await;
            true
        }
        Holding::Slow => {
            sleep(pause).await;
            stream
                .write_all(b"x")
                .await
                .and(stream.flush().await)
                .is_ok()
        }
    }
}

/// Sends requests as fast as possible and cancels each of them at once.
async fn rapid_reset(proxy: &Server, progress: Arc<Progress>) {
    let mut attacks = JoinSet::new();
    for _ in 0..RESETTING {
        let (endpoint, progress) = (proxy.endpoint.clone(), Arc::clone(&progress));
        attacks.spawn(async move {
            while !progress.over.load(Ordering::Acquire) {
                let Ok(connection) = endpoint.connect(false).await else {
                    continue;
                };
                while !progress.over.load(Ordering::Acquire) && !connection.is_closed() {
                    // Dropping a request resets its stream.
                    let asking = connection.get("/api/v1/namespaces/default/pods/none");
                    let _ = tokio::time::timeout(Duration::from_micros(200), asking).await;
                    progress.done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while attacks.join_next().await.is_some() {}
}
