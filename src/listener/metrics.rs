//! Metrics of connections.
use super::tls::ServerTls;
use crate::metric::{Counter, Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    CONNECTIONS.declaration(),
    CONNECTIONS_LIMIT.declaration(),
    REJECTED.declaration(),
    CUT.declaration(),
    ANSWERS_CUT.declaration(),
    CERTIFICATE_BEGINS.declaration(),
    CERTIFICATE_EXPIRES.declaration(),
];

const CONNECTIONS: Metric<Gauge, 1> = Metric::new(
    "watershed_connections",
    &["listener"],
    "Open connections of clients, by listener, with tunnels (exec, port-forward).",
);
const CONNECTIONS_LIMIT: Metric<Gauge, 1> = Metric::new(
    "watershed_connections_limit",
    &["listener"],
    "Limit of open connections of clients, by listener. At the limit, a new connection takes the \
     place of an unknown client's idle or slow one, or waits.",
);
const REJECTED: Metric<Counter, 2> = Metric::new(
    "watershed_connections_rejected_total",
    &["listener", "reason"],
    "Connections that were closed as soon as they were accepted, by listener and reason: per-address (an \
     address has too many).",
);
const CUT: Metric<Counter, 2> = Metric::new(
    "watershed_connections_terminated_total",
    &["listener", "reason"],
    "Connections that were closed because of what their client did or failed to do, by listener and reason: \
     handshake-timeout, proxy-header (a load balancer sent none that can be used), header-timeout (or a head \
     was long while many were incomplete), write-stall (the client did not read), idle (it did not end when \
     asked to), resets (most requests were taken back), settings (too many SETTINGS frames), pings (too many \
     PING or PRIORITY frames), unknown-frames (too many frames that HTTP/2 does not \
     define), header-table (too much was kept of what clients had sent, to decode their next requests), \
     unread-bodies (too much was kept with pieces of request bodies that nobody had read yet), full (others needed its place).",
);
const ANSWERS_CUT: Metric<Counter, 1> = Metric::new(
    "watershed_responses_terminated_total",
    &["reason"],
    "Responses that were cut while their connection went on, because the client did not read them, by \
     reason: write-stall, memory-share (too much of its user waited), refusal (a refusal that was not read).",
);
const CERTIFICATE_BEGINS: Metric<Gauge, 1> = Metric::new(
    "watershed_serving_certificate_start_timestamp_seconds",
    &["listener"],
    "Time from which on the serving certificate is valid, in seconds since the Unix epoch, by \
     listener.",
);
const CERTIFICATE_EXPIRES: Metric<Gauge, 1> = Metric::new(
    "watershed_serving_certificate_expiration_timestamp_seconds",
    &["listener"],
    "Time at which the serving certificate expires, in seconds since the Unix epoch, by listener.",
);

/// The listener that a connection came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    Proxy,
    Admin,
}

/// Reason why an answer was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerCut {
    /// Its client read nothing for too long.
    Stall,
    /// The client's user left too much of its answers unread.
    MemoryShare,
    /// Its client left a refusal unread.
    Refusal,
}

/// Reason why a connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The TLS handshake took too long.
    Handshake,
    /// A load balancer sent no usable PROXY protocol header in time.
    ProxyHeader,
    /// The head of a request took too long, or was too long while many others were not complete.
    Head,
    /// The client took nothing of what waits for it.
    Stall,
    /// Nothing runs on it, and it did not end when it was asked to.
    Idle,
    /// Most requests were taken back before they were answered.
    Resets,
    /// The client sent SETTINGS frames again and again.
    Settings,
    /// The client sent PING or PRIORITY frames again and again.
    Pings,
    /// The client sent frames that HTTP/2 does not define again and again.
    UnknownFrames,
    /// Too much was kept of what clients had sent, to decode their next requests.
    HeaderTable,
    /// Too much was kept with pieces of bodies that nobody had read yet.
    UnreadBodies,
    /// The listener was full, and the client unknown, and idle or slow.
    Full,
}

impl Listener {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Admin => "admin",
        }
    }

    /// Counts a connection while it is open.
    pub(super) fn connected(self) -> OpenGauge {
        let gauge = CONNECTIONS.with([self.as_str().into()]);
        gauge.increment(1);
        OpenGauge(gauge)
    }

    /// Shows how many connections may be open.
    pub(super) fn set_limit(self, connections: usize) {
        CONNECTIONS_LIMIT
            .with([self.as_str().into()])
            .set(connections as f64);
    }

    pub(super) fn rejected(self) {
        REJECTED
            .with([self.as_str().into(), "per-address".into()])
            .increment(1);
    }

    pub(super) fn cut(self, why: Cut) {
        CUT.with([self.as_str().into(), why.as_str().into()])
            .increment(1);
    }
}

impl Cut {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => "handshake-timeout",
            Self::ProxyHeader => "proxy-header",
            Self::Head => "header-timeout",
            Self::Stall => "write-stall",
            Self::Idle => "idle",
            Self::Resets => "resets",
            Self::Settings => "settings",
            Self::Pings => "pings",
            Self::UnknownFrames => "unknown-frames",
            Self::HeaderTable => "header-table",
            Self::UnreadBodies => "unread-bodies",
            Self::Full => "full",
        }
    }
}

/// Shows when the certificates that are served now begin and end.
pub fn publish_certificates(proxy: Option<&ServerTls>, admin: Option<&ServerTls>) {
    for (listener, tls) in [(Listener::Proxy, proxy), (Listener::Admin, admin)] {
        if let Some(valid) = tls.and_then(ServerTls::validity) {
            for (metric, moment) in [
                (CERTIFICATE_BEGINS, valid.not_before),
                (CERTIFICATE_EXPIRES, valid.not_after),
            ] {
                let gauge = metric.with([listener.as_str().into()]);
                gauge.set(moment.as_second() as f64);
            }
        }
    }
}

/// An answer was cut because its client did not read it.
pub(super) fn answer_cut(cause: AnswerCut) {
    let reason = match cause {
        AnswerCut::Stall => Cut::Stall.as_str(),
        AnswerCut::MemoryShare => "memory-share",
        AnswerCut::Refusal => "refusal",
    };
    ANSWERS_CUT.with([reason.into()]).increment(1);
}

/// An open connection.
pub(super) struct OpenGauge(Gauge);

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
