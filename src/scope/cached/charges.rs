//! The memory of a scope, as it is charged to the budget.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::budget::{MemoryBudget, MemoryCharge, MemoryClass};
use crate::store::{Discarded, HeldBytes};

/// The share of the memory budget that one scope takes.
#[derive(Debug)]
pub(in crate::scope) struct ScopeMemory {
    pub(in crate::scope) charges: Mutex<ScopeCharges>,
    /// Bytes of compressed forms at the last tick.
    compressed: AtomicUsize,
    /// The scope is closed for lack of memory, so nothing of it is to be held any more.
    is_to_be_freed: AtomicBool,
}

impl ScopeMemory {
    pub(in crate::scope) fn new(budget: &MemoryBudget) -> Self {
        Self {
            charges: Mutex::new(ScopeCharges::new(budget)),
            compressed: AtomicUsize::new(0),
            is_to_be_freed: AtomicBool::new(false),
        }
    }

    /// Returns the bytes of compressed forms at the last tick.
    pub(in crate::scope) fn compressed(&self) -> usize {
        self.compressed.load(Ordering::Relaxed)
    }

    pub(in crate::scope) fn set_compressed(&self, bytes: usize) {
        self.compressed.store(bytes, Ordering::Relaxed);
    }

    /// Demands that nothing is held any more once the scope is closed.
    pub(in crate::scope) fn free(&self) {
        self.is_to_be_freed.store(true, Ordering::Release);
    }

    pub(in crate::scope) fn is_to_be_freed(&self) -> bool {
        self.is_to_be_freed.load(Ordering::Acquire)
    }
}

/// The charges of one scope.
#[derive(Debug)]
pub(in crate::scope) struct ScopeCharges {
    objects: MemoryCharge,
    history: MemoryCharge,
    /// Answers that are about to unfold objects. Meanwhile folded objects count as if they were held.
    pub(in crate::scope) unfolding: usize,
}

impl ScopeCharges {
    pub(in crate::scope) fn new(budget: &MemoryBudget) -> Self {
        Self {
            objects: budget.charge(MemoryClass::Objects, 0),
            history: budget.charge(MemoryClass::History, 0),
            unfolding: 0,
        }
    }

    /// Counts these bytes from now on.
    pub(in crate::scope) fn set(&mut self, held: HeldBytes) {
        let folded = if self.unfolding > 0 { held.folded } else { 0 };
        self.objects.set(held.objects + folded);
        self.history.set(held.history);
    }

    /// Returns the charges of all that is held now, for as long as it takes to drop it.
    pub(in crate::scope) fn take(&mut self) -> Self {
        Self {
            objects: self.objects.take(),
            history: self.history.take(),
            unfolding: 0,
        }
    }

    /// Returns the bytes that are counted.
    pub(in crate::scope) fn bytes(&self) -> usize {
        self.objects.bytes() + self.history.bytes()
    }
}

/// Drops what was replaced on a thread of its own: a large type takes longer than others wait.
pub(in crate::scope) fn discard(replaced: Discarded, charges: ScopeCharges) {
    // Without a runtime nobody waits: the process ends.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn_blocking(move || {
            drop(replaced);
            drop(charges);
        });
    }
}
