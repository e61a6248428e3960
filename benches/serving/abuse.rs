//! The cost of abusers: memory of the proxy, and delays of well-behaved clients.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::client::TlsStream;

use crate::Args;
use crate::client::Endpoint;
use crate::hostile::{self, ATTACKS, Attack, VersionRange};
use crate::paced::{Waits, open_loop};
use crate::servers::{ALL_PODS, Server, Servers};
use crate::table::Table;
use watershed_lab::process::resident_memory;

const IDLE: usize = 5_000;
const UNREAD: usize = 500;
const RESETTING: usize = 4;
const SLOW: usize = 1_000;
/// Changes before the abuse: the old versions that are asked for.
const EVENTS: usize = 1_000;

/// Concurrent connects. More would only wait for the CPU time of handshakes.
const AT_A_TIME: usize = 32;
/// Requests a second of a well-behaved client: so few that it does not cause delays itself.
const RATE_OF_CLIENT: f64 = 100.0;
/// Time limit for the connects of all abusers.
const PATIENCE: Duration = Duration::from_mins(2);
/// Pause after the abusers, in which the proxy notices their end.
const SETTLE: Duration = Duration::from_secs(2);

/// State that abusers and the measurement share.
#[derive(Default)]
pub(crate) struct Progress {
    over: AtomicBool,
    /// Number of open connections, or of requests.
    pub(crate) done: AtomicU64,
}

impl Progress {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
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

/// One kind of abuse.
enum Abuse {
    Nobody,
    /// So many connections that begin with a text.
    Held(usize, Holding, String),
    RapidReset,
    /// So many clients with expensive requests.
    Hostile(usize, &'static Attack),
}

impl Abuse {
    /// Returns all kinds, with a share of the usual number of abusers.
    fn all(share: f64, bearer: &str) -> Vec<Self> {
        let of = |count: usize| ((count as f64 * share) as usize).max(1);
        let watch = format!(
            "GET {ALL_PODS}&watch=1 HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n\r\n"
        );
        let version = "GET /version HTTP/1.1\r\nHost: h\r\n\r\n".to_owned();
        let endless = "GET / HTTP/1.1\r\nX-Slow: ".to_owned();
        let held = [
            Self::Nobody,
            Self::Held(of(IDLE), Holding::Idle, version),
            Self::Held(of(UNREAD), Holding::Unread, watch),
            Self::RapidReset,
            Self::Held(of(SLOW), Holding::Slow, endless),
        ];
        let hostile = ATTACKS.iter();
        let hostile = hostile.map(|attack| Self::Hostile(of(attack.clients), attack));
        held.into_iter().chain(hostile).collect()
    }

    fn name(&self) -> String {
        match self {
            Self::Nobody => "nobody".to_owned(),
            Self::Held(count, Holding::Idle, _) => format!("{count} idle connections"),
            Self::Held(count, Holding::Unread, _) => format!("{count} watchers that read nothing"),
            Self::Held(count, Holding::Slow, _) => format!("slow loris, {count} connections"),
            Self::RapidReset => format!("rapid reset, {RESETTING} connections"),
            Self::Hostile(count, attack) => format!("{}, {count} clients", attack.name),
        }
    }

    /// Returns the connections or requests after which others are measured.
    fn warm_up(&self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Held(count, ..) => *count as u64,
            Self::RapidReset => 1_000,
            Self::Hostile(clients, _) => 2 * *clients as u64,
        }
    }

    async fn run(&self, scene: &Scene<'_>, progress: Arc<Progress>) {
        match self {
            Self::Nobody => {}
            Self::Held(count, how, beginning) => {
                hold(scene.proxy, progress, *count, *how, beginning).await;
            }
            Self::RapidReset => rapid_reset(scene.proxy, progress).await,
            Self::Hostile(clients, attack) => {
                hostile::run(attack, *clients, scene.versions, &scene.hostile, progress).await;
            }
        }
    }
}

/// The server under abuse, and its hostile clients.
struct Scene<'a> {
    args: &'a Args,
    proxy: &'a Server,
    /// The proxy, and the token of hostile clients.
    hostile: Endpoint,
    /// Versions that lie in the past.
    versions: VersionRange,
}

/// Runs every kind of abuse and measures its effect on well-behaved clients.
pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let proxy = &servers.measured[0];
    let scene = Scene {
        args,
        proxy,
        hostile: servers.hostile_endpoint(),
        versions: make_history(proxy).await?,
    };
    for _ in 0..args.rounds {
        let mut alone = None;
        for abuse in Abuse::all(args.abusers, &proxy.endpoint.bearer()) {
            let p99 = scene.measure(&abuse, table).await?;
            let alone = *alone.get_or_insert(p99);
            let name = format!("abuse: {}: p99 of that alone", abuse.name());
            table.add(&name, "times", false, proxy.kind, p99 / alone);
        }
    }
    Ok(())
}

/// Makes events, and returns their versions.
async fn make_history(proxy: &Server) -> anyhow::Result<VersionRange> {
    let session = proxy.writer.open().await?;
    session.emit().await?;
    let oldest = proxy.writer.version();
    for _ in 0..EVENTS {
        session.emit().await?;
    }
    Ok(VersionRange {
        oldest,
        newest: proxy.writer.version(),
    })
}

impl Scene<'_> {
    /// Measures well-behaved clients during one kind of abuse, once the abusers are connected.
    /// Returns the 99th percentile of their waits. The memory is the growth since before the abuse.
    async fn measure(&self, abuse: &Abuse, table: &mut Table) -> anyhow::Result<f64> {
        let (name, proxy) = (abuse.name(), self.proxy);
        eprintln!("abuse: {name} …");
        let before = resident_memory(proxy.pid)?;
        let progress = Arc::new(Progress::default());
        let wanted = abuse.warm_up();
        let measured = async {
            let begun = Instant::now();
            while progress.done.load(Ordering::Acquire) < wanted && begun.elapsed() < PATIENCE {
                sleep(Duration::from_millis(50)).await;
            }
            let waits = polite(&proxy.endpoint, self.args.length()).await;
            let (memory, done) = (
                resident_memory(proxy.pid),
                progress.done.load(Ordering::Acquire),
            );
            progress.over.store(true, Ordering::Release);
            anyhow::Ok((waits?, memory?, done))
        };
        let (measured, ()) = tokio::join!(measured, abuse.run(self, Arc::clone(&progress)));
        let (waits, memory, done) = measured?;
        if !waits.kept_up {
            let remark = format!("{name}: others were not answered at their rate");
            table.remarks.push(remark);
        }
        if done < wanted {
            table
                .remarks
                .push(format!("{name}: only {done} were there after {PATIENCE:?}"));
        }
        eprintln!("{done} in all, {} requests beside them", waits.len());
        let median = waits.percentile(50);
        let p99 = waits.p99().context("too few requests for a p99")?;
        let grown = (memory as f64 - before as f64) / 1024.0 / 1024.0;
        for (what, unit, value) in [
            ("others' list, median", "ms", median),
            ("others' list, p99", "ms", p99),
            ("memory", "MiB RSS more", grown),
        ] {
            let row = format!("abuse: {name}: {what}");
            table.add(&row, unit, false, proxy.kind, value);
        }
        sleep(SETTLE).await;
        Ok(p99)
    }
}

/// Measures the requests of two well-behaved clients, which ask at their rate whatever the answers
/// take.
async fn polite(endpoint: &Endpoint, length: Duration) -> anyhow::Result<Waits> {
    // At version 0 the limit would not count.
    const PATH: &str = "/api/v1/pods?resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=5";
    let clients = [
        endpoint.connect(false).await?,
        endpoint.connect(false).await?,
    ];
    let rate = RATE_OF_CLIENT * clients.len() as f64;
    open_loop(&clients, rate, length, |_| PATH.to_owned())
        .await
        .context("a well-behaved client")
}

/// Holds connections that begin with a given text, and replaces those that the proxy closes.
async fn hold(
    proxy: &Server,
    progress: Arc<Progress>,
    count: usize,
    how: Holding,
    beginning: &str,
) {
    let beginning: Arc<str> = beginning.into();
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let mut holding = JoinSet::new();
    for _ in 0..count {
        let (endpoint, progress) = (proxy.endpoint.clone(), Arc::clone(&progress));
        let (beginning, turns) = (Arc::clone(&beginning), Arc::clone(&turns));
        holding.spawn(async move {
            while !progress.is_over() {
                let turn = turns.acquire().await;
                let Ok(mut stream) = endpoint.tls(true).await else {
                    continue;
                };
                let sent = stream
                    .write_all(beginning.as_bytes())
                    .await
                    .and(stream.flush().await);
                drop(turn);
                progress.done.fetch_add(1, Ordering::AcqRel);
                let mut held = sent.is_ok();
                while held && !progress.is_over() {
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

/// Holds a connection for half a second. Returns `false` when the proxy has ended it.
async fn stays(stream: &mut TlsStream<TcpStream>, how: Holding) -> bool {
    let pause = Duration::from_millis(500);
    match how {
        Holding::Idle => {
            let read = tokio::time::timeout(pause, stream.read(&mut [0; 4096])).await;
            !matches!(read, Ok(Ok(0) | Err(_)))
        }
        Holding::Unread => {
            sleep(pause).await;
            // What the proxy has sent stays unread.
            let socket = stream.get_ref().0;
            let peeked = tokio::time::timeout(Duration::ZERO, socket.peek(&mut [0])).await;
            !matches!(peeked, Ok(Ok(0) | Err(_))) && matches!(socket.take_error(), Ok(None))
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
            while !progress.is_over() {
                let Ok(connection) = endpoint.connect(false).await else {
                    continue;
                };
                while !progress.is_over() && !connection.is_closed() {
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
