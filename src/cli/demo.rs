//! `watershed demo`: starts the proxy that the demo puts in front of its simulated API server.
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use anyhow::Context;

use crate::app::{self, AppConfig};
use crate::telemetry;
use watershed_connect::ConnectOptions;
use watershed_lab::demo::{self, DemoArgs, DemoProxy, DemoUpstream};

/// Log lines would tear the picture apart: only what went wrong is said, unless asked for more.
const LOG_LEVEL: &str = "warn";

pub(super) async fn run(
    args: DemoArgs,
    format: telemetry::LogFormat,
    level: Option<&str>,
) -> anyhow::Result<ExitCode> {
    telemetry::logs(format, level.unwrap_or(LOG_LEVEL))?;
    let equal = demo::run(args, start_proxy).await?;
    Ok(if equal {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The proxy as `watershed serve` runs it, on free ports, with everything it writes in a temporary
/// folder.
async fn start_proxy(upstream: DemoUpstream) -> anyhow::Result<DemoProxy> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let kubeconfig = folder.path().join("kubeconfig");
    tokio::fs::write(&kubeconfig, upstream.kubeconfig_yaml).await?;
    let options = ConnectOptions {
        kubeconfig: Some(kubeconfig),
        ..ConnectOptions::default()
    };
    let free_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = AppConfig::new(options, free_port, free_port, folder.path().join("certs"));
    let running = app::start(config).await?;
    let ca = running
        .ca_file
        .as_deref()
        .context("the proxy made no certificate of its own")?;
    let ca_pem = tokio::fs::read_to_string(ca).await?;
    Ok(DemoProxy {
        address: running.address.context("the proxy listens on no address")?,
        ca_pem,
        admin_address: Some(running.admin_address),
        shutdown: Box::pin(async move {
            running.shut_down().await;
            drop(folder);
        }),
    })
}
