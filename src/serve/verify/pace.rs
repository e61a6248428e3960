//! Bounds what comparisons cost: their number at a time, and their requests and bytes a second.
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Comparisons at a time, with the answers that are still being sent.
const AT_A_TIME: usize = 4;
/// Shortest time between the starts of two.
const BETWEEN: Duration = Duration::from_millis(100);
/// Bytes that upstream reads for comparisons in a second, on average.
const BYTES_A_SECOND: f64 = (4 << 20) as f64;

/// The pace of comparisons.
pub(super) struct Pace {
    slots: Arc<Semaphore>,
    /// The moment from which the next one may begin.
    next: Mutex<Instant>,
}

/// A comparison's turn.
pub(super) struct PaceTurn {
    pace: Arc<Pace>,
    _slot: OwnedSemaphorePermit,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(AT_A_TIME)),
            next: Mutex::new(Instant::now()),
        }
    }
}

impl Pace {
    /// Returns a turn, if there is one now.
    pub(super) fn begin(self: &Arc<Self>) -> Option<PaceTurn> {
        self.begin_at(Instant::now())
    }

    fn begin_at(self: &Arc<Self>, now: Instant) -> Option<PaceTurn> {
        let mut next = self.next.lock();
        if now < *next {
            return None;
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        *next = now + BETWEEN;
        Some(PaceTurn {
            pace: Arc::clone(self),
            _slot: slot,
        })
    }
}

impl PaceTurn {
    /// Puts off the next turns, as upstream reads so many bytes for this one.
    pub(super) fn spend(&self, bytes: usize) {
        self.spend_at(Instant::now(), bytes);
    }

    fn spend_at(&self, now: Instant, bytes: usize) {
        let cost = Duration::from_secs_f64(bytes as f64 / BYTES_A_SECOND);
        let mut next = self.pace.next.lock();
        // The client may have taken its time for the answer.
        *next = (*next).max(now) + cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_bounded_in_number_and_rate() {
        let pace = Arc::new(Pace::default());
        let start = Instant::now();
        let first = pace.begin_at(start).unwrap();
        assert!(pace.begin_at(start).is_none());
        let turns: Vec<_> = (1..4)
            .map(|number| pace.begin_at(start + BETWEEN * number).unwrap())
            .collect();
        assert!(
            pace.begin_at(start + BETWEEN * 4).is_none(),
            "all slots are taken"
        );
        drop(turns);
        let later = start + BETWEEN * 5;
        let last = pace.begin_at(later).unwrap();
        // The answer ended long after it began.
        let ended = later + Duration::from_mins(1);
        last.spend_at(ended, 8 << 20);
        let rested = ended + Duration::from_secs(2);
        assert!(
            pace.begin_at(rested.checked_sub(BETWEEN).unwrap())
                .is_none()
        );
        assert!(pace.begin_at(rested).is_some());
        drop(first);
    }
}
