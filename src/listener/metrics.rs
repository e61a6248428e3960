//! What is counted of connections. The names stand here and nowhere else.

use metrics::{Gauge, counter, describe_counter, describe_gauge, gauge};

use super::tls::ServerTls;

/// Connections open now.
pub const CONNECTIONS: &str = "watershed_connections";
/// Connections closed as soon as they came.
pub const REJECTED: &str = "watershed_connections_rejected_total";
/// Connections that were cut for what their client did or did not do.
pub const CUT: &str = "watershed_connections_cut_total";
/// Answers on HTTP/2 that were reset as their client took nothing of them.
pub const ANSWERS_CUT: &str = "watershed_answers_cut_total";

/// When the certificate that clients see ends.
pub const CERTIFICATE_ENDS: &str = "watershed_serving_certificate_expiration_timestamp_seconds";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    describe_gauge!(
        CONNECTIONS,
        "Connections of clients that are open now, by listener."
    );
    describe_counter!(
        REJECTED,
        "Connections that were closed as soon as they came, by listener and reason."
    );
    describe_counter!(
        CUT,
        "Connections that were cut for what their client did or left undone, by listener and reason."
    );
    describe_counter!(
        ANSWERS_CUT,
        "Answers on HTTP/2 connections that were reset because their client took nothing of them, by reason."
    );
    describe_gauge!(
        CERTIFICATE_ENDS,
        "When the serving certificate ends, in seconds since January 1, 1970 UTC, by listener."
    );
}

/// Which listener a connection came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    Proxy,
    Admin,
}

/// Why a connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The TLS handshake took too long.
    Handshake,
    /// The head of a request took too long.
    Head,
    /// The client took nothing of what waits for it.
    Stall,
    /// Nothing runs on it, and it did not end when it was asked to.
    Idle,
    /// Most requests were taken back before they were answered.
    Resets,
}

impl Listener {
    fn as_str(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Admin => "admin",
        }
    }

    /// Counts a connection while it is open.
    pub(super) fn connected(self) -> Open {
        let gauge = gauge!(CONNECTIONS, "listener" => self.as_str());
        gauge.increment(1);
        Open(gauge)
    }

    pub(super) fn rejected(self) {
        counter!(REJECTED, "listener" => self.as_str(), "reason" => "per-address").increment(1);
    }

    pub(super) fn cut(self, why: Cut) {
        counter!(CUT, "listener" => self.as_str(), "reason" => why.as_str()).increment(1);
    }
}

impl Cut {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => "handshake-timeout",
            Self::Head => "header-timeout",
            Self::Stall => "write-stall",
            Self::Idle => "idle",
            Self::Resets => "resets",
        }
    }
}

/// Shows when the certificates end that are served now.
pub fn publish_certificates(proxy: Option<&ServerTls>, admin: Option<&ServerTls>) {
    for (listener, tls) in [(Listener::Proxy, proxy), (Listener::Admin, admin)] {
        if let Some(ends) = tls.and_then(ServerTls::ends) {
            gauge!(CERTIFICATE_ENDS, "listener" => listener.as_str()).set(ends as f64);
        }
    }
}

/// An HTTP/2 answer was reset.
pub(super) fn answer_cut() {
    counter!(ANSWERS_CUT, "reason" => Cut::Stall.as_str()).increment(1);
}

/// An open connection.
pub(super) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
