//! Work in pieces, so that no task keeps the others of its thread from their turn.
//!
//! Whatever walks over the objects or events of a type spends a [`WorkBudget`], and ends its turn
//! when that is spent. The unit is one look at an object, so that tests need no clock.
use std::task::Context;

use tokio::task::yield_now;

/// Objects that a task looks at in one turn. With an expensive selector that takes a millisecond.
pub const OBJECTS_PER_TURN: usize = 2048;
/// The work of reducing an object to its metadata.
pub const REDUCED_OBJECT: usize = 16;
/// The work of printing an object as a row of a Table.
pub const PRINTED_OBJECT: usize = 64;
/// The work of compressing a piece of some 32 KiB.
pub const COMPRESSED_PIECE: usize = 512;

/// The work that a task may do before the others have their turn.
#[derive(Debug)]
pub struct WorkBudget {
    left: usize,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self {
            left: OBJECTS_PER_TURN,
        }
    }
}

impl WorkBudget {
    /// Takes work off the budget.
    pub fn spend(&mut self, work: usize) {
        self.left = self.left.saturating_sub(work);
    }

    /// Returns true if the turn is to end.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Begins the next turn if the budget is spent. Returns `true` if so: the caller must return
    /// `Poll::Pending`, and is polled again.
    pub fn ends_turn(&mut self, context: &Context<'_>) -> bool {
        let is_spent = self.is_spent();
        if is_spent {
            *self = Self::default();
            context.waker().wake_by_ref();
        }
        is_spent
    }

    /// Takes work off the budget, and lets other tasks run if it is spent.
    pub async fn work(&mut self, work: usize) {
        self.spend(work);
        if self.is_spent() {
            *self = Self::default();
            yield_now().await;
        }
    }
}
