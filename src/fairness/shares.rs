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
/// one alone gets half, two get a third each, and something is left for whoever comes next. Of a
/// caller that had to be given more, no more than that half counts for the others.
#[derive(Clone)]
pub struct Shares(Arc<SharedResource>);

struct SharedResource {
    limits: ShareLimits,
    /// Amount that each caller may always hold.
    least: u64,
    table: Mutex<ShareTable>,
    held: Gauge,
}

#[derive(Default)]
struct ShareTable {
    held: u64,
    /// Sum of the amounts that exceed half of `limits.all`, over all callers.
    beyond: u64,
    /// The part of `held` that is only expected.
    expected: u64,
    callers: HashMap<CallerKey, u64>,
    /// What is held, if it is memory.
    charge: Option<MemoryCharge>,
}

/// A part of a resource, held until this is dropped.
pub struct Share {
    shares: Shares,
    caller: CallerKey,
    part: Part,
}

/// The amount of a share, and how much of it is only expected.
#[derive(Clone, Copy, Default)]
struct Part {
    amount: u64,
    /// The part of `amount` that is only expected.
    expected: u64,
}

impl Part {
    fn held(amount: u64) -> Self {
        Self {
            amount,
            expected: 0,
        }
    }
}

impl Shares {
    /// Creates a resource of which nothing is held. `held` shows how much is.
    pub fn new(limits: ShareLimits, held: Gauge) -> Self {
        Self(Arc::new(SharedResource {
            limits,
            least: 0,
            table: Mutex::default(),
            held,
        }))
    }

    /// Creates a resource of which callers may hold so much together. No gauge shows how much is held.
    pub fn bounded(all: u64) -> Self {
        Self::new(ShareLimits { all, each: 0 }, Gauge::noop())
    }

    /// Creates a resource of bytes, which `charge` counts while they are held and not just expected.
    /// Each caller may hold `least` in any case.
    pub fn of_memory(limits: ShareLimits, least: u64, held: Gauge, charge: MemoryCharge) -> Self {
        let table = ShareTable {
            charge: Some(charge),
            ..ShareTable::default()
        };
        Self(Arc::new(SharedResource {
            limits,
            least,
            table: Mutex::new(table),
            held,
        }))
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
        let part = Part::held(amount);
        let is_taken = self
            .0
            .try_change(&caller, Part::default(), part, Some(limits));
        is_taken.then(|| self.share(caller, part))
    }

    /// Takes a part like [`Shares::take`], where only a `divisor`th of the resource is there now.
    pub fn take_part(&self, caller: CallerKey, amount: u64, divisor: u64) -> Option<Share> {
        let all = self.0.limits.all;
        // Zero stands for no bound.
        let part = if all > 0 { (all / divisor).max(1) } else { 0 };
        self.take_of(caller, amount, part)
    }

    /// Takes a part for a caller whether its share allows that or not.
    pub fn take_in_any_case(&self, caller: CallerKey, amount: u64) -> Share {
        let part = Part::held(amount);
        self.0.try_change(&caller, Part::default(), part, None);
        self.share(caller, part)
    }

    fn share(&self, caller: CallerKey, part: Part) -> Share {
        Share {
            shares: self.clone(),
            caller,
            part,
        }
    }
}

impl SharedResource {
    /// Changes what a share holds. Returns `false` if that exceeds the bounds of `within`; nothing
    /// changes then. Without bounds, it always changes.
    fn try_change(
        &self,
        caller: &CallerKey,
        before: Part,
        now: Part,
        within: Option<ShareLimits>,
    ) -> bool {
        let mut table = self.table.lock();
        let more = now.amount.saturating_sub(before.amount);
        if more > 0 && within.is_some_and(|limits| !table.fits(caller, more, limits, self.least)) {
            return false;
        }
        self.count(&mut table, caller, before, now);
        true
    }

    /// Counts what a caller holds in place of what it held, of one share.
    fn count(&self, table: &mut ShareTable, caller: &CallerKey, before: Part, now: Part) {
        table.expected = (table.expected + now.expected).saturating_sub(before.expected);
        let (before, now) = (before.amount, now.amount);
        let own = table.callers.get(caller).copied().unwrap_or(0);
        let changed = own.saturating_sub(before).saturating_add(now);
        table.held = table.held.saturating_sub(before).saturating_add(now);
        if self.limits.all > 0 {
            let beyond = |own: u64| own.saturating_sub(self.limits.all / 2);
            table.beyond = (table.beyond + beyond(changed)).saturating_sub(beyond(own));
        }
        if changed == 0 {
            table.callers.remove(caller);
        } else {
            match table.callers.get_mut(caller) {
                Some(own) => *own = changed,
                None => {
                    table.callers.insert(caller.clone(), changed);
                }
            }
        }
        self.held.set(table.held as f64);
        if let Some(charge) = &mut table.charge {
            let present = table.held.saturating_sub(table.expected);
            charge.set(usize::try_from(present).unwrap_or(usize::MAX));
        }
    }
}

impl ShareTable {
    /// Returns `true` if a caller may hold so much more.
    fn fits(&self, caller: &CallerKey, amount: u64, limits: ShareLimits, least: u64) -> bool {
        let ShareLimits { all, each } = limits;
        let own = self.callers.get(caller).copied().unwrap_or(0);
        let own = own.saturating_add(amount);
        let free = all.saturating_sub(self.held - self.beyond);
        amount == 0 || own <= least || ((each == 0 || own <= each) && (all == 0 || own <= free))
    }
}

impl Share {
    /// Returns what is held.
    pub fn amount(&self) -> u64 {
        self.part.amount
    }

    /// Returns `true` if it is a part of this resource.
    pub fn is_of(&self, shares: &Shares) -> bool {
        Arc::ptr_eq(&self.shares.0, &shares.0)
    }

    /// Returns the caller that it counts for.
    pub fn caller(&self) -> &CallerKey {
        &self.caller
    }

    /// Holds what another share of the same caller holds, too.
    pub fn merge(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.shares.0, &other.shares.0) && self.caller == other.caller);
        // The sum does not change.
        let other = std::mem::take(&mut other.part);
        self.part.amount += other.amount;
        self.part.expected += other.expected;
    }

    /// Holds so much from now on. Returns `false` if the caller's share does not allow that; it holds
    /// as much as before then. Less is always allowed.
    pub fn resize(&mut self, amount: u64) -> bool {
        self.resize_part(Part::held(amount))
    }

    /// Holds so much more from now on, which is only expected until the next change. Returns `false`
    /// as [`Share::resize`] does.
    pub fn expect(&mut self, more: u64) -> bool {
        self.resize_part(Part {
            amount: self.part.amount.saturating_add(more),
            expected: self.part.expected.saturating_add(more),
        })
    }

    fn resize_part(&mut self, part: Part) -> bool {
        let resource = &self.shares.0;
        let is_changed = resource.try_change(&self.caller, self.part, part, Some(resource.limits));
        if is_changed {
            self.part = part;
        }
        is_changed
    }

    /// Holds so much from now on, whether the caller's share allows it or not. What is beyond counts,
    /// so that the caller gets no more.
    pub fn force(&mut self, amount: u64) {
        let part = Part::held(amount);
        self.shares
            .0
            .try_change(&self.caller, self.part, part, None);
        self.part = part;
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
        self.shares
            .0
            .try_change(&self.caller, self.part, Part::default(), None);
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
        first.force(95);
        assert!(shares.take(user(1), 1).is_none());
        let others: Vec<_> = (2..4).filter_map(|n| shares.take(user(n), 20)).collect();
        assert_eq!(others.len(), 2, "others have their share");
        assert!(first.resize(59), "less is always allowed");
        drop((first, others));
        assert_eq!(shares.0.table.lock().beyond, 0);
    }

    #[test]
    fn each_caller_has_a_little_in_any_case() {
        let charge = MemoryBudget::default().charge(MemoryClass::Answers, 0);
        let limits = ShareLimits { all: 100, each: 0 };
        let shares = Shares::of_memory(limits, 5, Gauge::noop(), charge);
        let held: Vec<_> = (0..20).map(|number| take_all(&shares, number)).collect();
        assert!(held.iter().all(|shares| shares.len() >= 5));
        assert!(shares.take(user(30), 6).is_none());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Take(usize, u64),
        Resize(usize, u64),
        Expect(usize, u64),
        Force(usize, u64),
        Release(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..4usize, 0..9u64).prop_map(|(caller, amount)| Act::Take(caller, amount)),
            (0..9usize, 0..9u64).prop_map(|(share, amount)| Act::Resize(share, amount)),
            (0..9usize, 0..9u64).prop_map(|(share, more)| Act::Expect(share, more)),
            (0..9usize, 0..40u64).prop_map(|(share, amount)| Act::Force(share, amount)),
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
            let shares = Shares::of_memory(limits, 0, Gauge::noop(), charge);
            let mut held: Vec<Share> = Vec::new();
            for act in acts {
                let count = held.len();
                match act {
                    Act::Take(caller, amount) => held.extend(shares.take(user(caller), amount)),
                    _ if count == 0 => {}
                    Act::Resize(share, amount) => {
                        held[share % count].resize(amount);
                    }
                    Act::Expect(share, more) => {
                        held[share % count].expect(more);
                    }
                    Act::Force(share, amount) => {
                        held[share % count].force(amount);
                    }
                    Act::Release(share) => drop(held.swap_remove(share % count)),
                }
                let sum: u64 = held.iter().map(|share| share.part.amount).sum();
                let expected: u64 = held.iter().map(|share| share.part.expected).sum();
                prop_assert_eq!(shares.0.table.lock().held, sum);
                prop_assert_eq!(memory.counted_total() as u64, sum - expected);
                let table = shares.0.table.lock();
                let beyond = table.callers.values().map(|own| own.saturating_sub(20));
                prop_assert_eq!(table.beyond, beyond.sum::<u64>());
            }
            drop(held);
            prop_assert!(shares.0.table.lock().callers.is_empty());
        }
    }
}
