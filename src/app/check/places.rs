//! Where clients and operators are to connect.
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::Findings;
use crate::app::{AppConfig, Listen};
use crate::listener::socket;

const SUBJECT: &str = "listen";

pub(super) async fn examine(config: &AppConfig, findings: &mut Findings) {
    match &config.listen {
        Listen::Tls(address) => can_listen(*address, "--listen", findings).await,
        Listen::Socket { path, .. } => match socket::can_bind(path).await {
            Ok(()) => findings.ok(
                SUBJECT,
                format!("clients can connect to {}", path.display()),
            ),
            Err(error) => {
                let told = format!("cannot listen on {} (--listen): {error}", path.display());
                refused(&error, told, findings);
            }
        },
    }
    can_listen(config.admin_listen, "--admin-listen", findings).await;
}

async fn can_listen(address: SocketAddr, flag: &str, findings: &mut Findings) {
    match TcpListener::bind(address).await {
        Ok(_) => findings.ok(SUBJECT, format!("{address} is free ({flag})")),
        Err(error) => refused(
            &error,
            format!("cannot listen on {address} ({flag}): {error}"),
            findings,
        ),
    }
}

/// What is taken is perhaps taken by the very proxy that is asked about.
fn refused(error: &io::Error, told: String, findings: &mut Findings) {
    if error.kind() == io::ErrorKind::AddrInUse {
        findings.warning(
            SUBJECT,
            format!("{told}: by another program, or by a proxy that runs already?"),
        );
    } else {
        findings.error(SUBJECT, told);
    }
}
