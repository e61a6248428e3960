//! What is counted of upstream. The names stand here and nowhere else, but for those of scopes.
use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::traffic::{ConnectionPurpose, RequestPurpose, UpstreamTraffic};

/// Requests that upstream answered.
pub const REQUESTS: &str = "watershed_upstream_requests_total";
/// Bytes of its answers.
pub const RECEIVED_BYTES: &str = "watershed_upstream_received_bytes_total";
/// Connections to it that are open now.
pub const CONNECTIONS: &str = "watershed_upstream_connections";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    describe_counter!(
        REQUESTS,
        "Requests that upstream answered, by purpose: the proxy's lists and watches of types, its own questions, and what is forwarded."
    );
    describe_counter!(
        RECEIVED_BYTES,
        "Bytes of the bodies of upstream's answers, as compressed as they came, by purpose. Sessions of exec and port-forward are not in it."
    );
    describe_gauge!(
        CONNECTIONS,
        "Connections to upstream that are open now, by kind: for the proxy's lists and watches, short requests, long forwarded ones, and tunnels."
    );
}

/// Shows what is so now.
pub fn publish(traffic: &UpstreamTraffic) {
    for purpose in RequestPurpose::ALL {
        counter!(REQUESTS, "purpose" => purpose.as_str()).absolute(traffic.requests(purpose));
        counter!(RECEIVED_BYTES, "purpose" => purpose.as_str())
            .absolute(traffic.received_bytes(purpose));
    }
    for kind in ConnectionPurpose::ALL {
        gauge!(CONNECTIONS, "kind" => kind.as_str()).set(traffic.connections(kind) as f64);
    }
}
