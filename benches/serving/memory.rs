//! Memory of the servers: for cached pods, for idle watches and for slow readers.
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::BodyExt as _;
use tokio::time::sleep;
use watershed_lab::client::FlowWindows;
use watershed_lab::process::{peak_memory, reset_peak_memory, resident_memory};

use crate::Args;
use crate::client::{Connection, Endpoint};
use crate::fan::{STREAMS, Watchers};
use crate::form::Form;
use crate::servers::{ALL_PODS, Kind, Servers, set_answer};
use crate::table::Table;
use crate::work::{SETTLE, expect_source};

/// Beginning of the names of [`forms`]' rows.
pub(crate) const FORMS: &str = "memory: held forms";
/// Beginning of the names of [`history`]'s rows.
pub(crate) const HISTORY: &str = "memory: history";
/// Changes of the history that is measured: no more than a proxy keeps by default.
const EVENTS: usize = 4_000;
/// Time after a list and after the last change. Then what nobody reads any more has been folded or
/// released.
const HISTORY_SETTLES: Duration = Duration::from_secs(40);
/// Connections that write them.
const WRITERS: usize = 8;

/// Lists that slow readers read at the same time.
const SLOW: usize = 50;
/// Pause of a slow reader after each [`FlowWindows::NARROW_BYTES`].
const PAUSE: Duration = Duration::from_millis(20);

/// Time until freed memory has left the process. Allocators keep it for a while.
const GIVEN_BACK: Duration = Duration::from_secs(5);

/// Measures the memory of cached pods and of idle watches on them.
pub(crate) async fn held(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let proxy = &servers.measured[0];
    eprintln!("memory …");
    sleep(GIVEN_BACK).await;
    let held = resident_memory(proxy.pid)?.saturating_sub(servers.proxy_empty);
    let share = held as f64 / servers.list_bytes as f64;
    table.add(
        "memory: all pods held",
        "RSS / bytes of their list",
        false,
        proxy.kind,
        share,
    );
    let watches = args.idle_watches;
    for server in &servers.measured {
        let few = Watchers::open(args.http1, server, 16, |_| ALL_PODS.to_owned(), 1).await?;
        sleep(GIVEN_BACK).await;
        let mut before = resident_memory(server.pid)?;
        let mut open = vec![few];
        for (http1, per_connection, work) in [
            (
                false,
                1,
                format!("memory: an idle watch, own connection ({watches} open)"),
            ),
            (
                false,
                STREAMS,
                format!("memory: one more idle watch, {STREAMS} to a connection"),
            ),
            (
                true,
                1,
                format!("memory: an idle watch, own HTTP/1.1 connection ({watches} open)"),
            ),
        ] {
            if args.http1 && !http1 {
                continue;
            }
            open.push(
                Watchers::open(
                    http1,
                    server,
                    watches,
                    |_| ALL_PODS.to_owned(),
                    per_connection,
                )
                .await?,
            );
            sleep(GIVEN_BACK).await;
            let after = resident_memory(server.pid)?;
            let each = (after as f64 - before as f64) / watches as f64 / 1024.0;
            table.add(&work, "KiB RSS", true, server.kind, each);
            before = after;
        }
    }
    Ok(())
}

/// Measures the memory that a fresh proxy adds for each further form of the same list.
pub(crate) async fn forms(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    eprintln!("{FORMS} …");
    for &kind in Kind::proxies(args) {
        forms_of(args, servers, table, kind).await?;
    }
    Ok(())
}

async fn forms_of(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
    kind: Kind,
) -> anyhow::Result<()> {
    let fresh = servers.fresh_proxy(args, kind, &[])?;
    sleep(SETTLE).await;
    let mut before = resident_memory(fresh.pid())?;
    for form in [
        Form::Protobuf,
        Form::ProtobufGzip,
        Form::Json,
        Form::JsonGzip,
    ] {
        let connection = fresh.endpoint.connect(args.http1).await?.asking(form);
        let answer = connection.get(ALL_PODS).await?;
        if !form.is_of(answer.headers()) {
            // The simulated API server has no protobuf.
            continue;
        }
        expect_source(&answer, "snapshot")?;
        drop(answer.into_body().collect().await?);
        sleep(GIVEN_BACK).await;
        let after = resident_memory(fresh.pid())?;
        let share = (after as f64 - before as f64) / servers.list_bytes as f64;
        table.add(
            &format!("{FORMS}, all pods in {} more", form.name()),
            "RSS / bytes of the JSON list",
            true,
            kind,
            share,
        );
        before = after;
    }
    Ok(())
}

/// Measures the memory of events that a fresh proxy remembers, for clients of each encoding alone.
pub(crate) async fn history(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
) -> anyhow::Result<()> {
    eprintln!("{HISTORY} …");
    for form in [Form::Protobuf, Form::Json] {
        for &kind in Kind::proxies(args) {
            let Some(share) = history_of(args, servers, form, kind).await? else {
                continue;
            };
            let name = format!("{HISTORY} of {EVENTS} events, {}", form.name());
            table.add(&name, "RSS / bytes of their objects", true, kind, share);
        }
    }
    Ok(())
}

/// Returns the growth over the bytes of the changed objects in JSON. `None` if upstream does not
/// have the form.
async fn history_of(
    args: &Args,
    servers: &Servers,
    form: Form,
    kind: Kind,
) -> anyhow::Result<Option<f64>> {
    let fresh = servers.fresh_proxy(args, kind, &[])?;
    let connection = fresh.endpoint.connect(args.http1).await?.asking(form);
    let answer = connection.get(ALL_PODS).await?;
    if !form.is_of(answer.headers()) {
        return Ok(None);
    }
    expect_source(&answer, "snapshot")?;
    drop(answer.into_body().collect().await?);
    sleep(HISTORY_SETTLES).await;
    let before = resident_memory(fresh.pid())?;
    let writer = &servers.measured[0].writer;
    try_join_all((0..WRITERS).map(|_| async {
        let session = writer.open().await?;
        for _ in 0..EVENTS / WRITERS {
            session.emit().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    let path = format!(
        "{}?resourceVersion={}",
        servers.pods.paths[0],
        writer.version()
    );
    drop(connection.get(&path).await?.into_body().collect().await?);
    sleep(HISTORY_SETTLES).await;
    let grown = resident_memory(fresh.pid())? as f64 - before as f64;
    Ok(Some(grown / (EVENTS * servers.object.len()) as f64))
}

/// Returns the beginning of the names of [`peak_of_slow_lists`]'s rows.
pub(crate) fn slow_lists() -> String {
    format!("memory: peak of {SLOW} slow LISTs of everything")
}

/// Measures the peak memory while many clients slowly read a list of all pods.
pub(crate) async fn peak_of_slow_lists(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
) -> anyhow::Result<()> {
    let name = slow_lists();
    eprintln!("{name} …");
    // Memory that earlier work left with the allocator would hide some of the growth.
    let fresh = servers.fresh_proxy(args, Kind::Proxy, &[])?;
    let connection = fresh.endpoint.connect(args.http1).await?;
    let answer = connection.get(ALL_PODS).await?;
    expect_source(&answer, "snapshot")?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    drop(connection);
    let mut all = Vec::new();
    for server in &servers.measured {
        let (pid, endpoint) = match server.kind {
            Kind::Proxy => (fresh.pid(), fresh.endpoint.clone()),
            Kind::OwnJson => continue,
            Kind::Limit | Kind::KubeApiserver => (server.pid, server.endpoint.clone()),
        };
        if server.kind == Kind::Limit {
            set_answer(&endpoint, &head.headers, body.clone(), None).await?;
        }
        let readers = SlowReaders {
            pid,
            endpoint,
            http1: args.http1,
            readers: SLOW,
            pause: PAUSE,
            length: body.len(),
            lowest: None,
        };
        all.push((server.kind, readers));
    }
    for _ in 0..args.rounds {
        for (kind, readers) in &mut all {
            let share = readers.growth().await?;
            table.add(&name, "% of a list / list", false, *kind, share * 100.0);
        }
    }
    Ok(())
}

/// Clients that slowly read the same list at the same time.
pub(crate) struct SlowReaders {
    /// Process id of the server.
    pub(crate) pid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) http1: bool,
    pub(crate) readers: usize,
    pub(crate) pause: Duration,
    /// Bytes of the list.
    pub(crate) length: usize,
    /// Lowest memory of the server before any measurement so far. The allocator keeps what one
    /// measurement used, which would hide the growth in the next.
    pub(crate) lowest: Option<u64>,
}

impl SlowReaders {
    /// Returns the peak growth of the server's memory for each reader, as a share of the list.
    pub(crate) async fn growth(&mut self) -> anyhow::Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..self.readers {
            connections.push(self.endpoint.connect_narrow(self.http1).await?);
        }
        sleep(SETTLE).await;
        reset_peak_memory(self.pid)?;
        let now = resident_memory(self.pid)?;
        let before = self.lowest.map_or(now, |lowest| lowest.min(now));
        self.lowest = Some(before);
        try_join_all(connections.iter().map(|connection| self.read(connection))).await?;
        let grown = peak_memory(self.pid)?.saturating_sub(before);
        Ok(grown as f64 / self.readers as f64 / self.length as f64)
    }

    /// Reads the list over one connection, with pauses.
    async fn read(&self, connection: &Connection) -> anyhow::Result<()> {
        let mut body = connection.get(ALL_PODS).await?.into_body();
        let (mut read, mut stop) = (0, FlowWindows::NARROW_BYTES as usize);
        while let Some(frame) = body.frame().await {
            read += frame?.data_ref().map_or(0, Bytes::len);
            if read >= stop {
                sleep(self.pause).await;
                stop = read + FlowWindows::NARROW_BYTES as usize;
            }
        }
        let length = self.length;
        ensure!(
            read.abs_diff(length) < length / 50,
            "a slow reader got {read} bytes, not {length}"
        );
        Ok(())
    }
}
