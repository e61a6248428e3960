//! What connections may cost.

use std::time::Duration;

/// What connections may cost. Everything that is held for a client is bounded by a field of this.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections at a time. Further ones wait in the kernel's backlog.
    pub connections: usize,
    /// Connections at a time from one address (of IPv6, from one network of 64 bits). Further ones
    /// are closed at once.
    pub connections_per_address: usize,
    /// HTTP/2 streams a connection may have open.
    pub streams: u32,
    /// Bytes of answer an HTTP/2 stream may hold that the client has not taken. Not more, as the
    /// cursor of a watch is the buffer, and it costs nothing.
    pub stream_buffer: usize,
    /// Bytes of a request's head on HTTP/1, and of answer that such a connection may hold. HTTP/2
    /// counts 32 bytes more for each field, and allows twice as much.
    pub header_bytes: usize,
    /// Bytes of a request's target.
    pub url_bytes: usize,
    /// How long a connection may be without a request before it is closed.
    pub idle: Duration,
    /// How long TLS may take, and then the first request.
    pub start: Duration,
    /// How long the head of an HTTP/1 request may take from its first byte.
    pub head: Duration,
    /// How long a client may take nothing of what waits for it. Zero: as long as it likes.
    pub stall: Duration,
}

impl ConnectionLimits {
    /// Three quarters of all: clients behind one balancer's address have nearly everything, and no
    /// address can take the last quarter from the others.
    pub const fn share_of_an_address(connections: usize) -> usize {
        connections - connections / 4
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let connections = 20_000;
        ConnectionLimits {
            connections,
            connections_per_address: Self::share_of_an_address(connections),
            // kube-apiserver's recommended options say 1000; its bare default of 100 makes
            // clients with many informers wait.
            streams: 1000,
            // A quarter of it makes a large list a fifth dearer: more writes, each of less.
            stream_buffer: 64 * 1024,
            // Room for long tokens and for `Impersonate-Group` lists; kube-apiserver takes up to 1
            // MB.
            header_bytes: 64 * 1024,
            // What the library that parses them can hold.
            url_bytes: 65_534,
            // kube-apiserver's idle timeout (secure_serving.go).
            idle: Duration::from_secs(90),
            start: Duration::from_secs(10),
            // kube-apiserver's ReadHeaderTimeout, from the same place.
            head: Duration::from_secs(32),
            // kube-apiserver has no such limit. Long enough for people who stop a pager to read.
            stall: Duration::from_mins(10),
        }
    }
}
