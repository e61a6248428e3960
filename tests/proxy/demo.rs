//! The demonstration, with the real proxy.
use std::process::Stdio;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use watershed_lab::demo::{self, DemoArgs, DemoProxy, DemoUpstream};
use watershed_lab::sim::{Options, Population, SimulatedServer};

use crate::support::client::within;
use crate::support::{PATIENCE, start_proxy};

fn args(patience: Duration) -> DemoArgs {
    DemoArgs {
        run_for: Some(Duration::from_secs(2)),
        pods: 100,
        nodes: 5,
        clients: 40,
        rate: "50/s".parse().unwrap(),
        seed: 1,
        direct: false,
        patience,
    }
}

async fn proxy(kubeconfig: &str) -> anyhow::Result<DemoProxy> {
    let (running, folder) = start_proxy(kubeconfig).await?;
    Ok(DemoProxy {
        address: running.address.unwrap(),
        ca_pem: std::fs::read_to_string(running.ca_file.as_ref().unwrap())?,
        admin_address: Some(running.admin_address),
        shutdown: Box::pin(async move {
            running.shut_down().await;
            drop(folder);
        }),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_demo_client_sees_what_upstream_holds() {
    let start =
        |upstream: DemoUpstream| async move { proxy(&upstream.kubeconfig_yaml).await }.boxed();
    let equal = demo::run(args(PATIENCE), Box::new(start), CancellationToken::new()).await;
    assert!(equal.unwrap());
}

/// The planted fault: the proxy's upstream is a twin of the demo's server without any writes. Every
/// client sees the same objects and misses every change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_reports_clients_whose_view_differs() {
    let population = Population {
        configmaps: 0,
        secrets: 0,
        ..Population::cluster(100, 5)
    };
    let twin = SimulatedServer::start(Options {
        seed: 1,
        population,
        ..Options::default()
    })
    .await
    .unwrap();
    let kubeconfig = twin.kubeconfig_yaml();
    let start = |_| async move { proxy(&kubeconfig).await }.boxed();
    let equal = demo::run(
        args(Duration::from_secs(3)),
        Box::new(start),
        CancellationToken::new(),
    )
    .await;
    assert!(!equal.unwrap());
    twin.shutdown().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_ends_with_an_error_if_it_cannot_print() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = Command::new(env!("CARGO_BIN_EXE_watershed"));
    command
        .args("demo --direct --pods 20 --nodes 2 --clients 5".split(' '))
        .stdout(full.unwrap())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let done = command.spawn().unwrap().wait_with_output();
    let done = within("the demo", done).await.unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("cannot write to standard output"), "{text}");
}
