//! The addresses and sockets to listen on.
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::finding::Findings;
use crate::app::config::{AppConfig, Listen};
use crate::app::listen::refusal;
use crate::listener::socket;

const SUBJECT: &str = "listen";

pub(super) async fn examine(config: &AppConfig, findings: &mut Findings) {
    // Kept until the other is tried: both may be the same.
    let mut _listener = None;
    match &config.listen {
        Listen::Tls(address) => _listener = can_listen(*address, "--listen", findings).await,
        Listen::Socket { path, .. } => match socket::can_bind(path).await {
            Ok(()) => findings.ok(
                SUBJECT,
                format!("clients can connect to {}", path.display()),
            ),
            Err(error) => {
                let message = refusal(&path.display(), "--listen", &error);
                refused(&error, message, findings);
            }
        },
    }
    can_listen(config.admin_listen, "--admin-listen", findings).await;
}

async fn can_listen(
    address: SocketAddr,
    flag: &str,
    findings: &mut Findings,
) -> Option<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => {
            findings.ok(SUBJECT, format!("{address} is free ({flag})"));
            Some(listener)
        }
        Err(error) => {
            refused(&error, refusal(&address, flag, &error), findings);
            None
        }
    }
}

/// Adds the error of a listener. An address in use is a warning only: a proxy with this very
/// configuration may be running.
fn refused(error: &io::Error, message: String, findings: &mut Findings) {
    if error.kind() == io::ErrorKind::AddrInUse {
        findings.warning(SUBJECT, message);
    } else {
        findings.error(SUBJECT, message);
    }
}
