//! `watershed serve`: its flags, and running it to its end.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::config;
use crate::access::Unavailable;
use crate::app;
use crate::upstream::UpstreamOptions;

/// Flags of `watershed serve`.
#[derive(Args, Debug)]
pub(super) struct Serve {
    /// Configuration file (YAML): how consistent reads are answered, for all types and for some.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig of the proxy's own identity at the API server. Without it: $KUBECONFIG, then the
    /// in-cluster service account, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Address of the API server, instead of the kubeconfig's. Repeat it for several servers of one cluster.
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
    /// Where clients connect, by TLS (HTTP/2 and HTTP/1.1).
    #[arg(long, default_value = "127.0.0.1:6443", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Serving certificate (PEM). Without it, a self-signed pair is made in --cert-dir.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the serving certificate (PEM).
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// A further name or address in the self-signed certificate. May be repeated.
    #[arg(long = "tls-san", value_name = "NAME")]
    tls_sans: Vec<String>,
    /// Where the self-signed certificate and its CA (ca.crt, for clients to trust) are kept.
    #[arg(long, default_value = "watershed-certs", value_name = "DIR")]
    cert_dir: PathBuf,
    /// Where /metrics, /livez, /readyz and /healthz are served, by plain HTTP.
    #[arg(long, default_value = "127.0.0.1:6480", value_name = "ADDR:PORT")]
    admin_listen: SocketAddr,
    /// How long events are kept, so that a watch may start from an old version (seconds).
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    window_seconds: u64,
    /// Upper bound of the events kept for one type in one representation (MiB).
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    window_mib: usize,
    /// An aggregated API group whose types are cached, too; all others are forwarded. Only for servers whose
    /// answers do not depend on who asks. May be repeated.
    #[arg(long = "cache-aggregated", value_name = "GROUP")]
    aggregated: Vec<String>,
    /// How long a grant is remembered that RBAC gave, unless RBAC changes (such as 5m; 0s asks each time). Others: 10 s at most.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a denial is remembered, unless RBAC changes (such as 30s; 0s asks each time).
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// What is done with requests while the API server cannot be asked about their callers.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    authorization_unavailable: Unavailable,
    /// How long open requests and watches may take to end after SIGTERM (seconds).
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    drain_seconds: u64,
}

impl Serve {
    pub(super) async fn run(self: Box<Self>) -> anyhow::Result<ExitCode> {
        // Before anything else, so that a signal during the start ends it, too.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let config = self.config()?;
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

    fn config(self) -> anyhow::Result<app::Config> {
        let upstream = UpstreamOptions {
            kubeconfig: self.kubeconfig,
            context: self.context,
            servers: self.servers,
            user_agent: String::new(),
        };
        let mut config = app::Config::new(upstream, self.listen, self.admin_listen, self.cert_dir);
        config.certificate = self.tls_cert.zip(self.tls_key);
        config.names = self.tls_sans;
        config.aggregated = self.aggregated;
        config.scopes.window.age = Duration::from_secs(self.window_seconds);
        config.scopes.window.bytes = self.window_mib << 20;
        let authorization = &mut config.access.authorization;
        authorization.allowed_ttl = self.authorization_webhook_cache_authorized_ttl;
        authorization.denied_ttl = self.authorization_webhook_cache_unauthorized_ttl;
        authorization.unavailable = self.authorization_unavailable;
        config.drain = Duration::from_secs(self.drain_seconds);
        if let Some(file) = &self.config {
            config.policy = config::read(file)?;
        }
        Ok(config)
    }
}

/// The longest time that anything is remembered.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// As Go's and kube-apiserver's flags have it: 5m, 30s, 1h30m, 0s.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    let duration = Duration::try_from(parsed).map_err(|_| "it is negative".to_owned())?;
    if duration > MAX_DURATION { Err("it is longer than a day".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_kube_apiserver() {
        for (text, seconds) in
            [("5m", 300.0), ("30s", 30.0), ("0s", 0.0), ("1h30m", 5400.0), ("5m0s", 300.0), ("1.5s", 1.5)]
        {
            assert_eq!(duration(text).map(|duration| duration.as_secs_f64()), Ok(seconds), "{text}");
        }
        for text in ["", "5", "-5m", "5 apples", "1000000h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
