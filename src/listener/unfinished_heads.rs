//! The memory of request heads that clients have begun and not completed.
//!
//! A head usually comes at once. So heads that are not complete take next to nothing together,
//! unless many clients hold back the ends of theirs. Then the connections with long ones are closed.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::budget::MemoryBudget;

/// Divisor: they may take a 32nd of the memory budget. What was read is in memory about twice.
const BUDGET_DIVISOR: usize = 32;
/// Bytes that they may take without a budget, and at most.
const MAX_BYTES: usize = 32 << 20;
/// Bytes of each head that do not count: nearly all heads are shorter.
const UNCOUNTED: usize = 4 << 10;

/// The bytes of the heads that are not complete, on all connections of a listener.
#[derive(Debug)]
pub(super) struct UnfinishedHeads {
    bytes: AtomicUsize,
    limit: usize,
}

/// The head that a connection reads.
#[derive(Debug)]
pub(super) struct UnfinishedHead {
    all: Arc<UnfinishedHeads>,
    counted: AtomicUsize,
}

impl UnfinishedHeads {
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

    /// Counts the heads of one more connection, one after the other.
    pub(super) fn of_connection(self: &Arc<Self>) -> UnfinishedHead {
        UnfinishedHead {
            all: Arc::clone(self),
            counted: AtomicUsize::new(0),
        }
    }
}

impl UnfinishedHead {
    /// Notes the bytes of the head so far; zero once it is complete. Returns `false` if this one is
    /// long, and all of them take too much together.
    pub(super) fn set(&self, bytes: usize) -> bool {
        let counted = bytes.saturating_sub(UNCOUNTED);
        if counted == self.counted.load(Ordering::Acquire) {
            return true;
        }
        let before = self.counted.swap(counted, Ordering::AcqRel);
        if counted < before {
            self.all.bytes.fetch_sub(before - counted, Ordering::AcqRel);
            return true;
        }
        let more = counted - before;
        self.all.bytes.fetch_add(more, Ordering::AcqRel) + more <= self.all.limit
    }
}

impl Drop for UnfinishedHead {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_heads_share_a_part_of_the_memory_until_they_are_complete() {
        let all = UnfinishedHeads::within(&MemoryBudget::new(Some(32 * 100_000)));
        let [one, two] = [(); 2].map(|()| all.of_connection());
        assert!(one.set(60_000) && one.set(UNCOUNTED + 80_000));
        assert!(two.set(UNCOUNTED) && two.set(UNCOUNTED + 20_000));
        assert!(!two.set(UNCOUNTED + 20_001));
        assert!(one.set(0) && two.set(UNCOUNTED + 100_000));
        drop(two);
        assert!(one.set(UNCOUNTED + 100_000));
        assert_eq!(
            UnfinishedHeads::within(&MemoryBudget::default()).limit,
            MAX_BYTES
        );
    }
}
