//! The memory that an answer takes while its client is being sent it.
use crate::fairness::Share;

/// Bytes that upstream sends ahead of an open answer when its client takes nothing.
const AHEAD_BYTES: u64 = 256 << 10;

/// Bytes of the last chunk that count while the connection may hold it. Of a watch, the next event or
/// bookmark tells that it is gone, and most clients have read it at once.
const CONNECTION_BYTES: u64 = 16 << 10;

/// The memory that an answer takes, until this is dropped.
pub(in crate::serve) struct HeldAnswer {
    share: Share,
    /// Of an answer that may stay open, the bytes that its connection may hold.
    in_connection: Option<u64>,
}

impl HeldAnswer {
    /// Bytes of an answer that may stay open, while nothing of it waits for its client.
    pub(in crate::serve) const IDLE_BYTES: u64 = 2 << 10;

    /// An answer of which all that it may take is in its share.
    pub(in crate::serve) fn whole(share: Share) -> Self {
        Self {
            share,
            in_connection: None,
        }
    }

    /// An answer that may stay open. What it takes depends on what its client leaves waiting.
    pub(in crate::serve) fn open(share: Share) -> Self {
        Self {
            share,
            in_connection: Some(Self::IDLE_BYTES),
        }
    }

    /// Notes that so many bytes wait for the client. Returns `false` if its caller's share does not
    /// allow that. Then they are not counted, and should not wait for long.
    pub(super) fn waits(&mut self, bytes: usize) -> bool {
        let Some(before) = self.in_connection else {
            return true;
        };
        let bytes = bytes as u64;
        self.in_connection = Some(bytes.clamp(Self::IDLE_BYTES, CONNECTION_BYTES));
        self.share.resize(before + bytes + AHEAD_BYTES)
    }

    /// Notes that the connection has taken what waited. It holds that until the client takes it.
    pub(super) fn taken(&mut self) {
        if let Some(bytes) = self.in_connection
            && bytes != self.share.amount()
        {
            self.share.resize(bytes);
        }
    }
}
