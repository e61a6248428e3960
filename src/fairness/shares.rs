//! Shares of a resource that is counted, such as open watches.
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::caller_key::CallerKey;
use crate::metric::Gauge;

/// Bounds of a resource. Zero stands for no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareLimits {
    /// The bound for all callers together.
    pub all: u64,
    /// The bound for each caller.
    pub each: u64,
}

/// Counts how much of a resource each caller holds. Cheap to clone.
///
/// With a bound for all, a caller may hold as much as is left free after it took more:
/// one alone gets half, two get a third each, and something is left for whoever comes next.
#[derive(Clone)]
pub struct Shares(Arc<SharedResource>);

struct SharedResource {
    limits: ShareLimits,
    table: Mutex<ShareTable>,
    held: Gauge,
}

#[derive(Default)]
struct ShareTable {
    held: u64,
    callers: HashMap<CallerKey, u64>,
}

/// A part of a resource, held until this is dropped.
pub struct Share {
    shares: Shares,
    caller: CallerKey,
    amount: u64,
}

impl Shares {
    /// Creates a resource of which nothing is held. `held` shows how much is.
    pub fn new(limits: ShareLimits, held: Gauge) -> Self {
        Self(Arc::new(SharedResource {
            limits,
            table: Mutex::default(),
            held,
        }))
    }

    /// Takes a part of the resource for a caller. Returns `None` if its share is used up.
    pub fn take(&self, caller: CallerKey, amount: u64) -> Option<Share> {
        self.take_of(caller, amount, self.0.limits.all)
    }

    /// Takes a part like [`Shares::take`], where there is at most `all` for all callers now.
    pub fn take_of(&self, caller: CallerKey, amount: u64, all: u64) -> Option<Share> {
        let each = self.0.limits.each;
        let mut table = self.0.table.lock();
        let own = table.callers.get(&caller).copied().unwrap_or(0);
        let own = own.saturating_add(amount);
        let held = table.held.saturating_add(amount);
        if (each > 0 && own > each) || (all > 0 && own > all.saturating_sub(table.held)) {
            return None;
        }
        table.callers.insert(caller.clone(), own);
        table.held = held;
        self.0.held.set(held as f64);
        Some(Share {
            shares: self.clone(),
            caller,
            amount,
        })
    }
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shares")
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut table = self.shares.0.table.lock();
        table.held = table.held.saturating_sub(self.amount);
        self.shares.0.held.set(table.held as f64);
        if let Some(own) = table.callers.get_mut(&self.caller) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                table.callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(all: u64, each: u64) -> Shares {
        Shares::new(ShareLimits { all, each }, Gauge::noop())
    }

    fn user(number: usize) -> CallerKey {
        CallerKey::user(&format!("user-{number}"))
    }

    fn take_all(shares: &Shares, number: usize) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(user(number), 1)).collect()
    }

    #[test]
    fn something_is_left_for_the_next_caller() {
        let shares = shares(100, 0);
        let held: Vec<_> = (0..5).map(|number| take_all(&shares, number)).collect();
        let counts: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [50, 25, 13, 6, 3]);
        drop(held);
        assert!(shares.0.table.lock().callers.is_empty());
        assert_eq!(take_all(&shares, 9).len(), 50);
    }

    #[test]
    fn a_caller_at_its_limit_affects_no_other() {
        let shares = shares(0, 3);
        let first = take_all(&shares, 1);
        assert_eq!(first.len(), 3);
        assert_eq!(take_all(&shares, 2).len(), 3);
        assert!(shares.take(user(3), 4).is_none(), "more than a share");
        drop(first);
        assert!(shares.take(user(1), 3).is_some());
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_is_held(
            acts in proptest::collection::vec((0..4usize, 0..9u64, any::<bool>()), 0..200),
        ) {
            let shares = shares(40, 20);
            let mut held: Vec<Share> = Vec::new();
            for (caller, amount, is_release) in acts {
                if is_release && !held.is_empty() {
                    held.swap_remove(caller % held.len());
                } else {
                    held.extend(shares.take(user(caller), amount));
                }
                let sum: u64 = held.iter().map(|share| share.amount).sum();
                prop_assert_eq!(shares.0.table.lock().held, sum);
                prop_assert!(sum <= 40);
            }
        }
    }
}
