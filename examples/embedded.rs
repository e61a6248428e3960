//! Runs the proxy inside another program, in front of a simulated API server, and reads through it.
//!
//! ```text
//! cargo run --example embedded
//! ```
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use watershed::app::{self, AppConfig};
use watershed_connect::{ConnectOptions, install_crypto};
use watershed_lab::sim::{Options, Population, SimulatedServer};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    install_crypto();
    let folder = tempfile::tempdir()?;
    let options = Options {
        population: Population::cluster(200, 5),
        ..Options::default()
    };
    let api_server = SimulatedServer::start(options).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    tokio::fs::write(&kubeconfig, api_server.kubeconfig_yaml()).await?;

    // Port 0: the system chooses, and the running proxy says which.
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ConnectOptions {
        kubeconfig: Some(kubeconfig.clone()),
        ..ConnectOptions::default()
    };
    let cert_dir = folder.path().join("certs");
    let proxy = app::start(AppConfig::new(options, any_port, any_port, cert_dir)).await?;

    // The same users and tokens as before, with the proxy's address and certificate authority.
    let mut config = Kubeconfig::read_from(&kubeconfig)?;
    let cluster = config.clusters[0]
        .cluster
        .as_mut()
        .context("the kubeconfig names no cluster")?;
    let address = proxy.address.context("the proxy listens on no address")?;
    let ca = proxy
        .ca_file
        .as_ref()
        .context("the proxy made no certificate of its own")?;
    cluster.server = Some(format!("https://{address}"));
    cluster.certificate_authority_data = None;
    cluster.certificate_authority = Some(ca.display().to_string());
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let pods: Api<Pod> = Api::all(Client::try_from(config)?);

    let list = pods.list(&ListParams::default()).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    print(&format!(
        "{} pods at resourceVersion {version}",
        list.items.len()
    ));
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()));
    while let Some(event) = events.try_next().await? {
        if matches!(event, watcher::Event::InitDone) {
            print("the watch has sent every pod");
            break;
        }
    }
    print(&format!(
        "watches of pods at the API server: {:?}",
        api_server.stats().open_watches.get("pods")
    ));

    proxy.shut_down().await;
    api_server.shutdown().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn print(line: &str) {
    println!("{line}");
}
