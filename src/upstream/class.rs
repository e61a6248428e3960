//! Classes of requests, which decide what may share a connection.

const WATCH: Windows = Windows {
    streams: 96,
    left_free: 4,
    stream: MIB,
    connection: 128 * MIB,
};
const SHORT: Windows = Windows {
    streams: 100,
    left_free: 0,
    stream: MIB / 2,
    connection: 64 * MIB,
};
/// Fewer and smaller streams: bytes that a client does not read are held in memory here.
const LONG_FORWARD: Windows = Windows {
    streams: 50,
    left_free: 0,
    stream: MIB / 4,
    connection: 256 * MIB,
};
/// A stream has its connection to itself, while there are few. h2 takes memory for each piece that nobody has
/// read, and ends the connection when there are too many: of a single stream, some 8,700 of less than sixteen
/// bytes.
const RELAYED: Windows = Windows {
    streams: 16,
    left_free: 0,
    stream: MIB / 8,
    connection: 4 * MIB,
};
const MIB: u32 = 1024 * 1024;

/// The most that h2 counts for a byte of events that nobody has read. It ends a connection, with all of its
/// streams, when that comes to half of the connection's window.
///
/// A frame of less than 256 bytes counts with what it lacks. Each event comes in a frame of its own, and the
/// shortest, a bookmark in protobuf, has some sixty bytes.
/// Source: `proto/streams/counts.rs` of h2 (`record_data_frame`) and `proto/connection.rs` (`DataFrameBudget`).
const EVENT_OVERHEAD: usize = 4;

// Invariant: streams that nobody reads leave room on their connection.
const _: () = assert!(WATCH.is_roomy() && SHORT.is_roomy());
const _: () = assert!(LONG_FORWARD.is_roomy() && RELAYED.is_roomy());
const _: () = assert!(
    LONG_FORWARD.streams * LONG_FORWARD.stream as usize * EVENT_OVERHEAD
        < LONG_FORWARD.connection as usize / 2
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
    /// Forwarded watches, read as fast or slowly as a client likes.
    LongForward,
    /// Forwarded requests whose answers are written by pods, services and nodes, logs among them.
    ///
    /// Each has a connection to itself, while there are few of them. On a shared one, the many small pieces of
    /// an answer that nobody reads would end the others, and so would large headers.
    Relayed,
}

impl ConnectionClass {
    pub(super) const fn windows(self) -> &'static Windows {
        match self {
            ConnectionClass::Watch => &WATCH,
            ConnectionClass::Short => &SHORT,
            ConnectionClass::LongForward => &LONG_FORWARD,
            ConnectionClass::Relayed => &RELAYED,
        }
    }

    /// Returns `true` if requests may stay open for as long as their clients like.
    pub(super) fn is_long(self) -> bool {
        self != ConnectionClass::Short
    }

    /// Returns `true` if each request should have a connection to itself.
    pub(super) fn is_alone(self) -> bool {
        self == ConnectionClass::Relayed
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
    /// Bytes that upstream may send ahead on the connection.
    ///
    /// More than on all streams together: streams that nobody reads never block the others.
    pub(super) connection: u32,
}

impl Windows {
    /// Returns the streams that may be used where upstream allows so many.
    pub(super) fn streams_of(&self, allowed: usize) -> usize {
        let usual = allowed.saturating_sub(self.left_free).max(1);
        self.streams.min(usual).min(allowed)
    }

    const fn is_roomy(&self) -> bool {
        self.streams * (self.stream as usize) < self.connection as usize
    }
}
