//! The memory of what clients send, as far as no request counts it: of heads that they have begun and not
//! completed, of what h2 keeps of earlier ones to decode the next, and of what it keeps with the unread
//! pieces of bodies.
//!
//! A head usually comes at once, little of it is kept, and bodies come in large pieces or with little
//! between small ones. So all of this takes next to nothing, unless many clients hold back the ends of
//! heads, or send what has much kept. Then such connections end.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::budget::MemoryBudget;

/// Divisor: each of the three may take a 32nd of the memory budget. What was read of heads that are not
/// complete is in memory about twice.
const BUDGET_DIVISOR: usize = 32;
/// Bytes that each may take without a budget, and at most.
const MAX_BYTES: usize = 32 << 20;
/// Bytes of each head that do not count: nearly all heads are shorter.
const UNCOUNTED: usize = 4 << 10;
/// Bytes kept for a connection that do not count: most usual clients have less, and it is a part of what
/// counts for each connection.
const UNCOUNTED_OF_KEPT: usize = 16 << 10;

/// The bytes of all connections of a listener.
#[derive(Debug)]
pub(super) struct InputMemory {
    /// Bytes of heads that are not complete.
    unfinished: AtomicUsize,
    /// Bytes that are kept of earlier heads.
    kept: AtomicUsize,
    /// Bytes that are kept with unread pieces of bodies.
    unread: AtomicUsize,
    /// Bytes that each of them may have.
    limit: usize,
}

/// The bytes of one connection.
#[derive(Debug)]
pub(super) struct ConnectionInput {
    all: Arc<InputMemory>,
    unfinished: AtomicUsize,
    kept: AtomicUsize,
    unread: AtomicUsize,
}

/// The room for what is kept of what clients have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptRoom {
    Enough,
    /// Half of it is taken, also by this connection.
    Little,
    /// This connection has taken more than there was.
    None,
}

impl InputMemory {
    /// Returns a count whose limit follows from this budget.
    pub(super) fn within(budget: &MemoryBudget) -> Arc<Self> {
        let share = budget
            .limit()
            .map_or(MAX_BYTES, |limit| limit / BUDGET_DIVISOR);
        Arc::new(Self {
            unfinished: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
            limit: share.min(MAX_BYTES),
        })
    }

    /// Counts the heads of one more connection.
    pub(super) fn of_connection(self: &Arc<Self>) -> ConnectionInput {
        ConnectionInput {
            all: Arc::clone(self),
            unfinished: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
        }
    }
}

impl ConnectionInput {
    /// Notes the bytes so far of the head that is being read; zero once it is complete. Returns `false`
    /// if this one is long, and all of them take too much together.
    pub(super) fn set_unfinished(&self, bytes: usize) -> bool {
        let counted = bytes.saturating_sub(UNCOUNTED);
        let all = change(&self.unfinished, &self.all.unfinished, counted);
        all.is_none_or(|all| all <= self.all.limit)
    }

    /// Notes the bytes that are kept of earlier heads. Returns the room for more, if these are many. Unknown
    /// clients have none beyond a quarter of it, so that they alone do not make known ones leave.
    pub(super) fn set_kept(&self, bytes: usize, is_known: bool) -> KeptRoom {
        let counted = bytes.saturating_sub(UNCOUNTED_OF_KEPT);
        self.room(change(&self.kept, &self.all.kept, counted), is_known)
    }

    /// Does the same for the bytes that are kept with unread pieces of bodies.
    pub(super) fn set_unread(&self, bytes: usize, is_known: bool) -> KeptRoom {
        let counted = bytes.saturating_sub(UNCOUNTED_OF_KEPT);
        self.room(change(&self.unread, &self.all.unread, counted), is_known)
    }

    /// Returns the room, if this connection has more than before, and all have so many.
    fn room(&self, all: Option<usize>, is_known: bool) -> KeptRoom {
        match all {
            Some(all) if all > self.all.limit => KeptRoom::None,
            Some(all) if all > self.all.limit / 4 && !is_known => KeptRoom::None,
            Some(all) if all > self.all.limit / 2 => KeptRoom::Little,
            _ => KeptRoom::Enough,
        }
    }
}

/// Counts a connection with other bytes than before. Returns the bytes of all if it has more now.
fn change(own: &AtomicUsize, all: &AtomicUsize, bytes: usize) -> Option<usize> {
    if bytes == own.load(Ordering::Acquire) {
        return None;
    }
    let before = own.swap(bytes, Ordering::AcqRel);
    if bytes < before {
        all.fetch_sub(before - bytes, Ordering::AcqRel);
        return None;
    }
    let more = bytes - before;
    Some(all.fetch_add(more, Ordering::AcqRel) + more)
}

impl Drop for ConnectionInput {
    fn drop(&mut self) {
        self.set_unfinished(0);
        self.set_kept(0, true);
        self.set_unread(0, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_heads_share_a_part_of_the_memory_until_they_are_complete() {
        let all = InputMemory::within(&MemoryBudget::new(Some(32 * 100_000)));
        let [one, two] = [(); 2].map(|()| all.of_connection());
        assert!(one.set_unfinished(60_000) && one.set_unfinished(UNCOUNTED + 80_000));
        assert!(two.set_unfinished(UNCOUNTED) && two.set_unfinished(UNCOUNTED + 20_000));
        assert!(!two.set_unfinished(UNCOUNTED + 20_001));
        assert!(one.set_unfinished(0) && two.set_unfinished(UNCOUNTED + 100_000));
        drop(two);
        assert!(one.set_unfinished(UNCOUNTED + 100_000));
        assert_eq!(
            InputMemory::within(&MemoryBudget::default()).limit,
            MAX_BYTES
        );
    }

    #[test]
    fn what_is_kept_shares_a_part_of_the_memory_of_which_strangers_have_a_quarter() {
        let all = InputMemory::within(&MemoryBudget::new(Some(32 * 100_000)));
        let [one, two] = [(); 2].map(|()| all.of_connection());
        let set = |connection: &ConnectionInput, counted: usize, is_known| {
            connection.set_kept(UNCOUNTED_OF_KEPT + counted, is_known)
        };
        assert_eq!(set(&one, 25_000, false), KeptRoom::Enough);
        assert_eq!(set(&two, 0, false), KeptRoom::Enough);
        assert_eq!(set(&two, 1, false), KeptRoom::None);
        assert_eq!(set(&two, 25_000, true), KeptRoom::Enough);
        assert_eq!(set(&two, 75_000, true), KeptRoom::Little);
        assert_eq!(
            set(&two, 75_000, true),
            KeptRoom::Enough,
            "it takes no more"
        );
        assert_eq!(set(&two, 75_001, true), KeptRoom::None);
        assert!(one.set_unfinished(UNCOUNTED + 100_000), "these count apart");
        drop(two);
        assert_eq!(set(&one, 20_000, false), KeptRoom::Enough);
        assert_eq!(set(&one, 50_000, true), KeptRoom::Enough);
        assert_eq!(set(&one, 100_000, true), KeptRoom::Little);
    }
}
