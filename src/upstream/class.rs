//! Classes of requests, which decide what may share a connection.

const WATCH: Windows = Windows {
    streams: 96,
    left_free: 4,
    stream: MIB,
};
const SHORT: Windows = Windows {
    streams: 100,
    left_free: 0,
    stream: MIB / 2,
};
/// Fewer and smaller streams: bytes that a client does not read are held in memory here.
const LONG_FORWARD: Windows = Windows {
    streams: 32,
    left_free: 0,
    stream: MIB / 8,
};
/// Streams beside the first one are used where there can be no more connections.
const PROXIED: Windows = Windows {
    streams: 32,
    left_free: 0,
    stream: MIB / 8,
};
const MIB: u32 = 1024 * 1024;

/// Bytes that upstream may send ahead on a connection: as many as the protocol allows.
///
/// More than on all streams together, so streams that nobody reads never block the others. And h2 takes
/// half of it for the [overhead](OVERHEAD) of what was not read.
pub(super) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// The highest count of one unread byte. h2 counts a frame of data below 256 bytes with what it lacks, and
/// ends the connection with all of its streams when that is too much.
///
/// Source: `proto/streams/counts.rs` of h2 (`record_data_frame`) and `proto/connection.rs` (`DataFrameBudget`).
const OVERHEAD: usize = 255;

// Invariant: streams that nobody reads leave room on their connection, whatever upstream sends. Frames of
// short requests are large: an API server writes their answers at once.
const _: () = assert!(
    WATCH.is_roomy(1)
        && SHORT.is_roomy(1)
        && LONG_FORWARD.is_roomy(OVERHEAD)
        && PROXIED.is_roomy(OVERHEAD)
);

/// Requests that may share connections.
///
/// Long ones, which a client may read slowly, are apart from short ones that everybody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClass {
    /// The proxy's own watches and lists.
    Watch,
    /// Short requests, own or forwarded (on connections of their own each).
    Short,
    /// Forwarded watches and logs, read as fast or slowly as a client likes.
    LongForward,
    /// Forwarded requests to pods, services and nodes, whose servers send what they like. Each has a
    /// connection to itself while there can be more: an answer that breaks a limit of HTTP/2 ends it.
    Proxied,
}

impl ConnectionClass {
    pub(super) const fn windows(self) -> &'static Windows {
        match self {
            ConnectionClass::Watch => &WATCH,
            ConnectionClass::Short => &SHORT,
            ConnectionClass::LongForward => &LONG_FORWARD,
            ConnectionClass::Proxied => &PROXIED,
        }
    }

    /// Returns `true` if each request wants a connection to itself.
    pub(super) fn is_alone(self) -> bool {
        self == ConnectionClass::Proxied
    }
}

/// Limits of an HTTP/2 connection of one class.
pub(super) struct Windows {
    /// Streams; kube-apiserver's default limit is 100.
    pub(super) streams: usize,
    /// Streams of those that upstream allows which are left for questions to the server of a watch.
    left_free: usize,
    /// Bytes that upstream may send ahead on a stream.
    pub(super) stream: u32,
}

impl Windows {
    /// Returns the streams that may be used where upstream allows so many.
    pub(super) fn streams_of(&self, allowed: usize) -> usize {
        let usual = allowed.saturating_sub(self.left_free).max(1);
        self.streams.min(usual).min(allowed)
    }

    /// Returns `true` if unread bytes on all streams, of which each counts so much, are less than half of
    /// the connection's window.
    const fn is_roomy(&self, count: usize) -> bool {
        self.streams * (self.stream as usize) * count < CONNECTION_WINDOW as usize / 2
    }
}
