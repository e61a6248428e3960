//! Metrics of the traffic with upstream.
use watershed_connect::Validity;

use super::server::Upstream;
use super::traffic::{ConnectionPurpose, NoAnswer, RequestPurpose};
use super::via::ChainRefusal;
use crate::metric::{Counter, Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    REQUESTS.declaration(),
    UNANSWERED.declaration(),
    RECEIVED_BYTES.declaration(),
    CONNECTIONS.declaration(),
    CERTIFICATE_BEGINS.declaration(),
    CERTIFICATE_EXPIRES.declaration(),
    RELOAD_FAILURES.declaration(),
    PROXIES.declaration(),
    LOOPS.declaration(),
];

const REQUESTS: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_requests_total",
    &["purpose", "code"],
    "Requests that upstream answered, by status and purpose: the proxy's lists and watches of \
     types, its other requests (internal), those that upstream is to refuse (probe), and forwarded \
     ones.",
);
const UNANSWERED: Metric<Counter, 2> = Metric::new(
    "watershed_upstream_requests_unanswered_total",
    &["purpose", "reason"],
    "Requests that got no answer of upstream, by purpose and reason: no connection could be made \
     (connect), all were busy (busy), it ended (closed), the proxy or its client waited for a second or \
     longer and then no more (late), or stopped waiting before (abandoned).",
);
const RECEIVED_BYTES: Metric<Counter, 1> = Metric::new(
    "watershed_upstream_received_bytes_total",
    &["purpose"],
    "Bytes of upstream's response bodies as received, before decompression, by purpose. Sessions \
     of exec and port-forward do not count.",
);
const CONNECTIONS: Metric<Gauge, 1> = Metric::new(
    "watershed_upstream_connections",
    &["kind"],
    "Open connections to upstream, by kind: for the proxy's lists and watches, short requests, \
     forwarded watches, answers of pods, services and nodes, and tunnels.",
);

const CERTIFICATE_BEGINS: Metric<Gauge> = Metric::new(
    "watershed_upstream_certificate_start_timestamp_seconds",
    &[],
    "Time from which the proxy's own client certificate is valid, in seconds since the Unix epoch; 0 if \
     it has none.",
);
const CERTIFICATE_EXPIRES: Metric<Gauge> = Metric::new(
    "watershed_upstream_certificate_expiration_timestamp_seconds",
    &[],
    "Time at which the proxy's own client certificate expires, in seconds since the Unix epoch; infinite \
     if it has none.",
);
const RELOAD_FAILURES: Metric<Counter> = Metric::new(
    "watershed_upstream_credential_reload_failures_total",
    &[],
    "Attempts to take over changed credentials for upstream, or to have a plugin make new ones, that \
     failed. The old ones stay in use.",
);
const PROXIES: Metric<Gauge> = Metric::new(
    "watershed_upstream_proxies",
    &[],
    "Proxies of this kind between this one and the API server.",
);
const LOOPS: Metric<Counter, 1> = Metric::new(
    "watershed_loops_refused_total",
    &["reason"],
    "Requests refused because they had passed this proxy before (`loop`) or too many proxies, or \
     because no proxy wrote their `X-Watershed-Via`, by reason.",
);

/// Sets the metrics to what was counted until now.
pub fn publish(upstream: &Upstream) {
    let (traffic, chain) = (upstream.traffic(), upstream.chain());
    let (begins, expires) = match upstream.certificate() {
        Some(Validity {
            not_before,
            not_after,
        }) => (not_before.as_second() as f64, not_after.as_second() as f64),
        // A kubeconfig that had one may have a token now.
        None => (0.0, f64::INFINITY),
    };
    CERTIFICATE_BEGINS.with([]).set(begins);
    CERTIFICATE_EXPIRES.with([]).set(expires);
    RELOAD_FAILURES
        .with([])
        .absolute(upstream.reload_failures());
    PROXIES.with([]).set(chain.upstream().len() as f64);
    for kind in ChainRefusal::ALL {
        LOOPS
            .with([kind.as_str().into()])
            .absolute(chain.refused(kind));
    }
    for purpose in RequestPurpose::ALL {
        for (status, answers) in traffic.answers(purpose) {
            REQUESTS
                .with([purpose.as_str().into(), status.to_string().into()])
                .absolute(answers);
        }
        for reason in NoAnswer::ALL {
            UNANSWERED
                .with([purpose.as_str().into(), reason.as_str().into()])
                .absolute(traffic.unanswered(purpose, reason));
        }
        RECEIVED_BYTES
            .with([purpose.as_str().into()])
            .absolute(traffic.received_bytes(purpose));
    }
    for kind in ConnectionPurpose::ALL {
        CONNECTIONS
            .with([kind.as_str().into()])
            .set(traffic.connections(kind) as f64);
    }
}
