//! The lock, the atomics and the wakers of the store.
//!
//! `crates/interleavings` compiles the store with `cfg(loom)`. There loom schedules every use of
//! these, and its tests go through all interleavings of a few threads.
#[cfg(not(loom))]
pub(super) use futures_util::task::AtomicWaker;
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use parking_lot::RwLock;
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub(super) use explored::{AtomicWaker, RwLock};

#[cfg(loom)]
mod explored {
    use std::task::Waker;

    use loom::sync::{Mutex, RwLockReadGuard, RwLockWriteGuard};

    /// Loom's lock with the methods of `parking_lot`'s.
    #[derive(Debug)]
    pub(in crate::store) struct RwLock<T>(loom::sync::RwLock<T>);

    /// The newest waker of a task, as in `futures_util`.
    #[derive(Debug)]
    pub(in crate::store) struct AtomicWaker(Mutex<Option<Waker>>);

    impl<T> RwLock<T> {
        pub(in crate::store) fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }

        pub(in crate::store) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        pub(in crate::store) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    impl AtomicWaker {
        pub(in crate::store) fn new() -> Self {
            Self(Mutex::new(None))
        }

        pub(in crate::store) fn register(&self, waker: &Waker) {
            *self.slot() = Some(waker.clone());
        }

        pub(in crate::store) fn take(&self) -> Option<Waker> {
            self.slot().take()
        }

        fn slot(&self) -> loom::sync::MutexGuard<'_, Option<Waker>> {
            self.0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}
