//! Shares of a resource that is counted, such as open watches.
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::caller_key::CallerKey;
use crate::budget::MemoryCharge;
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
    /// What is held, if it is memory.
    charge: Option<MemoryCharge>,
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

    /// Creates a resource of bytes, which `charge` counts while they are held.
    pub fn of_memory(limits: ShareLimits, held: Gauge, charge: MemoryCharge) -> Self {
        let shares = Self::new(limits, held);
        shares.0.table.lock().charge = Some(charge);
        shares
    }

    /// Takes a part of the resource for a caller. Returns `None` if its share is used up.
    pub fn take(&self, caller: CallerKey, amount: u64) -> Option<Share> {
        self.take_of(caller, amount, self.0.limits.all)
    }

    /// Takes a part like [`Shares::take`], where there is at most `all` for all callers now.
    pub fn take_of(&self, caller: CallerKey, amount: u64, all: u64) -> Option<Share> {
        let limits = ShareLimits {
            all,
            ..self.0.limits
        };
        let mut table = self.0.table.lock();
        if !table.fits(&caller, amount, limits) {
            return None;
        }
        table.add(&caller, amount);
        self.0.show(&mut table);
        Some(Share {
            shares: self.clone(),
            caller,
            amount,
        })
    }
}

impl SharedResource {
    /// Shows what is held after a change.
    fn show(&self, table: &mut ShareTable) {
        self.held.set(table.held as f64);
        if let Some(charge) = &mut table.charge {
            charge.set(usize::try_from(table.held).unwrap_or(usize::MAX));
        }
    }
}

impl ShareTable {
    /// Returns `true` if a caller may hold so much more.
    fn fits(&self, caller: &CallerKey, amount: u64, limits: ShareLimits) -> bool {
        let ShareLimits { all, each } = limits;
        let own = self.callers.get(caller).copied().unwrap_or(0);
        let own = own.saturating_add(amount);
        (each == 0 || own <= each) && (all == 0 || own <= all.saturating_sub(self.held))
    }

    fn add(&mut self, caller: &CallerKey, amount: u64) {
        self.held = self.held.saturating_add(amount);
        match self.callers.get_mut(caller) {
            Some(own) => *own = own.saturating_add(amount),
            None => {
                self.callers.insert(caller.clone(), amount);
            }
        }
    }

    fn remove(&mut self, caller: &CallerKey, amount: u64) {
        self.held = self.held.saturating_sub(amount);
        if let Some(own) = self.callers.get_mut(caller) {
            *own = own.saturating_sub(amount);
            if *own == 0 {
                self.callers.remove(caller);
            }
        }
    }
}

impl Share {
    /// Holds so much from now on. Returns `false` if the caller's share does not allow that; it holds
    /// as much as before then. Less is always allowed.
    pub fn resize(&mut self, amount: u64) -> bool {
        self.change(amount, false)
    }

    /// Holds so much from now on, whether the caller's share allows it or not. What is held already
    /// counts, so that the caller gets no more.
    pub fn force(&mut self, amount: u64) {
        self.change(amount, true);
    }

    fn change(&mut self, amount: u64, is_forced: bool) -> bool {
        let shared = &self.shares.0;
        let mut table = shared.table.lock();
        let more = amount.saturating_sub(self.amount);
        if more > 0 && !is_forced && !table.fits(&self.caller, more, shared.limits) {
            return false;
        }
        table.remove(&self.caller, self.amount);
        table.add(&self.caller, amount);
        shared.show(&mut table);
        self.amount = amount;
        true
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
        let shared = &self.shares.0;
        let mut table = shared.table.lock();
        table.remove(&self.caller, self.amount);
        shared.show(&mut table);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::{MemoryBudget, MemoryClass};

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

    #[test]
    fn what_must_be_held_leaves_a_caller_nothing_more() {
        let shares = shares(100, 0);
        let mut first = shares.take(user(1), 10).unwrap();
        assert!(!first.resize(95), "more than is left free");
        assert!(first.resize(40));
        first.force(60);
        assert!(shares.take(user(1), 1).is_none());
        assert!(
            shares.take(user(2), 20).is_some(),
            "others have their share"
        );
        assert!(first.resize(59), "less is always allowed");
    }

    #[derive(Clone, Debug)]
    enum Act {
        Take(usize, u64),
        Resize(usize, u64),
        Release(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..4usize, 0..9u64).prop_map(|(caller, amount)| Act::Take(caller, amount)),
            (0..9usize, 0..9u64).prop_map(|(share, amount)| Act::Resize(share, amount)),
            (0..9usize).prop_map(Act::Release),
        ]
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_is_held(
            acts in proptest::collection::vec(act(), 0..200),
        ) {
            let memory = MemoryBudget::default();
            let charge = memory.charge(MemoryClass::Answers, 0);
            let limits = ShareLimits { all: 40, each: 20 };
            let shares = Shares::of_memory(limits, Gauge::noop(), charge);
            let mut held: Vec<Share> = Vec::new();
            for act in acts {
                let count = held.len();
                match act {
                    Act::Take(caller, amount) => held.extend(shares.take(user(caller), amount)),
                    Act::Resize(..) | Act::Release(_) if count == 0 => {}
                    Act::Resize(share, amount) => {
                        held[share % count].resize(amount);
                    }
                    Act::Release(share) => drop(held.swap_remove(share % count)),
                }
                let sum: u64 = held.iter().map(|share| share.amount).sum();
                prop_assert_eq!(shares.0.table.lock().held, sum);
                prop_assert_eq!(memory.counted_total() as u64, sum);
                prop_assert!(sum <= 40);
            }
            drop(held);
            prop_assert!(shares.0.table.lock().callers.is_empty());
        }
    }
}
