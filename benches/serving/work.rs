//! The measured work. In each round every server does it in turn, so that a disturbance of the
//! machine affects all of them.
use std::time::Duration;

use anyhow::ensure;
use hyper::body::Incoming;
use tokio::time::sleep;

use crate::Args;
use crate::servers::Servers;
use crate::table::Table;
use crate::upstream;
use crate::{abuse, consistent, encodings, fan, forward, memory, read_on, reads, start};

/// Time for a server to finish its pending work.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);
pub(crate) const WARM_UP: Duration = Duration::from_millis(500);

/// Runs every kind of work whose name contains the wanted word.
pub(crate) async fn all(args: &Args, servers: &Servers, table: &mut Table) -> anyhow::Result<()> {
    let wanted = |name: &str| args.only.as_deref().is_none_or(|word| name.contains(word));
    // Memory first, while the servers are fresh.
    if wanted("memory: held, idle watches") {
        memory::held(args, servers, table).await?;
    }
    if wanted(memory::FORMS) {
        memory::forms(args, servers, table).await?;
    }
    if wanted(memory::HISTORY) {
        memory::history(args, servers, table).await?;
    }
    // Minutes long, and of use only beside a proxy that derives nothing.
    if args.own_json && wanted(read_on::READ_ON) {
        read_on::all(args, servers, table).await?;
    }
    if wanted(&memory::slow_lists()) {
        memory::peak_of_slow_lists(args, servers, table).await?;
    }
    for reads in reads::all(args, servers) {
        if wanted(&reads.name) {
            reads.measure(args, servers, table).await?;
        }
    }
    let names = forward::names(args, servers);
    if wanted(&names.real) {
        forward::from_kube_apiserver(args, servers, table, &names.real).await?;
    }
    if [&names.get, &names.list, &names.log, &names.link]
        .into_iter()
        .any(|name| wanted(name))
    {
        forward::all(args, servers, table, wanted).await?;
    }
    consistent::all(args, servers, table, wanted).await?;
    fan::all(args, servers, table, wanted).await?;
    // Work that needs more pods comes last.
    let (one_node, starting) = (reads::one_node_of_more(args), wanted(&start::name(args)));
    let one_node = (args.start_pods > args.pods && wanted(&one_node.name)).then_some(one_node);
    if starting || one_node.is_some() {
        grow(args, servers).await?;
    }
    if let Some(one_node) = one_node {
        one_node.measure(args, servers, table).await?;
    }
    if starting {
        start::all(args, servers, table).await?;
    }
    // These take long, so they run on request only.
    if args.only.as_deref().is_some_and(|word| word == "encodings") {
        encodings::all(args, servers, table).await?;
    }
    if args.only.as_deref().is_some_and(|word| word == "abuse") {
        abuse::all(args, servers, table).await?;
    }
    Ok(())
}

/// Creates pods until a start takes a while, and waits until the proxy has them.
async fn grow(args: &Args, servers: &Servers) -> anyhow::Result<()> {
    if args.start_pods <= args.pods {
        return Ok(());
    }
    eprintln!("making {} pods …", args.start_pods);
    upstream::grow(
        &servers.upstream.endpoint,
        &servers.pods,
        args.nodes,
        args.start_pods,
    )
    .await?;
    let all = format!(r#""remainingItemCount":{}"#, args.start_pods - 1);
    let proxies = servers.measured.iter().filter(|it| it.kind.is_proxy());
    for proxy in proxies {
        let connection = proxy.endpoint.connect(false).await?;
        while memchr::memmem::find(&connection.fetch(start::ONE).await?, all.as_bytes()).is_none() {
            sleep(SETTLE).await;
        }
    }
    Ok(())
}

/// Checks that the proxy answered from the wanted source.
pub(crate) fn expect_source(answer: &http::Response<Incoming>, wanted: &str) -> anyhow::Result<()> {
    let source = answer
        .headers()
        .get("x-watershed-source")
        .and_then(|value| value.to_str().ok());
    let source = source.unwrap_or_default();
    ensure!(
        source.starts_with(wanted),
        "the proxy answered from {source:?}, not from {wanted}"
    );
    Ok(())
}
