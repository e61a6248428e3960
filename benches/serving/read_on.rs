//! Memory of a proxy whose clients keep reading all pods, after what they do not read was folded.
use std::time::Duration;

use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep};
use watershed_lab::process::resident_memory;

use crate::Args;
use crate::client::Connection;
use crate::form::Form;
use crate::servers::{ALL_PODS, Kind, Servers};
use crate::table::Table;
use crate::work::expect_source;

/// Beginning of the names of these rows.
pub(crate) const READ_ON: &str = "memory: read on";
/// Time for which clients read. A proxy folds what nobody has read for a minute.
const LASTS: Duration = Duration::from_secs(100);
/// Pause between two lists of a client. Freed memory leaves the process meanwhile.
const PAUSE: Duration = Duration::from_secs(8);

/// Measures fresh proxies whose clients read in JSON first, and then in protobuf as well: as it is,
/// and with gzip, which client-go asks for.
pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    eprintln!("{READ_ON} …");
    let codings = [
        [Form::Json, Form::Protobuf],
        [Form::JsonGzip, Form::ProtobufGzip],
    ];
    for [json, protobuf] in codings {
        for &kind in Kind::proxies(args) {
            let proxy = servers.fresh_proxy(args, kind, &[])?;
            let empty = resident_memory(proxy.pid())?;
            let mut clients = Vec::new();
            for (form, name) in [
                (json, json.name().to_owned()),
                (protobuf, format!("{} and {}", json.name(), protobuf.name())),
            ] {
                let connection = proxy.endpoint.connect(args.http1).await?;
                clients.push((form, connection.asking(form)));
                read_on(&clients).await?;
                let held = resident_memory(proxy.pid())?.saturating_sub(empty);
                let share = held as f64 / servers.list_bytes as f64;
                table.add(
                    &format!("{READ_ON} in {name}"),
                    "RSS / bytes of the JSON list",
                    true,
                    kind,
                    share,
                );
            }
        }
    }
    Ok(())
}

/// Lists all pods on each connection in turn, again and again. Every list after the first is one
/// from memory.
async fn read_on(clients: &[(Form, Connection)]) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut is_first = true;
    while begun.elapsed() < LASTS {
        for (form, connection) in clients {
            let answer = connection.get(ALL_PODS).await?;
            form.expect(answer.headers())?;
            if !is_first {
                expect_source(&answer, "snapshot")?;
            }
            drop(answer.into_body().collect().await?);
        }
        is_first = false;
        sleep(PAUSE).await;
    }
    Ok(())
}
