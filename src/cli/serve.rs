//! `watershed serve`: its flags, and its run until a signal.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tokio::signal::unix::{SignalKind, signal};
use watershed_connect::ConnectOptions;

use super::admin::{ADMIN, AdminFlags};
use super::audit::AuditFlags;
use super::callers::CallerFlags;
use super::checkpoint::CheckpointFlags;
use super::config;
use super::duration::{MAX_SECONDS, duration};
use super::failure::InvalidUsage;
use super::limits::LimitFlags;
use super::request_filter::RequestFilterFlags;
use super::share::{MILLION, share};
use super::tls::TlsFlags;
use crate::app::{self, AppConfig};
use crate::budget::{container_limit, parse_quantity};
use crate::serve::{CachingPolicy, Verification};
use crate::upstream::ListCompression;

/// The smallest memory limit, in bytes. A smaller number probably lacks its unit.
const SMALLEST_LIMIT: u64 = 1 << 20;
/// The default of `--memory-limit`, in percent of the control group's limit.
const SHARE_OF_GROUP: u64 = 80;
/// Headings of flags, in the order of `--help`.
const CACHE: &str = "Cache";
const API_SERVER: &str = "API server";
const CLIENTS: &str = "Client listener";

/// Flags of `watershed serve`.
#[derive(Args, Debug)]
pub(super) struct ServeCommand {
    /// Configuration file (YAML): source of consistent reads, cache modes and scopes, for all types
    /// or for single ones. Without it, all types are cached except secrets.
    #[arg(help_heading = CACHE, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the node that this proxy serves. Only the node's pods, the node itself and its lease
    /// are cached, unless the configuration file adds types. Unset NODE_NAME for a proxy that
    /// serves other clients.
    #[arg(
        help_heading = CACHE,
        long,
        env = "NODE_NAME",
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    node_name: Option<String>,
    /// Kubeconfig of the proxy's own identity at the API server. Default: $KUBECONFIG, then the
    /// in-cluster service account, then ~/.kube/config.
    #[arg(help_heading = API_SERVER, long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one.
    #[arg(help_heading = API_SERVER, long, value_name = "NAME")]
    context: Option<String>,
    /// URL of the API server, instead of the kubeconfig's. May be repeated for several servers of
    /// one cluster.
    #[arg(help_heading = API_SERVER, long = "server", value_name = "URL")]
    servers: Vec<String>,
    /// Accept an API server on another machine by plain HTTP, or without verification of its
    /// certificate (insecure-skip-tls-verify).
    #[arg(help_heading = API_SERVER, long)]
    allow_insecure_upstream: bool,
    /// Ask the API server to compress lists and watches of cached types: true, false, or auto
    /// (if the server is another watershed or not on this machine).
    #[arg(
        help_heading = API_SERVER,
        long,
        num_args = 0..=1,
        default_value = "auto",
        default_missing_value = "true",
        value_parser = compression,
        value_name = "WHEN"
    )]
    upstream_compression: ListCompression,
    /// Address for clients, with TLS (HTTP/2 and HTTP/1.1); or unix:PATH for a Unix socket, with
    /// plain HTTP/1.1.
    #[arg(
        help_heading = CLIENTS,
        long,
        default_value = "127.0.0.1:6443",
        value_name = "ADDR:PORT|unix:PATH"
    )]
    listen: ListenAddress,
    /// Mode of the Unix socket's file (octal). A client needs write permission to connect.
    #[arg(
        help_heading = CLIENTS,
        long,
        default_value = "0600",
        value_parser = socket_mode,
        value_name = "MODE"
    )]
    listen_socket_mode: u32,
    /// Serving certificate (PEM). Default: a self-signed one, which is created in --cert-dir.
    #[arg(help_heading = CLIENTS, long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the serving certificate (PEM).
    #[arg(help_heading = CLIENTS, long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Additional name or address in the self-signed certificate. May be repeated.
    #[arg(help_heading = CLIENTS, long = "tls-san", value_name = "NAME")]
    tls_sans: Vec<String>,
    /// Folder for the self-signed certificate and its CA (ca.crt, for clients to trust).
    #[arg(help_heading = CLIENTS, long, default_value = "watershed-certs", value_name = "DIR")]
    cert_dir: PathBuf,
    /// Address for /status, /metrics, /livez, /readyz, /healthz and /debug/config, with plain HTTP
    /// unless --admin-tls-cert is given.
    #[arg(help_heading = ADMIN, long, default_value = "127.0.0.1:6480", value_name = "ADDR:PORT")]
    admin_listen: SocketAddr,
    /// Age up to which events are kept, so that a watch can start from an old version (seconds).
    /// The last 100 of one type in one representation are kept however old they are, even with 0, as
    /// long as they take no more than 1 MiB. This exception does not apply to the resource `events`.
    #[arg(
        help_heading = CACHE,
        long,
        default_value_t = 300,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS)
    )]
    window_seconds: u64,
    /// Size up to which events are kept for one type in one representation (MiB).
    #[arg(help_heading = CACHE, long, default_value_t = 256, value_name = "MIB")]
    window_mib: usize,
    /// Memory that the process may use, as Kubernetes writes quantities (512Mi, 2Gi), at least 1Mi; 0
    /// for no limit. When it runs short, less is cached and more is forwarded. Default: 80 % of the
    /// control group's limit, if there is one.
    #[arg(help_heading = CACHE, long, value_parser = parse_quantity, value_name = "QUANTITY")]
    memory_limit: Option<u64>,
    /// Derive the JSON of built-in types from protobuf, so that the API server has one list and watch
    /// for both.
    #[arg(
        help_heading = CACHE,
        long,
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "BOOL"
    )]
    derive_json: bool,
    /// Time for which a type is still served from memory after its upstream watch was lost; 0s for
    /// no limit. Then its reads are forwarded and its watches end, until it is followed again.
    #[arg(
        help_heading = CACHE,
        long,
        default_value = "5m",
        value_parser = duration,
        value_name = "DURATION"
    )]
    max_staleness: Duration,
    /// Interval at which a part of each cached type is compared with the API server at the same
    /// resourceVersion; 0s for never. A type that differs is listed again. Default: 5m; 1h with
    /// --node-name.
    #[arg(help_heading = CACHE, long, value_parser = duration, value_name = "DURATION")]
    self_check_interval: Option<Duration>,
    /// Share of the gets and lists from memory that are compared with the API server, byte for byte
    /// and at the same resourceVersion, after the client has its answer: 0.1% or 0.001. At most ten
    /// a second are compared, for which upstream reads 4 MiB a second on average. Default: 0; 100%
    /// with --shadow.
    #[arg(help_heading = CACHE, long, value_parser = share, value_name = "SHARE")]
    verify: Option<u32>,
    /// Let the API server answer instead of memory, and report what memory would have answered: in
    /// watershed_shadow_answers_total and the header X-Watershed-Shadow. The proxy's own limits and
    /// refusals still apply.
    #[arg(help_heading = CACHE, long)]
    shadow: bool,
    /// Aggregated API group to cache; others are forwarded. Its server's answers must not depend on
    /// the caller. May be repeated.
    #[arg(help_heading = CACHE, long = "cache-aggregated", value_name = "GROUP")]
    aggregated: Vec<String>,
    /// Time limit after SIGTERM for open requests and watches to end (seconds).
    #[arg(
        long,
        default_value_t = 20,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS)
    )]
    drain_seconds: u64,
    #[command(flatten)]
    checkpoint: CheckpointFlags,
    #[command(flatten)]
    callers: CallerFlags,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    audit: AuditFlags,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    filter: RequestFilterFlags,
    #[command(flatten)]
    admin: AdminFlags,
}

impl ServeCommand {
    /// Runs the proxy until it has drained after a signal.
    pub(super) async fn run(self: Box<Self>) -> anyhow::Result<ExitCode> {
        // Signals are handled first, so that one during the start ends the process in order.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let config = self.config().map_err(InvalidUsage::from)?;
        let mut running = tokio::select! {
            started = app::start(config) => started?,
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        };
        let code = tokio::select! {
            _ = terminate.recv() => ExitCode::SUCCESS,
            _ = interrupt.recv() => ExitCode::SUCCESS,
            task = running.failed() => {
                tracing::error!(
                    task,
                    "a task of the proxy failed; shutting down, so that the process is restarted"
                );
                ExitCode::FAILURE
            }
        };
        tokio::select! {
            () = running.shut_down() => Ok(code),
            // A second signal does not wait for the drain.
            _ = terminate.recv() => Ok(ExitCode::FAILURE),
            _ = interrupt.recv() => Ok(ExitCode::FAILURE),
        }
    }

    /// Returns the configuration from the flags and the configuration file.
    pub(super) fn config(self) -> anyhow::Result<AppConfig> {
        let upstream = ConnectOptions {
            kubeconfig: self.kubeconfig,
            context: self.context,
            servers: self.servers,
            allow_insecure: self.allow_insecure_upstream,
            user_agent: String::new(),
        };
        let listen = match self.listen {
            ListenAddress::Address(address) => app::Listen::Tls(address),
            ListenAddress::Socket(path) => app::Listen::Socket {
                path,
                mode: self.listen_socket_mode,
            },
        };
        if let (true, app::Listen::Tls(address)) = (self.callers.single_identity, &listen) {
            ensure!(
                address.ip().is_loopback(),
                "{address} is not a loopback address: every client that reaches it would have the \
                 proxy's rights (--single-identity, --listen)"
            );
        }
        let mut config = AppConfig::new(upstream, listen, self.admin_listen, self.cert_dir);
        config.certificate = self.tls_cert.zip(self.tls_key);
        config.names = self.tls_sans;
        config.aggregated = self.aggregated;
        config.scopes.window.age = Duration::from_secs(self.window_seconds);
        config.scopes.window.bytes = self.window_mib.saturating_mul(1 << 20);
        config.scopes.max_staleness = self.max_staleness;
        config.scopes.compression = self.upstream_compression;
        self.checkpoint.apply(&mut config);
        self.callers.apply(&mut config.access)?;
        config.drain = Duration::from_secs(self.drain_seconds);
        config.audit = self.audit.config()?;
        if self.node_name.is_some() {
            config.scopes = config.scopes.on_node();
            config.access = config.access.on_node();
        }
        if let Some(interval) = self.self_check_interval {
            config.scopes.self_check = interval;
        }
        config.policy = self
            .node_name
            .as_deref()
            .map(CachingPolicy::of_node)
            .unwrap_or_default();
        if let Some(file) = &self.config {
            config.policy = config::read(file, config.policy)?;
        }
        let derive_json = &mut config.policy.scope_policy.derive_json;
        derive_json.get_or_insert(self.derive_json);
        // Also for the scopes that the proxy opens for itself.
        if let Some(limit) = config.policy.scope_policy.max_staleness {
            config.scopes.max_staleness = limit;
        }
        let limit = config.policy.memory_limit.or(self.memory_limit);
        if let Some(bytes @ 1..SMALLEST_LIMIT) = limit {
            anyhow::bail!(
                "a memory limit of {bytes} bytes is too small: 512 mebibytes are written 512Mi \
                 (--memory-limit, or memoryLimit in --config)"
            );
        }
        config.memory_limit = memory_limit(limit, container_limit());
        config.policy.users = self.limits.users();
        let compared = if self.shadow { MILLION } else { 0 };
        config.policy.verification = Verification {
            parts_per_million: self.verify.unwrap_or(compared),
            shadow: self.shadow,
        };
        config.tls_policy = self.tls.policy();
        config.hsts = self.tls.hsts()?;
        config.filter = config.access.single_identity.then(|| self.filter.filter());
        config.limits = self.limits.connections();
        config.trusted_proxies = self.limits.trusted_proxies();
        config.proxy_protocol = self.limits.proxy_protocol;
        config.admin = self.admin.protection();
        Ok(config)
    }
}

/// Returns the memory limit from the configured one and that of the control group.
///
/// The rest of the group's limit is for what is not in the process: sockets and pages of files.
fn memory_limit(configured: Option<u64>, group: Option<u64>) -> Option<usize> {
    let bytes = match (configured, group) {
        (Some(0), _) | (None, None) => return None,
        (Some(bytes), _) => bytes,
        (None, Some(group)) => group / 100 * SHARE_OF_GROUP,
    };
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Value of `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListenAddress {
    Address(SocketAddr),
    Socket(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the socket has no path".to_owned()),
            Some(path) => Ok(Self::Socket(path.into())),
            None => text.parse().map(Self::Address).map_err(|_| {
                "neither unix:PATH nor ADDR:PORT, whose ADDR is an IP address".to_owned()
            }),
        }
    }
}

/// Parses the value of `--upstream-compression`.
fn compression(text: &str) -> Result<ListCompression, String> {
    let all = [
        ListCompression::WherePays,
        ListCompression::Always,
        ListCompression::Never,
    ];
    all.into_iter()
        .find(|known| known.as_str() == text)
        .ok_or_else(|| "neither auto, true nor false".to_owned())
}

/// Parses the mode of a socket's file.
fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|error| error.to_string())?;
    if mode > 0o777 {
        Err("it exceeds 0777".to_owned())
    } else {
        Ok(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_limit_is_a_share_of_the_control_groups() {
        assert_eq!(memory_limit(None, None), None);
        assert_eq!(
            memory_limit(None, Some(1 << 30)),
            Some((1 << 30) / 100 * 80)
        );
        assert_eq!(memory_limit(Some(1 << 20), Some(1 << 30)), Some(1 << 20));
        assert_eq!(memory_limit(Some(0), Some(1 << 30)), None);
    }

    #[test]
    fn a_listen_address_is_an_ip_address_or_a_socket() {
        assert_eq!(
            "[::1]:6443".parse(),
            Ok(ListenAddress::Address("[::1]:6443".parse().unwrap()))
        );
        assert_eq!(
            "unix:/run/api.sock".parse(),
            Ok(ListenAddress::Socket("/run/api.sock".into()))
        );
        for text in ["", "unix:", "localhost", "6443", "/run/api.sock"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
        assert_eq!(
            (socket_mode("0600"), socket_mode("660")),
            (Ok(0o600), Ok(0o660))
        );
        assert!(
            ["", "8", "1777", "-1", "rw"]
                .iter()
                .all(|text| socket_mode(text).is_err())
        );
    }
}
