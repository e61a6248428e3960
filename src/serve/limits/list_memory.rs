//! The memory that a list takes of its own, beside the objects to which it refers.
use super::exceeded::LimitExceeded;
use crate::fairness::{CallerKey, Share, Shares};

/// Bytes that count as those of the request: most lists are small.
const SMALL: usize = 4 << 10;
/// Bytes that a list may keep without asking, and that it asks for at a time.
const STEP: usize = 16 << 10;
/// The most bytes that a list keeps.
pub(in crate::serve) const MAX_KEPT: usize = 256 << 10;
/// Divisor: lists keep something only while requests and answers take less than a quarter of the memory
/// that there is for them.
const KEPT_DIVISOR: u64 = 4;

/// Counts the memory of one list for its caller, while it is put together and sent.
///
/// It has references to its objects. It may keep what was made of them to measure them: otherwise
/// that is made again when it is sent.
pub(in crate::serve) struct ListMemory {
    shares: Shares,
    caller: CallerKey,
    references: Option<Share>,
    kept: Option<Share>,
    /// Bytes that may be kept so far.
    granted: usize,
}

impl ListMemory {
    /// Begins a list that has nothing yet.
    pub(super) fn new(shares: Shares, caller: CallerKey) -> Self {
        Self {
            shares,
            caller,
            references: None,
            kept: None,
            granted: STEP,
        }
    }

    /// Counts the bytes of all references so far.
    pub(in crate::serve) fn refer(&mut self, bytes: usize) -> Result<(), LimitExceeded> {
        if bytes <= SMALL {
            return Ok(());
        }
        let bytes = bytes as u64;
        let fits = if let Some(references) = &mut self.references {
            bytes <= references.amount() || references.resize(bytes)
        } else {
            self.references = self.shares.take(self.caller.clone(), bytes);
            self.references.is_some()
        };
        fits.then_some(()).ok_or(LimitExceeded::Memory)
    }

    /// Returns `true` if so many bytes may be kept in all.
    pub(in crate::serve) fn may_keep(&mut self, bytes: usize) -> bool {
        while bytes > self.granted {
            let granted = self.granted + STEP;
            if granted > MAX_KEPT {
                return false;
            }
            let caller = self.caller.clone();
            let Some(more) = self.shares.take_part(caller, STEP as u64, KEPT_DIVISOR) else {
                return false;
            };
            match &mut self.kept {
                Some(kept) => kept.merge(more),
                None => self.kept = Some(more),
            }
            self.granted = granted;
        }
        true
    }

    /// Returns what is to be held until the list is sent; `None` if that is nothing.
    pub(in crate::serve) fn until_sent(self) -> Option<impl Send + Unpin + 'static> {
        let is_empty = self.references.is_none() && self.kept.is_none();
        (!is_empty).then_some((self.references, self.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::ShareLimits;
    use crate::metric::Gauge;

    fn memory(shares: &Shares, user: &str) -> ListMemory {
        ListMemory::new(shares.clone(), CallerKey::user(user))
    }

    #[test]
    fn lists_keep_less_where_memory_is_short_and_refer_to_no_more_than_a_share() {
        let limits = ShareLimits {
            all: 2 << 20,
            each: 0,
        };
        let shares = Shares::new(limits, Gauge::noop());
        let mut first = memory(&shares, "ann");
        assert!(first.refer(SMALL).is_ok() && first.refer(100 << 10).is_ok());
        assert!(first.may_keep(STEP) && first.may_keep(4 * STEP));
        assert!(
            !first.may_keep(MAX_KEPT),
            "a part of the share is for others"
        );
        assert!(first.may_keep(4 * STEP));
        let mut second = memory(&shares, "ann");
        assert!(second.refer(2 << 20).is_err(), "the share is smaller");
        assert!(second.refer(500 << 10).is_ok() && second.refer(400 << 10).is_ok());
        assert!(second.may_keep(STEP) && !second.may_keep(STEP + 1));
        assert!(memory(&shares, "bob").refer(300 << 10).is_ok());
        let held = (first.until_sent(), second.until_sent());
        assert!(memory(&shares, "ann").refer(900 << 10).is_err());
        drop(held);
        assert!(memory(&shares, "ann").refer(900 << 10).is_ok());
        assert!(memory(&shares, "ann").until_sent().is_none());
    }

    #[test]
    fn a_list_keeps_no_more_than_the_limit() {
        let shares = Shares::new(ShareLimits::default(), Gauge::noop());
        let mut list = memory(&shares, "ann");
        assert!(list.may_keep(MAX_KEPT) && !list.may_keep(MAX_KEPT + 1));
    }
}
