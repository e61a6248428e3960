//! Flags of `watershed serve` that limit what clients may use.
use std::time::Duration;

use clap::Args;

use super::duration::{MAX_SECONDS, duration};
use crate::listener::{ConnectionLimits, Network, TrustedProxies};
use crate::serve::UserLimits;

/// Flags that limit clients.
#[derive(Args, Debug)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitFlags {
    /// Maximum number of open client connections, with tunnels (exec, port-forward). At the limit,
    /// an unknown client that is idle or slow loses its connection to a new one. If there is none,
    /// the new one waits. A low limit of open files lowers this limit. So does --memory-limit,
    /// unless this flag is given: the connections must fit into a quarter of it, at 32 KiB each.
    /// Default: 20000.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_connections: Option<usize>,
    /// Maximum number of open connections from one address (for IPv6, one /64 network). Further
    /// ones are closed at once. It does not apply to a Unix socket. Default: three quarters of
    /// --max-connections.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_connections_per_address: Option<usize>,
    /// Maximum number of concurrent HTTP/2 requests and watches on one connection.
    #[arg(long = "http2-max-streams-per-connection", default_value_t = 1000, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    http2_max_streams: u32,
    /// Size of a request's line and headers that is accepted in any case over HTTP/1.1. Larger ones
    /// may get 431, and ones of twice this size always do. Over HTTP/2 the limit is twice this
    /// size, and each header counts 32 bytes more than its name and value have. At least 8192.
    #[arg(
        long,
        default_value_t = 65_536,
        value_name = "BYTES",
        value_parser = clap::value_parser!(u32).range(8192..=1_048_576)
    )]
    max_header_bytes: u32,
    /// Maximum size of a request's path and query. Longer ones are refused with 414.
    #[arg(
        long,
        default_value_t = 65_534,
        value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(1..=65_534)
    )]
    max_url_bytes: u16,
    /// Timeout of the TLS handshake, and of the wait for the first request after it.
    #[arg(
        long,
        default_value_t = 10,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    handshake_timeout_seconds: u64,
    /// Timeout for reading the headers of a request, from its first byte. The first request over
    /// HTTP/2 has as long as the handshake.
    #[arg(
        long,
        default_value_t = 32,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    header_timeout_seconds: u64,
    /// Time after which a connection without requests is closed.
    #[arg(
        long,
        default_value_t = 90,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    idle_timeout_seconds: u64,
    /// Time after which a connection is closed whose client does not read the data that waits for
    /// it; 0 for no limit. Quiet watches are not affected.
    #[arg(
        long,
        default_value_t = 600,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS)
    )]
    write_stall_seconds: u64,
    /// Chance of each HTTP/2 request to end its connection with GOAWAY, from 0 to 0.02. Requests and
    /// watches on it go on; the next ones take a new connection, which a load balancer may lead to
    /// another replica. 0.001 is a good start for several replicas behind one address.
    #[arg(long, default_value_t = 0.0, value_name = "CHANCE", value_parser = goaway_chance)]
    goaway_chance: f64,
    /// Age after which an HTTP/2 connection ends with GOAWAY on its next request, which is still
    /// answered; 0s for none. Each connection's age is chosen between three quarters of this and all
    /// of it. 30m is a good start for several replicas behind one address.
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    max_connection_age: Duration,
    /// Maximum number of concurrent requests of one user; 0 for no limit. Watches count until they
    /// begin. Callers without a bearer token count by address.
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_requests_inflight_per_user: u32,
    /// Maximum number of requests per second of one user; 0 for no limit.
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_requests_per_second_per_user: u32,
    /// Burst of requests of one user. Default: twice the requests per second.
    #[arg(long, default_value_t = 0, value_name = "N", hide_default_value = true)]
    max_requests_burst_per_user: u32,
    /// Networks of proxies and load balancers that may tell a client's address in X-Forwarded-For
    /// or X-Real-Ip. Others may not; their headers are removed. Default: such headers are
    /// forwarded and audited as they come, and count for no limit.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    trusted_proxies: Vec<Network>,
    /// Expect a header of the PROXY protocol (version 1 or 2) on each connection from the networks
    /// of --trusted-proxies. Connections from elsewhere have none.
    #[arg(long, requires = "trusted_proxies")]
    pub(super) proxy_protocol: bool,
    /// Maximum number of forwarded requests of one user at a time, until their answers have ended;
    /// 0 for no limit. All programs with one service account are one user. All users together may
    /// have 50,000, and one at most half of what is free. Of those whose answers pods, services and nodes write,
    /// such as followed logs, there may be fewer.
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    max_forwarded_requests_per_user: u32,
    /// Maximum number of open sessions of exec, attach and port-forward of one user; 0 for no limit.
    /// All users together may have 4,096, or fewer with a low limit of open files, and one at most half of
    /// what is free.
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    max_tunnels_per_user: u32,
    /// Maximum number of open watches of one user that are served from memory; 0 for no limit. All
    /// users together may have a quarter of --memory-limit, with 2 KiB each, and one at most half of
    /// what is free. All callers without credentials count as one.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    max_watches_per_user: u32,
    /// Maximum memory that the selectors of one user's open watches take, with what the audit log keeps of
    /// each beyond 1 KiB; 0 for no limit. All users together may have an eighth of --memory-limit, and one
    /// at most half of what is free. All callers without credentials count as one.
    #[arg(long, default_value_t = 67_108_864, value_name = "BYTES")]
    max_selector_bytes_per_user: u64,
    /// Maximum number of concurrent lists of one user that look at objects one by one, with
    /// selectors, for metadata alone, as Tables, or of an old version; 0 for no limit.
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    max_scans_per_user: u32,
    /// Maximum number of states that are kept for the next pages of one user's lists; 0 for no
    /// limit. Pages beyond that are forwarded.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    max_page_states_per_user: u32,
    /// Maximum number of open scopes (selectorScopes) that reads of one user opened; 0 for no
    /// limit. Reads that need another one are forwarded.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    max_on_demand_scopes_per_user: u32,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("not a number above zero".to_owned()),
    }
}

/// Parses a chance within kube-apiserver's limits.
fn goaway_chance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(chance) if (0.0..=0.02).contains(&chance) => Ok(chance),
        _ => Err("not a number from 0 to 0.02".to_owned()),
    }
}

impl LimitFlags {
    /// Returns the limits of connections.
    pub(super) fn connections(&self) -> ConnectionLimits {
        let default = ConnectionLimits::default();
        ConnectionLimits {
            connections: self.max_connections.unwrap_or(default.connections),
            is_chosen: self.max_connections.is_some(),
            connections_per_address: self.max_connections_per_address,
            streams: self.http2_max_streams,
            header_bytes: self.max_header_bytes as usize,
            url_bytes: usize::from(self.max_url_bytes),
            idle: Duration::from_secs(self.idle_timeout_seconds),
            start: Duration::from_secs(self.handshake_timeout_seconds),
            head: Duration::from_secs(self.header_timeout_seconds),
            stall: Duration::from_secs(self.write_stall_seconds),
            goaway_chance: self.goaway_chance,
            max_age: self.max_connection_age,
            ..default
        }
    }

    /// Returns the proxies that may tell a client's address.
    pub(super) fn trusted_proxies(&self) -> TrustedProxies {
        TrustedProxies::new(self.trusted_proxies.iter().copied())
    }

    /// Returns the limits of users.
    pub(super) fn users(&self) -> UserLimits {
        UserLimits {
            in_flight: self.max_requests_inflight_per_user,
            per_second: self.max_requests_per_second_per_user,
            burst: self.max_requests_burst_per_user,
            forwarded: self.max_forwarded_requests_per_user,
            tunnels: self.max_tunnels_per_user,
            watches: self.max_watches_per_user,
            selector_bytes: self.max_selector_bytes_per_user,
            scans: self.max_scans_per_user,
            page_states: self.max_page_states_per_user,
            scopes: self.max_on_demand_scopes_per_user,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitFlags,
    }

    #[test]
    fn flags_default_to_the_default_limits() {
        let line = Line::parse_from(["x"]);
        let text = |limits: &ConnectionLimits| format!("{limits:?}");
        assert_eq!(
            text(&line.limits.connections()),
            text(&ConnectionLimits::default())
        );
        assert_eq!(line.limits.users(), UserLimits::default());
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for flag in [
            "--max-connections=0",
            "--max-url-bytes=0",
            "--max-header-bytes=100",
            "--idle-timeout-seconds=0",
            "--goaway-chance=0.03",
            "--goaway-chance=-0.01",
            "--goaway-chance=NaN",
        ] {
            assert!(Line::try_parse_from(["x", flag]).is_err(), "{flag}");
        }
        let limits = Line::parse_from(["x", "--max-connections=8"])
            .limits
            .connections();
        assert_eq!(limits.of_address(), 6);
    }
}
