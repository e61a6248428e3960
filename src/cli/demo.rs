//! `watershed demo`: starts the proxy that the demo puts in front of its simulated API server.
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use anyhow::Context;
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use watershed_connect::ConnectOptions;
use watershed_lab::demo::{self, DemoArgs, DemoProxy, DemoUpstream};

use super::failure::INTERRUPTED;
use super::interrupt::interruptible;
use crate::app::{self, AppConfig};
use crate::telemetry;

/// Log filter unless `--log-level` is given. Log lines would break the demo's display.
const LOG_LEVEL: &str = "warn";

/// Runs the demo. Fails if a client's state differs from the server's.
pub(super) async fn run(
    args: DemoArgs,
    format: telemetry::LogFormat,
    level: Option<&str>,
) -> anyhow::Result<ExitCode> {
    telemetry::logs(format, level.unwrap_or(LOG_LEVEL))?;
    let interrupt = CancellationToken::new();
    let start = Box::new(|upstream| start_proxy(upstream).boxed());
    let equal = demo::run(args, start, interrupt.clone());
    let Some(equal) = interruptible(&interrupt, equal).await else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    Ok(if equal? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts the proxy as `watershed serve` does, on free ports. Its files are in a temporary folder.
async fn start_proxy(upstream: DemoUpstream) -> anyhow::Result<DemoProxy> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
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
        .context("the proxy has no self-signed certificate")?;
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
