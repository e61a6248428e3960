//! The position of a subscription in the window.
use super::sync::{AtomicU64, Ordering};

/// A place among the events of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// No event of interest is left.
    CaughtUp,
    /// The event with this sequence number comes next. It may lie at the head of the window, where
    /// no event is yet.
    At(u64),
    /// Events that the subscription is owed are lost. This is final.
    Expired,
}

/// A [`Position`] that the writer and one subscription share.
///
/// It changes only under the store's lock, so that it always fits the window: the writer moves it
/// under the write lock, the subscription under the read lock. Hence one plain atomic is enough.
#[derive(Debug)]
pub(super) struct Cursor(AtomicU64);

/// No window comes to these sequence numbers.
const CAUGHT_UP: u64 = u64::MAX;
const EXPIRED: u64 = u64::MAX - 1;

impl Cursor {
    pub(super) fn new(position: Position) -> Self {
        Self(AtomicU64::new(encode(position)))
    }

    pub(super) fn position(&self) -> Position {
        match self.0.load(Ordering::Acquire) {
            CAUGHT_UP => Position::CaughtUp,
            EXPIRED => Position::Expired,
            sequence => Position::At(sequence),
        }
    }

    pub(super) fn set(&self, position: Position) {
        self.0.store(encode(position), Ordering::Release);
    }

    /// Moves a cursor that has caught up to an event. Returns `true` if it had caught up: any other
    /// comes to the event by itself.
    pub(super) fn offer(&self, sequence: u64) -> bool {
        self.0
            .compare_exchange(CAUGHT_UP, sequence, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

fn encode(position: Position) -> u64 {
    match position {
        Position::CaughtUp => CAUGHT_UP,
        Position::At(sequence) => sequence,
        Position::Expired => EXPIRED,
    }
}
