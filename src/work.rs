//! Work in pieces, so that no task keeps the others of its thread from their turn.
//!
//! Whatever walks over the objects or events of a type spends a [`WorkBudget`], and ends its turn
//! when that is spent. The unit is one look at an object, so that tests need no clock. Work that
//! waits for the system, or takes long in one piece, is [`blocking`].
mod turns;

use std::task::Context;

use tokio::runtime::Handle;
use tokio::task::yield_now;

use turns::Turns;
pub use watershed_connect::blocking;

/// Objects that a task looks at in one turn. With an expensive selector that takes a millisecond.
pub const OBJECTS_PER_TURN: usize = 2048;
/// The work of reducing an object to its metadata. Large ones take more ([`work_on`]).
pub const REDUCED_OBJECT: usize = 16;
/// The work of replacing an object in a snapshot, which makes a new leaf.
pub const REPLACED_OBJECT: usize = 16;
/// The work of printing an object as a row of a Table. Large ones take more.
pub const PRINTED_OBJECT: usize = 64;
/// Bytes of an object that is printed or reduced, or of an answer, which are one unit of work. An object may have
/// a megabyte, and a reader may ask for many of them.
const BYTES_OF_UNIT: usize = 64;
/// The work of compressing a piece of some 32 KiB.
pub const COMPRESSED_PIECE: usize = 512;

/// The work that a task may do before the others have their turn.
#[derive(Debug)]
pub struct WorkBudget {
    left: usize,
    /// The turns of a task that sends more than fits into one.
    turns: Option<Turns>,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self {
            left: OBJECTS_PER_TURN,
            turns: None,
        }
    }
}

impl WorkBudget {
    /// Takes work off the budget.
    pub fn spend(&mut self, work: usize) {
        self.left = self.left.saturating_sub(work);
    }

    /// Returns `true` if the turn is to end.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Takes the sending of so many bytes off the budget. Most of it is encryption.
    pub fn spend_bytes(&mut self, bytes: usize) {
        self.spend(bytes / BYTES_OF_UNIT);
    }

    /// Begins the next turn if the budget is spent. Returns `true` if so: the caller must return
    /// `Poll::Pending`, and is polled again.
    pub fn ends_turn(&mut self, context: &Context<'_>) -> bool {
        let is_spent = self.is_spent();
        if is_spent {
            self.left = OBJECTS_PER_TURN;
            context.waker().wake_by_ref();
        }
        is_spent
    }

    /// Ends the turn of a task that sends much, if the budget is spent. Returns `true` until the next
    /// one has come: the caller must return `Poll::Pending`, and is polled again. Of all such tasks,
    /// few go on at the same time.
    pub fn awaits_turn(&mut self, context: &mut Context<'_>) -> bool {
        if self.is_spent() {
            self.left = OBJECTS_PER_TURN;
            self.turns.get_or_insert_default().end();
        }
        let turns = self.turns.as_mut();
        turns.is_some_and(|turns| turns.poll_next(context).is_pending())
    }

    /// Takes work off the budget, and lets other tasks run if it is spent.
    pub async fn work(&mut self, work: usize) {
        self.spend(work);
        if self.is_spent() {
            self.left = OBJECTS_PER_TURN;
            yield_now().await;
        }
    }
}

/// Returns the work on an object of so many bytes, which is `least` at least.
pub fn work_on(bytes: usize, least: usize) -> usize {
    least.max(bytes / BYTES_OF_UNIT)
}

/// Repeats a step until it returns `false`, and lets other tasks run in between. `work` is that of
/// a step.
pub async fn repeat(work: usize, mut step: impl FnMut() -> bool) {
    let mut budget = WorkBudget::default();
    while step() {
        budget.work(work).await;
    }
}

/// Drops a value that may be the last to hold so many objects.
///
/// Freeing an object takes about as long as a look at one. So many objects are freed on a thread
/// where nothing waits: the scope may have been listed again, and nothing else holds the old ones.
pub fn retire<T: Send + 'static>(value: T, objects: usize) {
    // Without a runtime nobody waits: the process ends.
    if objects > OBJECTS_PER_TURN
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn_blocking(move || drop(value));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::sync::{Arc, Weak};
    use std::task::Waker;

    use super::*;

    /// Asserts that what `drop` drops is not freed on this thread, and is freed in the end.
    pub(crate) fn assert_freed_elsewhere<T>(held: &Weak<T>, drop: impl FnOnce()) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        let (release, busy) = mpsc::channel::<()>();
        // The only other thread has something else to do meanwhile.
        runtime.spawn_blocking(move || busy.recv());
        runtime.block_on(async { drop() });
        assert!(held.upgrade().is_some(), "freed at once");
        release.send(()).unwrap();
        // Waits for the threads.
        std::mem::drop(runtime);
        assert!(held.upgrade().is_none(), "not freed");
    }

    #[test]
    fn steps_are_repeated_by_turns() {
        let steps = Cell::new(0);
        let mut all = pin!(repeat(REPLACED_OBJECT, || {
            steps.set(steps.get() + 1);
            steps.get() < 1000
        }));
        let mut context = Context::from_waker(Waker::noop());
        let mut before = 0;
        while all.as_mut().poll(&mut context).is_pending() {
            assert_eq!(steps.get() - before, OBJECTS_PER_TURN / REPLACED_OBJECT);
            before = steps.get();
        }
        assert_eq!(steps.get(), 1000);
    }

    #[test]
    fn many_objects_are_freed_on_another_thread_and_few_at_once() {
        let many = Arc::new([0; 1]);
        assert_freed_elsewhere(&Arc::downgrade(&many), || {
            retire(many, OBJECTS_PER_TURN + 1);
        });
        let few = Arc::new([0; 1]);
        let held = Arc::downgrade(&few);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async { retire(few, OBJECTS_PER_TURN) });
        assert!(held.upgrade().is_none());
    }
}
