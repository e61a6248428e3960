//! Clients of one busy type in several encodings: what a proxy costs kube-apiserver then, and how
//! much memory the type takes.
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::body::full_body;
use watershed_lab::process::{cpu_time, resident_memory};

use crate::Args;
use crate::client::{Connection, Endpoint};
use crate::fan::paced;
use crate::profile::cpu_of_watches;
use crate::servers::{ALL_PODS, Kind, Servers};
use crate::table::Table;
use crate::upstream::Writer;
use crate::work::{SETTLE, expect_source};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const METADATA: [&str; 2] = [
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
];
/// The media types that a list and a watch of each client accept.
const CLIENTS: [[&str; 2]; 3] = [[JSON; 2], [PROTOBUF; 2], METADATA];
/// Time for the first states of watches, and for freed memory to leave a process.
const QUIET: Duration = Duration::from_secs(5);

pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let has_cpu = servers.upstream.cpu_time()?.is_some();
    ensure!(has_cpu, "encodings are measured with --kube-apiserver");
    for round in 1..=args.rounds {
        eprintln!("encodings, round {round} …");
        for &kind in Kind::proxies(args) {
            memory(args, servers, kind, table).await?;
        }
        let alone = written(args, servers, None).await?;
        for &kind in Kind::proxies(args) {
            following(args, servers, kind, alone, table).await?;
        }
        let clients = Clients::open(&servers.upstream.endpoint).await?;
        let spent = written(args, servers, None).await?;
        clients.stop()?;
        spent.add_to(table, Kind::KubeApiserver, alone);
    }
    Ok(())
}

/// CPU seconds of an event.
#[derive(Clone, Copy)]
struct SpentCpu {
    upstream: f64,
    /// The part of it that serves watches, by kube-apiserver's own profile.
    watches: f64,
    proxy: f64,
    /// False if events came later than the profile expects.
    kept_up: bool,
}

impl SpentCpu {
    /// Adds what an event costs kube-apiserver more than the write `alone`.
    fn add_to(self, table: &mut Table, kind: Kind, alone: Self) {
        if !(self.kept_up && alone.kept_up) {
            table.remarks.push(format!(
                "encodings: writes did not keep up with their rate before {}: some CPU in watches \
                 is not in the profile",
                kind.name()
            ));
        }
        let more = self.upstream - alone.upstream;
        add(table, "kube-apiserver's CPU", kind, more);
        let more = self.watches - alone.watches;
        add(table, "kube-apiserver's CPU in watches", kind, more);
    }
}

/// Measures what an event costs while a proxy follows the pods for clients of all encodings, without
/// the write itself.
async fn following(
    args: &Args,
    servers: &Servers,
    kind: Kind,
    alone: SpentCpu,
    table: &mut Table,
) -> anyhow::Result<()> {
    let proxy = servers.fresh_proxy(args, kind, &[])?;
    let clients = Clients::open_from_memory(&proxy.endpoint).await?;
    let spent = written(args, servers, Some(proxy.pid())).await?;
    clients.stop()?;
    spent.add_to(table, kind, alone);
    add(table, "the proxy's CPU", kind, spent.proxy);
    Ok(())
}

fn add(table: &mut Table, what: &str, kind: Kind, seconds: f64) {
    let name = format!("event for clients of JSON, protobuf and metadata: {what}");
    table.add(&name, "µs CPU / event", true, kind, seconds * 1e6);
}

/// Writes for the length of a round, and returns what an event costs.
async fn written(args: &Args, servers: &Servers, proxy: Option<u32>) -> anyhow::Result<SpentCpu> {
    let writer = Writer::patches(&servers.upstream.endpoint, &servers.pods);
    let session = writer.open().await?;
    let spent = || {
        let upstream = servers.upstream.cpu_time()?.unwrap_or_default();
        let proxy = proxy.map(cpu_time).transpose()?.unwrap_or_default();
        anyhow::Ok([upstream, proxy])
    };
    sleep(SETTLE).await;
    let before = spent()?;
    let profiled = args.length() + SETTLE;
    let watches = cpu_of_watches(
        &servers.upstream.endpoint,
        profiled.as_secs_f64().ceil() as u64,
    );
    let events = async {
        let emitted = paced(&session, args.rate, args.length()).await?;
        sleep(SETTLE).await;
        anyhow::Ok(emitted)
    };
    let (watches, emitted) = tokio::try_join!(watches, events)?;
    let after = spent()?;
    let spent = [0, 1].map(|at: usize| after[at].saturating_sub(before[at]));
    let each = |spent: Duration| spent.as_secs_f64() / emitted.events as f64;
    Ok(SpentCpu {
        upstream: each(spent[0]),
        watches: each(watches),
        proxy: each(spent[1]),
        kept_up: emitted.kept_up,
    })
}

/// Measures the memory of a proxy that holds the pods, first in JSON and then in protobuf, too.
async fn memory(
    args: &Args,
    servers: &Servers,
    kind: Kind,
    table: &mut Table,
) -> anyhow::Result<()> {
    let proxy = servers.fresh_proxy(args, kind, &[])?;
    let empty = resident_memory(proxy.pid())?;
    let connection = proxy.endpoint.connect(false).await?;
    for (accept, name) in [
        (JSON, "memory: all pods held for clients of JSON"),
        (
            PROTOBUF,
            "memory: all pods held for clients of JSON and protobuf",
        ),
    ] {
        until_from_memory(&connection, accept).await?;
        sleep(QUIET).await;
        let held = resident_memory(proxy.pid())?.saturating_sub(empty);
        let share = held as f64 / servers.list_bytes as f64;
        table.add(name, "RSS / bytes of their list", true, kind, share);
    }
    Ok(())
}

/// Open watches of all pods, one in each encoding.
struct Clients(Vec<AbortOnDropHandle<()>>);

impl Clients {
    /// Opens the watches once a proxy holds what they ask for.
    async fn open_from_memory(proxy: &Endpoint) -> anyhow::Result<Self> {
        let connection = proxy.connect(false).await?;
        for [list, _] in CLIENTS {
            until_from_memory(&connection, list).await?;
        }
        Self::open(proxy).await
    }

    async fn open(server: &Endpoint) -> anyhow::Result<Self> {
        let path = format!("{ALL_PODS}&watch=true&timeoutSeconds=3600");
        let mut watches = Vec::new();
        for [_, accept] in CLIENTS {
            let connection = server.connect(false).await?;
            let mut body = get(&connection, &path, accept).await?.into_body();
            let read = async move {
                // The connection lasts as long as its watch.
                let _connection = connection;
                while let Some(Ok(_)) = body.frame().await {}
            };
            watches.push(AbortOnDropHandle::new(tokio::spawn(read)));
        }
        sleep(QUIET).await;
        Ok(Self(watches))
    }

    /// Closes the watches. It is an error if one of them has ended before.
    fn stop(self) -> anyhow::Result<()> {
        let ended = self.0.iter().filter(|watch| watch.is_finished()).count();
        ensure!(ended == 0, "{ended} watches ended while they were measured");
        Ok(())
    }
}

/// Reads all pods until a proxy answers from memory.
async fn until_from_memory(connection: &Connection, accept: &str) -> anyhow::Result<()> {
    loop {
        let answer = get(connection, ALL_PODS, accept).await?;
        let is_held = expect_source(&answer, "snapshot").is_ok();
        answer.into_body().collect().await?;
        if is_held {
            return Ok(());
        }
        sleep(SETTLE).await;
    }
}

async fn get(
    connection: &Connection,
    path: &str,
    accept: &str,
) -> anyhow::Result<http::Response<hyper::body::Incoming>> {
    let accept: HeaderValue = accept.parse()?;
    let request = Request::get(path).header(header::ACCEPT, accept);
    let answer = connection
        .pass_on(request.body(full_body(Bytes::new()))?)
        .await?;
    ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    Ok(answer)
}
