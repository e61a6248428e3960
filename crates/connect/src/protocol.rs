//! The versions of HTTP that are spoken with a server.

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1: one request at a time on a connection.
    Http1,
    /// HTTP/2: many requests at a time on a connection.
    Http2,
}

/// The versions of HTTP that a new connection offers the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferedProtocols {
    /// HTTP/2, and HTTP/1.1 for a server without it.
    Any,
    /// HTTP/1.1 alone: an upgrade needs it.
    Http1,
}
