//! Limits of client connections.

use std::time::Duration;

use crate::budget::MemoryBudget;

/// The bytes a client may send ahead on an HTTP/2 stream.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;

/// Limits of client connections. They bound everything that is held for a client.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections at a time. Further ones wait in the kernel's backlog.
    pub connections: usize,
    /// `true` if an operator chose the number of connections.
    pub is_chosen: bool,
    /// Connections at a time from one address (of IPv6, from one network of 64 bits), if an operator
    /// chose their number. Further ones are closed at once.
    pub connections_per_address: Option<usize>,
    /// HTTP/2 streams a connection may have open.
    pub streams: u32,
    /// Bytes of an answer that an HTTP/2 stream may buffer. A small buffer suffices: a watch that
    /// falls behind reads on from the shared window.
    pub stream_buffer: usize,
    /// Bytes of a request's head on HTTP/1, and of an answer that such a connection may buffer.
    /// HTTP/2 counts 32 bytes more for each field, so twice as much is allowed there.
    pub header_bytes: usize,
    /// Bytes of a request's target.
    pub url_bytes: usize,
    /// Time without a request after which a connection is closed.
    pub idle: Duration,
    /// Time for the TLS handshake, and then for the first request.
    pub start: Duration,
    /// Time for the head of a request, from its first byte. Over HTTP/2, the first one has `start`.
    pub head: Duration,
    /// Time for which a client may read nothing of a waiting answer. Zero: no limit.
    pub stall: Duration,
    /// Time without the end of a request after which a busy connection of an unknown client may be
    /// closed to make room. Longer than strangers wait for a review and then for their turn.
    pub slow_stranger: Duration,
    /// The chance of each HTTP/2 request to end its connection in order, as `--goaway-chance` of
    /// kube-apiserver: the client's next requests may reach another replica.
    pub goaway_chance: f64,
    /// The age up to which an HTTP/2 connection takes new requests. Zero: no limit.
    pub max_age: Duration,
    /// The budget that connections are charged to.
    pub memory: MemoryBudget,
}

impl ConnectionLimits {
    /// Bytes of a connection, as measured (docs/benchmarks.md, Memory of an idle watch).
    pub const CONNECTION_BYTES: usize = 32 << 10;

    /// Allows so many connections instead of more, and no more than that from one address.
    pub fn reduce(&mut self, connections: usize) {
        self.connections = connections;
        let of_address = self.connections_per_address;
        self.connections_per_address = of_address.map(|chosen| chosen.min(connections));
    }

    /// Returns the number of connections that one address may have: by default, three quarters of all.
    ///
    /// Clients behind a load balancer can use most of them, and the last quarter is left for
    /// others.
    pub fn of_address(&self) -> usize {
        let share = self.connections - self.connections / 4;
        self.connections_per_address.unwrap_or(share)
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            connections: 20_000,
            is_chosen: false,
            connections_per_address: None,
            // kube-apiserver's recommended options say 1000; its bare default of 100 makes
            // clients with many informers wait.
            streams: 1000,
            // With a quarter of this, a large list costs a fifth more: there are more writes.
            stream_buffer: 64 * 1024,
            // Room for long tokens and for `Impersonate-Group` lists; kube-apiserver takes up to 1
            // MB.
            header_bytes: 64 * 1024,
            // The largest URI that the http crate can hold.
            url_bytes: 65_534,
            // kube-apiserver's idle timeout (secure_serving.go).
            idle: Duration::from_secs(90),
            start: Duration::from_secs(10),
            // kube-apiserver's ReadHeaderTimeout, from the same place.
            head: Duration::from_secs(32),
            // kube-apiserver has no such limit. Long enough for people who stop a pager to read.
            stall: Duration::from_mins(10),
            slow_stranger: Duration::from_secs(45),
            goaway_chance: 0.0,
            max_age: Duration::ZERO,
            memory: MemoryBudget::default(),
        }
    }
}
