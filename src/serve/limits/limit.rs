//! A resource that callers share within a limit.
use super::exceeded::LimitExceeded;
use crate::budget::{MemoryBudget, MemoryClass};
use crate::fairness::{CallerKey, Share, ShareLimits, Shares};
use crate::metric::Gauge;
use crate::serve::metrics;

/// The shares that callers have of a resource, and the limit that a caller exceeds by taking more.
pub(super) struct Limit {
    shares: Shares,
    exceeded: LimitExceeded,
    /// Shows the bound for all callers.
    bound: Gauge,
}

impl Limit {
    /// Creates a resource with a bound for all callers and one for each. Zero stands for no bound.
    pub(super) fn new(exceeded: LimitExceeded, all: u64, each: u64) -> Self {
        let [held, bound] = metrics::limited_number(exceeded.as_str(), all);
        let shares = Shares::new(ShareLimits { all, each }, held);
        Self {
            shares,
            exceeded,
            bound,
        }
    }

    /// Creates a resource of bytes, like [`Limit::new`].
    pub(super) fn of_bytes(exceeded: LimitExceeded, all: u64, each: u64) -> Self {
        let [held, bound] = metrics::limited_bytes(exceeded.as_str(), all);
        let shares = Shares::new(ShareLimits { all, each }, held);
        Self {
            shares,
            exceeded,
            bound,
        }
    }

    /// Creates a resource of bytes that answers take. Each caller may hold `least` in any case.
    pub(super) fn of_memory(
        exceeded: LimitExceeded,
        all: u64,
        least: u64,
        memory: &MemoryBudget,
    ) -> Self {
        let [held, bound] = metrics::limited_bytes(exceeded.as_str(), all);
        let charge = memory.charge(MemoryClass::Answers, 0);
        let shares = Shares::of_memory(ShareLimits { all, each: 0 }, least, held, charge);
        Self {
            shares,
            exceeded,
            bound,
        }
    }

    /// Takes a part of the resource for a caller.
    pub(super) fn take(&self, caller: CallerKey, amount: u64) -> Result<Share, LimitExceeded> {
        self.shares.take(caller, amount).ok_or(self.exceeded)
    }

    /// Takes a part like [`Limit::take`], where there is at most `all` for all callers now.
    pub(super) fn take_of(
        &self,
        caller: CallerKey,
        amount: u64,
        all: u64,
    ) -> Result<Share, LimitExceeded> {
        self.bound.set(all as f64);
        let share = self.shares.take_of(caller, amount, all);
        share.ok_or(self.exceeded)
    }

    /// Returns `true` if the share is a part of this resource.
    pub(super) fn owns(&self, share: &Share) -> bool {
        share.is_of(&self.shares)
    }

    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    pub(super) fn exceeded(&self) -> LimitExceeded {
        self.exceeded
    }
}
