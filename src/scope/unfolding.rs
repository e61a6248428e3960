//! Memory for folded objects, as long as answers unfold them.
//!
//! Folding makes room that other scopes may fill. So whoever is about to unfold objects sets memory
//! aside for all of them first. Answers of one scope share that.
use std::sync::{Arc, Weak};

use super::cached::Scope;
use crate::budget::{DoesNotFit, MemoryBudget, SizeSource};

/// Memory that is set aside for the folded objects of a scope until this is dropped.
#[derive(Debug)]
pub struct Unfolding(Weak<Scope>);

impl Scope {
    /// Sets memory aside for the objects that are folded, if there are any. Fails unless their bytes
    /// are free.
    pub fn begin_unfolding(
        self: &Arc<Self>,
        budget: &MemoryBudget,
    ) -> Result<Option<Unfolding>, DoesNotFit> {
        if self.reader.held().folded == 0 {
            return Ok(None);
        }
        let mut charges = self.memory.charges.lock();
        // What was unfolded since the last count may have taken what is free.
        let held = self.held_alone();
        charges.set(held);
        let is_free = budget.free().is_none_or(|free| held.folded <= free);
        if charges.unfolding == 0 && !is_free {
            return Err(DoesNotFit {
                needed: held.folded,
                known_by: SizeSource::Load,
            });
        }
        charges.unfolding += 1;
        charges.set(held);
        Ok(Some(Unfolding(Arc::downgrade(self))))
    }
}

impl Drop for Unfolding {
    fn drop(&mut self) {
        // The charges of a scope that is gone are, too.
        if let Some(scope) = self.0.upgrade() {
            let mut charges = scope.memory.charges.lock();
            charges.unfolding -= 1;
            charges.set(scope.held_alone());
        }
    }
}
