//! Memory that the servers take: for what is held, for watches that wait, for readers that are slow.
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use futures_util::future::try_join_all;
use http_body_util::BodyExt as _;
use tokio::time::sleep;

use crate::Args;
use crate::client::{NARROW, Reach};
use crate::process::{peak, reset_peak, resident};
use crate::servers::{ALL_PODS, Kind, Servers, tell};
use crate::table::Table;
use crate::work::{SETTLE, STREAMS, Watchers, expect_source};

/// Lists that are read slowly at a time.
const SLOW: usize = 50;
/// A slow reader takes [`NARROW`] bytes and waits so long.
const PAUSE: Duration = Duration::from_millis(20);

/// The pods, and watches on them that wait.
pub(crate) async fn held(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let proxy = &servers.measured[0];
    eprintln!("memory …");
    sleep(Duration::from_secs(1)).await;
    let held = resident(proxy.pid)?.saturating_sub(servers.proxy_empty);
    let share = held as f64 / servers.list_bytes as f64;
    table.add("memory: all pods held", "RSS / bytes of their list", false, proxy.kind, share);
    let watches = args.idle_watches;
    for server in &servers.measured {
        let few = Watchers::open(args.http1, server, 16, |_| ALL_PODS.to_owned(), 1).await?;
        sleep(SETTLE).await;
        let mut before = resident(server.pid)?;
        let mut open = vec![few];
        for (http1, per_connection, work) in [
            (false, 1, format!("memory: an idle watch, own connection ({watches} open)")),
            (false, STREAMS, format!("memory: one more idle watch, {STREAMS} to a connection")),
            (true, 1, format!("memory: an idle watch, own HTTP/1.1 connection ({watches} open)")),
        ] {
            if args.http1 && !http1 {
                continue;
            }
            open.push(Watchers::open(http1, server, watches, |_| ALL_PODS.to_owned(), per_connection).await?);
            sleep(Duration::from_secs(1)).await;
            let after = resident(server.pid)?;
            let each = (after as f64 - before as f64) / watches as f64 / 1024.0;
            table.add(&work, "KiB RSS", true, server.kind, each);
            before = after;
        }
    }
    Ok(())
}

/// What rows of [`peak_of_slow_lists`] begin with.
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
    let mut connection = servers.measured[0].reach.connect(args.http1).await?;
    let answer = connection.get(ALL_PODS).await?;
    expect_source(&answer, "snapshot")?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    for round in 0..=args.rounds {
        for server in &servers.measured {
            if server.kind == Kind::Limit {
                tell(&server.reach, &head.headers, body.clone(), None).await?;
            }
            let share = slow_readers(server.pid, &server.reach, args.http1, SLOW, PAUSE, body.len()).await?;
            // The first round fills the allocator's stock.
            if round > 0 {
                table.add(&name, "% of a list / list", false, server.kind, share * 100.0);
            }
        }
    }
    Ok(())
}

/// By how much a server's memory grows at most while so many read a list of `length` bytes slowly, for each of them
/// and as a share of the list.
pub(crate) async fn slow_readers(
    pid: u32,
    reach: &Reach,
    http1: bool,
    readers: usize,
    pause: Duration,
    length: usize,
) -> anyhow::Result<f64> {
    let mut connections = Vec::new();
    for _ in 0..readers {
        connections.push(reach.connect_narrow(http1).await?);
    }
    sleep(SETTLE).await;
    reset_peak(pid)?;
    let before = resident(pid)?;
    let reading = connections.into_iter().map(|mut connection| async move {
        let mut body = connection.get(ALL_PODS).await?.into_body();
        let (mut read, mut stop) = (0, NARROW as usize);
        while let Some(frame) = body.frame().await {
            read += frame?.data_ref().map_or(0, Bytes::len);
            if read >= stop {
                sleep(pause).await;
                stop = read + NARROW as usize;
            }
        }
        ensure!(read.abs_diff(length) < length / 50, "a slow reader got {read} bytes, not {length}");
        Ok(())
    });
    try_join_all(reading).await?;
    let grown = peak(pid)?.saturating_sub(before);
    Ok(grown as f64 / readers as f64 / length as f64)
}
