//! Forms that are made from objects when a reader asks, and released when memory runs short.
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ticks without a use after which a form is cold. There is a tick every few seconds.
pub(super) const COLD: u8 = 6;

/// A form of objects. It is made once, and again after it was released.
#[derive(Debug)]
pub(super) struct DerivedForm<T> {
    made: Mutex<Option<T>>,
    /// Ticks since it was used.
    idle: AtomicU8,
}

impl<T> Default for DerivedForm<T> {
    fn default() -> Self {
        Self {
            made: Mutex::default(),
            idle: AtomicU8::new(0),
        }
    }
}

impl<T: Clone> DerivedForm<T> {
    /// Returns the form; makes it if it is not there. Others of that moment wait for it.
    pub(super) fn get_or_make(&self, make: impl FnOnce() -> T) -> T {
        self.idle.store(0, Ordering::Relaxed);
        self.lock().get_or_insert_with(make).clone()
    }

    /// Returns `true` if the form is there. Does not wait for one that is being made.
    pub(super) fn is_made(&self) -> bool {
        self.made.try_lock().is_ok_and(|made| made.is_some())
    }

    /// Returns the form if it is there.
    pub(super) fn get(&self) -> Option<T> {
        self.lock().clone()
    }

    /// Advances the idle counter by a tick, and returns the form if it is there.
    pub(super) fn age(&self) -> Option<T> {
        let idle = self.idle.load(Ordering::Relaxed);
        self.idle.store(idle.saturating_add(1), Ordering::Relaxed);
        self.get()
    }

    /// Releases and returns the form, unless it was used recently.
    pub(super) fn release_if_cold(&self) -> Option<T> {
        if self.idle.load(Ordering::Relaxed) < COLD {
            return None;
        }
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_released_when_nobody_used_it_for_some_ticks() {
        let form = DerivedForm::default();
        assert_eq!(form.get_or_make(|| 1), 1);
        assert_eq!(form.get_or_make(|| 2), 1, "made once");
        for _ in 1..COLD {
            form.age();
        }
        assert_eq!(form.release_if_cold(), None, "warm");
        assert_eq!(form.get_or_make(|| 3), 1);
        for _ in 0..COLD {
            assert_eq!(form.release_if_cold(), None, "used again");
            assert_eq!(form.age(), Some(1));
        }
        assert_eq!(form.release_if_cold(), Some(1));
        assert!(!form.is_made());
        assert_eq!(form.get_or_make(|| 4), 4);
    }
}
