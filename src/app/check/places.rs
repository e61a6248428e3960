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
    let admin = config.admin_listen;
    match &config.listen {
        Listen::Tls(address) => {
            let listener = can_listen(*address, "--listen", findings).await;
            if clash(*address, admin) || keeps_from(listener, admin).await {
                let message = format!(
                    "{admin} (--admin-listen) cannot be listened on beside {address} (--listen): \
                     give one of them another port"
                );
                findings.error(SUBJECT, message);
                return;
            }
        }
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
    can_listen(admin, "--admin-listen", findings).await;
}

/// Returns `true` if one process cannot listen on both. With port 0 the system chooses another port
/// for each.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let is_same_family = one.is_ipv4() == other.is_ipv4();
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || (is_any && is_same_family))
}

/// Returns `true` if this listener is what keeps the process from listening on the other address: with most
/// settings of the system, `[::]` takes addresses of IPv4, too.
async fn keeps_from(listener: Option<TcpListener>, other: SocketAddr) -> bool {
    if listener.is_none() || TcpListener::bind(other).await.is_ok() {
        return false;
    }
    drop(listener);
    TcpListener::bind(other).await.is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_of_all_addresses_keeps_others_from_its_port() {
        let Ok(any) = TcpListener::bind("[::]:0").await else {
            // Without IPv6, there is nothing to find out.
            return;
        };
        let mut other: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert!(!keeps_from(None, other).await);
        other.set_port(any.local_addr().unwrap().port());
        let is_free_beside = TcpListener::bind(other).await.is_ok();
        assert_eq!(keeps_from(Some(any), other).await, !is_free_beside);
    }

    #[test]
    fn listeners_with_one_port_clash_if_an_address_is_in_both() {
        for (one, other, is_clash) in [
            ("127.0.0.1:6443", "127.0.0.1:6443", true),
            ("0.0.0.0:6443", "127.0.0.1:6443", true),
            ("[::1]:6443", "[::]:6443", true),
            ("127.0.0.1:6443", "127.0.0.1:6444", false),
            ("127.0.0.1:6443", "127.0.0.2:6443", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
        ] {
            let found = clash(one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(found, is_clash, "{one} and {other}");
        }
    }
}
