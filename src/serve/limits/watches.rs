//! The shares that callers have of open watches, and of the memory that their texts take: the selectors, and
//! the record for the audit log.
use super::WITHOUT_BUDGET;
use super::exceeded::LimitExceeded;
use super::limit::Limit;
use crate::budget::MemoryBudget;
use crate::fairness::{CallerKey, Share};
use crate::serve::policy::UserLimits;
use crate::serve::usage::WATCH_BYTES;

/// Divisors: all watches may take a quarter of the memory budget, and all their texts an eighth. One
/// user alone gets half of that.
const WATCH_DIVISOR: usize = 4;
const TEXT_DIVISOR: usize = 8;

/// Counts the open watches of each user, and the bytes of their texts.
///
/// All callers without credentials are one user here: by address, one of many addresses would have many shares.
pub(in crate::serve) struct WatchLimits {
    watches: Limit,
    texts: Limit,
}

/// The share of an open watch, until this is dropped.
pub(in crate::serve) struct WatchShare {
    _watch: Share,
    _texts: Share,
}

impl WatchLimits {
    /// Returns the shares of watches within a budget.
    pub(in crate::serve) fn within(memory: &MemoryBudget, limits: UserLimits) -> Self {
        let budget = memory.limit().unwrap_or(WITHOUT_BUDGET);
        let watches = (budget / WATCH_DIVISOR / WATCH_BYTES) as u64;
        let texts = (budget / TEXT_DIVISOR) as u64;
        Self {
            watches: Limit::new(LimitExceeded::Watches, watches, limits.watches.into()),
            texts: Limit::of_bytes(LimitExceeded::SelectorBytes, texts, limits.selector_bytes),
        }
    }

    /// Counts a watch of a user that begins now, with the bytes of its texts.
    pub(in crate::serve) fn begin(
        &self,
        user: &str,
        text_bytes: u64,
    ) -> Result<WatchShare, LimitExceeded> {
        let caller = CallerKey::user(user);
        Ok(WatchShare {
            _watch: self.watches.take(caller.clone(), 1)?,
            _texts: self.texts.take(caller, text_bytes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_of_many_users_stay_within_a_part_of_the_memory() {
        let memory = MemoryBudget::new(Some(16 << 20));
        let limits = WatchLimits::within(&memory, UserLimits::default());
        let of = |number: usize| {
            let user = format!("user-{number}");
            std::iter::from_fn(|| limits.begin(&user, 0).ok()).collect::<Vec<_>>()
        };
        let open: Vec<_> = (0..5).map(&of).collect();
        let counts: Vec<_> = open.iter().map(Vec::len).collect();
        assert_eq!(counts, [1024, 512, 256, 128, 64], "of 2,048");
        drop(open);
        assert_eq!(of(9).len(), 1024);
    }

    #[test]
    fn a_user_with_large_selectors_affects_no_other() {
        let limits = UserLimits {
            watches: 10,
            selector_bytes: 1_000,
            ..UserLimits::default()
        };
        let limits = WatchLimits::within(&MemoryBudget::default(), limits);
        let large = 700;
        let first = limits.begin("ann", large).unwrap();
        assert_eq!(
            limits.begin("ann", large).err(),
            Some(LimitExceeded::SelectorBytes)
        );
        let open: Vec<_> = (0..20)
            .filter_map(|_| limits.begin("ann", 0).ok())
            .collect();
        assert_eq!(open.len(), 9, "a watch that was refused does not count");
        assert_eq!(limits.begin("ann", 0).err(), Some(LimitExceeded::Watches));
        let _other = limits.begin("bob", large).unwrap();
        drop((first, open));
        assert!(limits.begin("ann", large).is_ok());
    }
}
