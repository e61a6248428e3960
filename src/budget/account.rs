//! Bytes by class, and the limit.
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use super::class::MemoryClass;
use super::pressure::PressureStep;
use super::resident::resident_bytes;

/// The memory of the process, by class, and its limit. Cheap to clone.
///
/// The figures are sums of independent atomics: they may be a moment apart.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudget(Arc<BudgetFigures>);

#[derive(Debug, Default)]
struct BudgetFigures {
    limit: Option<usize>,
    counted: [AtomicUsize; MemoryClass::ALL.len()],
    /// Bytes that loads under way are expected to take beyond what they hold.
    expected: AtomicUsize,
    /// Resident memory when it was last measured.
    resident: AtomicUsize,
    /// The sum of what was counted then.
    counted_then: AtomicUsize,
    /// Index of the step in [`PressureStep::ALL`].
    step: AtomicU8,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    budget: MemoryBudget,
    class: MemoryClass,
    bytes: usize,
}

impl MemoryBudget {
    /// Creates a budget of so many bytes; `None` for no limit.
    pub fn new(limit: Option<usize>) -> Self {
        Self(Arc::new(BudgetFigures {
            limit,
            ..BudgetFigures::default()
        }))
    }

    /// Returns the limit, if there is one.
    pub fn limit(&self) -> Option<usize> {
        self.0.limit
    }

    /// Counts bytes until the returned charge is dropped.
    pub fn charge(&self, class: MemoryClass, bytes: usize) -> MemoryCharge {
        let mut charge = MemoryCharge {
            budget: self.clone(),
            class,
            bytes: 0,
        };
        charge.set(bytes);
        charge
    }

    /// Returns the bytes of a class.
    pub fn counted(&self, class: MemoryClass) -> usize {
        self.0.counted[class as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes of all classes.
    pub fn counted_total(&self) -> usize {
        MemoryClass::ALL
            .into_iter()
            .map(|class| self.counted(class))
            .sum()
    }

    /// Returns the resident memory when it was last measured.
    pub fn resident(&self) -> usize {
        self.0.resident.load(Ordering::Relaxed)
    }

    /// Measures the resident memory, and returns it. If it cannot be measured, the last figure stands.
    pub fn measure(&self) -> usize {
        if let Some(bytes) = resident_bytes() {
            self.record(bytes);
        }
        self.resident()
    }

    /// Returns the bytes that are used: what is counted, or the resident memory with what was
    /// counted since it was measured, whichever is more.
    pub fn used(&self) -> usize {
        let counted = self.counted_total();
        let then = self.0.counted_then.load(Ordering::Relaxed);
        counted.max(self.resident() + counted.saturating_sub(then))
    }

    /// Returns the bytes that a new scope may take; `None` for no limit.
    ///
    /// They end where [`PressureStep::RefuseScopes`] begins, less what loads under way still need.
    pub fn free(&self) -> Option<usize> {
        let bound = self.limit()? / 100 * PressureStep::RefuseScopes.begins_at();
        let expected = self.0.expected.load(Ordering::Relaxed);
        Some(bound.saturating_sub(self.used().saturating_add(expected)))
    }

    /// Returns the step of the moment.
    pub fn step(&self) -> PressureStep {
        PressureStep::ALL[usize::from(self.0.step.load(Ordering::Relaxed))]
    }

    /// Returns `true` if memory is not short.
    pub fn is_relaxed(&self) -> bool {
        self.step() == PressureStep::Relaxed
    }

    /// Records the step of the moment.
    pub fn set_step(&self, step: PressureStep) {
        self.0.step.store(step as u8, Ordering::Relaxed);
    }

    /// Records the resident memory.
    pub(super) fn record(&self, resident: usize) {
        self.0
            .counted_then
            .store(self.counted_total(), Ordering::Relaxed);
        self.0.resident.store(resident, Ordering::Relaxed);
    }

    /// Adds bytes that a load is expected to take.
    pub(super) fn expect(&self, bytes: usize) {
        self.0.expected.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back bytes that were expected.
    pub(super) fn no_longer_expect(&self, bytes: usize) {
        self.0.expected.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl MemoryCharge {
    /// Returns the bytes that are counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts so many bytes from now on.
    pub fn set(&mut self, bytes: usize) {
        let counter = &self.budget.0.counted[self.class as usize];
        if bytes > self.bytes {
            counter.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else if bytes < self.bytes {
            counter.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Counts so many bytes more.
    pub fn grow(&mut self, bytes: usize) {
        self.set(self.bytes + bytes);
    }

    /// Returns a charge of all that was counted here, which counts nothing from now on.
    pub fn take(&mut self) -> Self {
        Self {
            budget: self.budget.clone(),
            class: self.class,
            bytes: std::mem::take(&mut self.bytes),
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_count_until_they_are_dropped() {
        let budget = MemoryBudget::default();
        let mut objects = budget.charge(MemoryClass::Objects, 10);
        let history = budget.charge(MemoryClass::History, 5);
        objects.grow(7);
        assert_eq!(budget.counted(MemoryClass::Objects), 17);
        let moved = objects.take();
        drop(objects);
        assert_eq!(budget.counted_total(), 22);
        drop((moved, history));
        assert_eq!(budget.counted_total(), 0);
    }

    #[test]
    fn resident_memory_corrects_what_is_counted() {
        let budget = MemoryBudget::new(Some(1000));
        let mut charge = budget.charge(MemoryClass::Objects, 100);
        assert_eq!(budget.used(), 100);
        budget.record(300);
        assert_eq!(budget.used(), 300, "200 are not counted");
        charge.grow(50);
        assert_eq!(budget.used(), 350, "growth since the measurement");
        assert_eq!(budget.free(), Some(500));
        budget.record(60);
        assert_eq!(budget.used(), 150, "counted, but not resident yet");
    }
}
