//! The memory of HTTP/2 requests that nobody has looked at yet.
//!
//! A client may send a thousand requests at once on each of its connections, and each takes memory
//! from the moment at which it is read. The limits of the service count it only once its turn comes.
//! Until then it counts here, and while there are many, no connection is read on: the next requests
//! wait in the client. One that has none of these gets its turn all the same.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;

use crate::budget::MemoryBudget;
use crate::headers::head_memory;

/// Divisor: those of strangers may take a sixteenth of the memory budget. Those of known clients may
/// take twice as much, the first ones of each connection three times, and the first ones of known
/// clients' connections four times. So who sends many keeps nobody waiting who sends few, also on a new
/// connection, and strangers keep no known client waiting.
const BUDGET_DIVISOR: usize = 16;
const KNOWN: usize = 2;
const FIRST: usize = 3;
const FIRST_OF_KNOWN: usize = 4;
/// Bytes that they may take without a budget, and at most.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of a request, besides its head.
const REQUEST_BYTES: usize = 8 << 10;
/// Bytes of a refusal that its client has not taken.
pub(super) const REFUSAL_BYTES: u32 = 2 << 10;

/// The room for further requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamRoom {
    Enough,
    /// For a first one.
    Little,
    None,
}

/// The bytes of all such requests of a listener.
#[derive(Debug)]
pub(super) struct FreshStreams {
    bytes: AtomicUsize,
    limit: usize,
}

impl FreshStreams {
    /// Returns a count whose limit follows from this budget.
    pub(super) fn within(budget: &MemoryBudget) -> Arc<Self> {
        let share = budget
            .limit()
            .map_or(MAX_BYTES, |limit| limit / BUDGET_DIVISOR);
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            limit: share.min(MAX_BYTES),
        })
    }

    /// Returns the room for requests of a connection that has some of these, or none.
    pub(super) fn room(&self, is_known: bool, has_some: bool) -> StreamRoom {
        let bytes = self.bytes.load(Ordering::Acquire);
        let (many, first) = if is_known {
            (KNOWN, FIRST_OF_KNOWN)
        } else {
            (1, FIRST)
        };
        if bytes < self.limit * many {
            StreamRoom::Enough
        } else if !has_some && bytes < self.limit * first {
            StreamRoom::Little
        } else {
            StreamRoom::None
        }
    }

    pub(super) fn add(&self, bytes: u32) {
        self.bytes.fetch_add(bytes as usize, Ordering::AcqRel);
    }

    pub(super) fn remove(&self, bytes: u32) {
        self.bytes.fetch_sub(bytes as usize, Ordering::AcqRel);
    }
}

/// Returns the bytes that a request takes until the service looks at it.
pub(super) fn bytes_of<B>(request: &Request<B>) -> u32 {
    let bytes = REQUEST_BYTES + head_memory(request.uri(), request.headers());
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::StreamRoom::{Enough, Little};
    use super::*;

    const NONE: StreamRoom = StreamRoom::None;

    #[test]
    fn requests_of_known_clients_are_read_on_while_those_of_strangers_wait() {
        let streams = FreshStreams::within(&MemoryBudget::new(Some(16 * 100_000)));
        let request = Request::get("/api").header("x-filler", "x".repeat(10_000));
        let bytes = bytes_of(&request.body(()).unwrap());
        assert!((28_000..29_000).contains(&bytes), "{bytes}");
        let room = || {
            let of = |is_known, has_some| streams.room(is_known, has_some);
            [
                of(false, true),
                of(false, false),
                of(true, true),
                of(true, false),
            ]
        };
        let wanted = [
            (3, [Enough; 4]),
            (4, [NONE, Little, Enough, Enough]),
            (8, [NONE, Little, NONE, Little]),
            (12, [NONE, NONE, NONE, Little]),
            (16, [NONE; 4]),
        ];
        let mut added = 0;
        for (count, wanted) in wanted {
            for _ in added..count {
                streams.add(bytes);
            }
            added = count;
            assert_eq!(room(), wanted, "{count}");
        }
        streams.remove(14 * bytes);
        assert_eq!(room(), [Enough; 4]);
    }
}
