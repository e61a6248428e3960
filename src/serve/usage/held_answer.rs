//! The memory that an answer takes while its client is being sent it.
use crate::fairness::Share;

/// Bytes that upstream sends ahead of an answer when its client takes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct SentAhead(u64);

impl SentAhead {
    /// The window of the stream of a watch.
    pub(in crate::serve) const EVENTS: Self = Self(256 << 10);
    /// The memory of a piece of one byte.
    const PIECE: u64 = 256;
    /// As many of them as a connection bears. Measured: 1.75 MiB (docs/security.md, Limits of connections).
    const ALL_PIECES: u64 = 2 << 20;

    /// Returns the bytes of an answer that a pod may write, which has this length if it tells one.
    pub(in crate::serve) fn of_pieces(length: Option<u64>) -> Self {
        let whole = length.map(|length| length.saturating_mul(Self::PIECE));
        Self(whole.map_or(Self::ALL_PIECES, |whole| whole.min(Self::ALL_PIECES)))
    }
}

/// Bytes of the last chunk that count while the connection may hold it. Of a watch, the next event or
/// bookmark tells that it is gone, and most clients have read it at once.
const CONNECTION_BYTES: u64 = 16 << 10;

/// The memory that an answer takes, until this is dropped.
pub(in crate::serve) struct HeldAnswer {
    share: Share,
    waiting: Option<WaitingBytes>,
}

/// The bytes that count depending on what an answer's client leaves waiting.
struct WaitingBytes {
    /// Bytes that the connection may hold.
    in_connection: u64,
    ahead: SentAhead,
    /// It tells what upstream has done.
    is_sent_in_any_case: bool,
}

impl HeldAnswer {
    /// Bytes of such an answer, while nothing of it waits for its client.
    pub(in crate::serve) const IDLE_BYTES: u64 = 2 << 10;

    /// An answer of which all that it may take is in its share.
    pub(in crate::serve) fn whole(share: Share) -> Self {
        Self {
            share,
            waiting: None,
        }
    }

    /// An answer that takes what its client leaves waiting, and what upstream sends ahead meanwhile. One that
    /// may not be cut takes it whatever its caller's share is.
    pub(in crate::serve) fn of_waiting(share: Share, ahead: SentAhead, may_cut: bool) -> Self {
        Self {
            share,
            waiting: Some(WaitingBytes {
                in_connection: Self::IDLE_BYTES,
                ahead,
                is_sent_in_any_case: !may_cut,
            }),
        }
    }

    /// Notes that so many bytes wait for the client. Returns `false` if its caller's share does not
    /// allow that. Then they are not counted, and should not wait for long.
    pub(super) fn waits(&mut self, bytes: usize) -> bool {
        let Some(waiting) = &mut self.waiting else {
            return true;
        };
        let bytes = bytes as u64;
        let before = waiting.in_connection;
        waiting.in_connection = bytes.clamp(Self::IDLE_BYTES, CONNECTION_BYTES);
        let counted = before + bytes + waiting.ahead.0;
        if waiting.is_sent_in_any_case {
            self.share.force(counted);
            return true;
        }
        self.share.resize(counted)
    }

    /// Notes that the connection has taken what waited. It holds that until the client takes it.
    pub(super) fn taken(&mut self) {
        if let Some(waiting) = &self.waiting
            && waiting.in_connection != self.share.amount()
        {
            self.share.resize(waiting.in_connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::{CallerKey, ShareLimits, Shares};
    use crate::metric::Gauge;

    #[test]
    fn what_upstream_may_send_ahead_counts_while_a_piece_waits() {
        let limits = ShareLimits {
            all: 6 << 20,
            each: 0,
        };
        let shares = Shares::new(limits, Gauge::noop());
        let caller = CallerKey::Address([192, 0, 2, 1].into());
        let open = |ahead, may_cut| {
            let share = shares.take(caller.clone(), HeldAnswer::IDLE_BYTES);
            HeldAnswer::of_waiting(share.unwrap(), ahead, may_cut)
        };
        let pieces = SentAhead::of_pieces(None);
        let mut log = open(pieces, true);
        assert!(log.waits(1));
        assert!(log.share.amount() > 2 << 20);
        let mut other = open(pieces, true);
        assert!(!other.waits(1), "one caller has half of what is free");
        assert!(open(SentAhead::EVENTS, true).waits(1));
        assert!(open(SentAhead::of_pieces(Some(300)), true).waits(300));
        assert!(
            open(pieces, false).waits(1),
            "it tells what upstream has done"
        );
        log.taken();
        assert_eq!(log.share.amount(), HeldAnswer::IDLE_BYTES);
        assert!(other.waits(1));
    }
}
