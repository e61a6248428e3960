//! Loads of scopes, which stop when memory runs short.
use super::account::{MemoryBudget, MemoryCharge};
use super::class::MemoryClass;

/// Memory that is used for each object beside its bytes: attributes, pointers and keys.
const OBJECT_OVERHEAD: usize = 500;
/// Growth after which resident memory is measured again: it may grow by more than is counted.
const MEASURE_EVERY: usize = 1 << 20;

/// Divisor of the limit: loads of half a percent of it are small.
const SMALL_DIVISOR: usize = 200;

/// A scope does not fit into what is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it needs some {needed} bytes, which do not fit into --memory-limit beside the rest")]
pub struct DoesNotFit {
    /// The bytes it needs, as far as they are known.
    pub needed: usize,
    /// The way in which they are known.
    pub known_by: SizeSource,
}

/// The way in which the size of a scope is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeSource {
    /// It was estimated from a few objects, which may be much larger than the others.
    Estimate,
    /// So much was loaded, now or with the last list.
    Load,
}

/// The memory of a scope that is being loaded.
#[derive(Debug)]
pub struct MemoryLoad {
    charge: MemoryCharge,
    budget: MemoryBudget,
    /// Number of objects that have arrived.
    objects: usize,
    /// The part of the estimate that has not arrived.
    expected: usize,
    /// Growth since resident memory was measured.
    unmeasured: usize,
}

impl MemoryBudget {
    /// Returns the memory that `count` objects with these bytes in total would take.
    pub fn estimate(count: usize, bytes: usize) -> usize {
        bytes.saturating_add(count.saturating_mul(OBJECT_OVERHEAD))
    }

    /// Begins a load of unknown size.
    pub fn begin_load(&self) -> MemoryLoad {
        MemoryLoad {
            charge: self.charge(MemoryClass::Objects, 0),
            budget: self.clone(),
            objects: 0,
            expected: 0,
            unmeasured: MEASURE_EVERY,
        }
    }
}

impl MemoryLoad {
    /// Sets so many bytes aside for the load, if they are free.
    pub fn expect(&mut self, bytes: usize, known_by: SizeSource) -> Result<(), DoesNotFit> {
        let is_free = self.budget.free().is_none_or(|free| bytes <= free);
        if !is_free && !self.is_small(bytes) {
            return Err(DoesNotFit {
                needed: bytes,
                known_by,
            });
        }
        self.budget.expect(bytes);
        self.expected += bytes;
        Ok(())
    }

    /// Counts an object that arrived. Fails once the load takes more than is free.
    pub fn add(&mut self, object: usize) -> Result<(), DoesNotFit> {
        let bytes = MemoryBudget::estimate(1, object);
        self.charge.grow(bytes);
        self.objects += 1;
        let arrived = bytes.min(self.expected);
        self.expected -= arrived;
        self.budget.no_longer_expect(arrived);
        self.unmeasured += bytes;
        if self.budget.limit().is_none() || self.unmeasured < MEASURE_EVERY {
            return Ok(());
        }
        self.unmeasured = 0;
        self.budget.measure();
        let needed = self.charge.bytes() + self.expected;
        match self.budget.free() {
            Some(0) if !self.is_small(needed) => Err(DoesNotFit {
                needed,
                known_by: SizeSource::Load,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the bytes that an object takes on average; `None` if none has arrived.
    pub fn object_bytes(&self) -> Option<usize> {
        self.charge.bytes().checked_div(self.objects)
    }

    /// Returns `true` for what is loaded however short memory is: it is not what made it short.
    fn is_small(&self, needed: usize) -> bool {
        let limit = self.budget.limit();
        limit.is_some_and(|limit| needed <= limit / SMALL_DIVISOR)
    }
}

impl Drop for MemoryLoad {
    fn drop(&mut self) {
        self.budget.no_longer_expect(self.expected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_at_a_time_do_not_take_what_another_expects() {
        let budget = MemoryBudget::new(Some(1000));
        let (mut one, mut other) = (budget.begin_load(), budget.begin_load());
        let estimate = SizeSource::Estimate;
        assert_eq!(one.expect(600, estimate), Ok(()));
        let refused = DoesNotFit {
            needed: 600,
            known_by: estimate,
        };
        assert_eq!(other.expect(600, estimate), Err(refused));
        drop(one);
        assert_eq!(other.expect(600, estimate), Ok(()));
    }

    #[test]
    fn a_load_stops_when_it_takes_more_than_is_free() {
        let limit = resident_now() + (64 << 20);
        let budget = MemoryBudget::new(Some(limit * 100 / 85));
        let mut load = budget.begin_load();
        let fitted = (0..1000).take_while(|_| load.add(1 << 20).is_ok()).count();
        // Other tests of this process use and free memory meanwhile.
        assert!(fitted < 1000, "{fitted} MiB");
        drop(load);
        assert_eq!(budget.counted_total(), 0);
        let unlimited = MemoryBudget::default();
        let mut load = unlimited.begin_load();
        assert!((0..1000).all(|_| load.add(1 << 40).is_ok()));
    }

    fn resident_now() -> usize {
        MemoryBudget::default().measure()
    }
}
