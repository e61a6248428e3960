//! `watershed serve`: its flags, and running it to its end.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tokio::signal::unix::{SignalKind, signal};

use super::access::Callers;
use super::admin::{ADMIN, AdminFlags};
use super::limits::LimitFlags;
use super::trouble::Misused;
use super::{audit, config};
use crate::app::{self, AppConfig};
use crate::serve::CachingPolicy;
use watershed_connect::ConnectOptions;

/// What flags are about, in the order of `--help`.
const HELD: &str = "What is held";
const API_SERVER: &str = "API server";
const CLIENTS: &str = "Where clients connect";

/// Flags of `watershed serve`.
#[derive(Args, Debug)]
pub(super) struct Serve {
    /// Configuration file (YAML): how consistent reads are answered and what is kept in memory, for
    /// all types and for some, and the parts of types that are held. Without it, nothing is kept of
    /// secrets.
    #[arg(help_heading = HELD, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node this runs on, for what else runs there: of pods those of the node, the node itself
    /// and its lease are held, nothing of other types, unless the configuration file names more.
    #[arg(help_heading = HELD, long, env = "NODE_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    node_name: Option<String>,
    /// Kubeconfig of the proxy's own identity at the API server. Without it: $KUBECONFIG, then the
    /// in-cluster service account, then ~/.kube/config.
    #[arg(help_heading = API_SERVER, long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one.
    #[arg(help_heading = API_SERVER, long, value_name = "NAME")]
    context: Option<String>,
    /// Address of the API server, instead of the kubeconfig's. Repeat it for several servers of one
    /// cluster.
    #[arg(help_heading = API_SERVER, long = "server", value_name = "URL")]
    servers: Vec<String>,
    /// Where clients connect: an address, by TLS (HTTP/2 and HTTP/1.1), or unix:PATH, by plain
    /// HTTP/1.1.
    #[arg(help_heading = CLIENTS, long, default_value = "127.0.0.1:6443", value_name = "ADDR:PORT|unix:PATH")]
    listen: Place,
    /// Mode of the Unix socket's file, in octal digits: who may write to it may connect.
    #[arg(help_heading = CLIENTS, long, default_value = "0600", value_parser = mode, value_name = "MODE")]
    listen_socket_mode: u32,
    /// Serving certificate (PEM). Without it, a self-signed pair is made in --cert-dir.
    #[arg(help_heading = CLIENTS, long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the serving certificate (PEM).
    #[arg(help_heading = CLIENTS, long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// A further name or address in the self-signed certificate. May be repeated.
    #[arg(help_heading = CLIENTS, long = "tls-san", value_name = "NAME")]
    tls_sans: Vec<String>,
    /// Where the self-signed certificate and its CA (ca.crt, for clients to trust) are kept.
    #[arg(help_heading = CLIENTS, long, default_value = "watershed-certs", value_name = "DIR")]
    cert_dir: PathBuf,
    /// Where /status, /metrics, /livez, /readyz, /healthz and /debug/config are served; by plain
    /// HTTP, unless --admin-tls-cert is given.
    #[arg(help_heading = ADMIN, long, default_value = "127.0.0.1:6480", value_name = "ADDR:PORT")]
    admin_listen: SocketAddr,
    /// How long events are kept, so that a watch may start from an old version (seconds).
    #[arg(help_heading = HELD, long, default_value_t = 300, value_name = "SECONDS")]
    window_seconds: u64,
    /// Upper bound of the events kept for one type in one representation (MiB).
    #[arg(help_heading = HELD, long, default_value_t = 256, value_name = "MIB")]
    window_mib: usize,
    /// An aggregated API group whose types are cached, too; all others are forwarded. Only for
    /// servers whose answers do not depend on who asks. May be repeated.
    #[arg(help_heading = HELD, long = "cache-aggregated", value_name = "GROUP")]
    aggregated: Vec<String>,
    /// How long open requests and watches may take to end after SIGTERM (seconds).
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    drain_seconds: u64,
    #[command(flatten)]
    callers: Callers,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    audit: audit::Flags,
    #[command(flatten)]
    admin: AdminFlags,
}

impl Serve {
    pub(super) async fn run(self: Box<Self>) -> anyhow::Result<ExitCode> {
        // Before anything else, so that a signal during the start ends it, too.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let config = self.config().map_err(Misused::from)?;
        let started = tokio::select! {
            started = app::start(config) => started?,
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::select! {
            () = started.shut_down() => Ok(ExitCode::SUCCESS),
            // Asked twice: at once.
            _ = terminate.recv() => Ok(ExitCode::FAILURE),
            _ = interrupt.recv() => Ok(ExitCode::FAILURE),
        }
    }

    /// What the flags and the configuration file say.
    pub(super) fn config(self) -> anyhow::Result<AppConfig> {
        let upstream = ConnectOptions {
            kubeconfig: self.kubeconfig,
            context: self.context,
            servers: self.servers,
            user_agent: String::new(),
        };
        let listen = match self.listen {
            Place::Address(address) => app::Listen::Tls(address),
            Place::Socket(path) => app::Listen::Socket {
                path,
                mode: self.listen_socket_mode,
            },
        };
        if let (true, app::Listen::Tls(address)) = (self.callers.single_identity, &listen) {
            ensure!(
                address.ip().is_loopback(),
                "{address} is no loopback address: whoever reaches it would be the proxy (--single-identity, --listen)"
            );
        }
        let mut config = AppConfig::new(upstream, listen, self.admin_listen, self.cert_dir);
        config.certificate = self.tls_cert.zip(self.tls_key);
        config.names = self.tls_sans;
        config.aggregated = self.aggregated;
        config.scopes.window.age = Duration::from_secs(self.window_seconds);
        config.scopes.window.bytes = self.window_mib << 20;
        self.callers.apply(&mut config.access)?;
        config.drain = Duration::from_secs(self.drain_seconds);
        config.audit = self.audit.config()?;
        config.policy = self
            .node_name
            .as_deref()
            .map(CachingPolicy::of_node)
            .unwrap_or_default();
        if let Some(file) = &self.config {
            config.policy = config::read(file, config.policy)?;
        }
        config.policy.users = self.limits.users();
        config.limits = self.limits.connections();
        config.admin = self.admin.protection();
        Ok(config)
    }
}

/// Where to listen, as a flag has it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Address(SocketAddr),
    Socket(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the socket has no path".to_owned()),
            Some(path) => Ok(Self::Socket(path.into())),
            None => text
                .parse()
                .map(Self::Address)
                .map_err(|_| "neither ADDR:PORT nor unix:PATH".to_owned()),
        }
    }
}

/// The mode of a file.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|error| error.to_string())?;
    if mode > 0o777 {
        Err("it is larger than 0777".to_owned())
    } else {
        Ok(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_addresses_are_told_apart() {
        assert_eq!(
            "[::1]:6443".parse(),
            Ok(Place::Address("[::1]:6443".parse().unwrap()))
        );
        assert_eq!(
            "unix:/run/api.sock".parse(),
            Ok(Place::Socket("/run/api.sock".into()))
        );
        for text in ["", "unix:", "localhost", "6443", "/run/api.sock"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
        assert_eq!((mode("0600"), mode("660")), (Ok(0o600), Ok(0o660)));
        assert!(
            ["", "8", "1777", "-1", "rw"]
                .iter()
                .all(|text| mode(text).is_err())
        );
    }
}
