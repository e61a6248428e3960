//! Metrics of the traffic with upstream.
use super::traffic::{ConnectionPurpose, RequestPurpose, UpstreamTraffic};
use super::via::{ChainRefusal, ProxyChain};
use crate::metric::{Counter, Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    REQUESTS.declaration(),
    RECEIVED_BYTES.declaration(),
    CONNECTIONS.declaration(),
    PROXIES.declaration(),
    LOOPS.declaration(),
];

const REQUESTS: Metric<Counter, 1> = Metric::new(
    "watershed_upstream_requests_total",
    &["purpose"],
    "Requests that upstream answered, by purpose: the proxy's lists and watches of types, its \
     other requests, and forwarded ones.",
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
pub fn publish(traffic: &UpstreamTraffic, chain: &ProxyChain) {
    PROXIES.with([]).set(chain.upstream().len() as f64);
    for kind in ChainRefusal::ALL {
        LOOPS
            .with([kind.as_str().into()])
            .absolute(chain.refused(kind));
    }
    for purpose in RequestPurpose::ALL {
        let label = || [purpose.as_str().into()];
        REQUESTS.with(label()).absolute(traffic.requests(purpose));
        RECEIVED_BYTES
            .with(label())
            .absolute(traffic.received_bytes(purpose));
    }
    for kind in ConnectionPurpose::ALL {
        CONNECTIONS
            .with([kind.as_str().into()])
            .set(traffic.connections(kind) as f64);
    }
}
