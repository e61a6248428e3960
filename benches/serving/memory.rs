//! Memory that the servers take: for what is held, for watches that wait, for readers that are
//! slow.
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::BodyExt as _;
use tokio::time::sleep;
use watershed_lab::client::FlowWindows;
use watershed_lab::process::{peak_memory, reset_peak_memory, resident_memory};

use crate::Args;
use crate::client::Endpoint;
use crate::servers::{ALL_PODS, Kind, Servers, tell};
use crate::table::Table;
use crate::work::{SETTLE, STREAMS, Watchers, expect_source};

/// Lists that are read slowly at a time.
const SLOW: usize = 50;
/// A slow reader takes [`FlowWindows::NARROW_BYTES`] and waits so long.
const PAUSE: Duration = Duration::from_millis(20);

/// Until what was given back has left the process: allocators keep it for a while.
const GIVEN_BACK: Duration = Duration::from_secs(5);

/// The pods, and watches on them that wait.
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

/// Returns the beginning of the names of [`peak_of_slow_lists`]'s rows.
pub(crate) fn slow_lists() -> String {
    format!("memory: peak of {SLOW} slow LISTs of everything")
}

/// Lists of everything that are read slowly, all at a time.
pub(crate) async fn peak_of_slow_lists(
    args: &Args,
    servers: &Servers,
    table: &mut Table,
) -> anyhow::Result<()> {
    let name = slow_lists();
    eprintln!("{name} …");
    // What others left behind in the allocator's stock would hide some of it.
    let fresh = servers.fresh_proxy(args)?;
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
            Kind::Limit | Kind::KubeApiserver => (server.pid, server.endpoint.clone()),
        };
        if server.kind == Kind::Limit {
            tell(&endpoint, &head.headers, body.clone(), None).await?;
        }
        let readers = SlowReaders {
            pid,
            endpoint,
            http1: args.http1,
            readers: SLOW,
            pause: PAUSE,
            length: body.len(),
        };
        all.push((server.kind, readers, None));
    }
    for _ in 0..args.rounds {
        for (kind, readers, floor) in &mut all {
            let share = readers.growth(floor).await?;
            table.add(&name, "% of a list / list", false, *kind, share * 100.0);
        }
    }
    Ok(())
}

/// Many who read a list slowly at a time.
pub(crate) struct SlowReaders {
    /// Process id of the server.
    pub(crate) pid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) http1: bool,
    pub(crate) readers: usize,
    pub(crate) pause: Duration,
    /// Bytes of the list.
    pub(crate) length: usize,
}

impl SlowReaders {
    /// By how much the server's memory grows at most, for each reader and as a share of the list.
    ///
    /// `floor` is the memory before the first time: what the allocator keeps of it would hide the
    /// next time's growth.
    pub(crate) async fn growth(&self, floor: &mut Option<u64>) -> anyhow::Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..self.readers {
            connections.push(self.endpoint.connect_narrow(self.http1).await?);
        }
        sleep(SETTLE).await;
        reset_peak_memory(self.pid)?;
        let now = resident_memory(self.pid)?;
        let before = *floor.insert(floor.map_or(now, |floor| floor.min(now)));
        let reading = connections.into_iter().map(|connection| async move {
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
        });
        try_join_all(reading).await?;
        let grown = peak_memory(self.pid)?.saturating_sub(before);
        Ok(grown as f64 / self.readers as f64 / self.length as f64)
    }
}
