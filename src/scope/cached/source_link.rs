//! The link from a derived scope to its source.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};

/// The link from a derived scope to its source. That of any other scope leads nowhere.
///
/// It does not name the type of scopes, so that this file does not depend on theirs.
#[derive(Debug)]
pub(in crate::scope) struct SourceLink<S> {
    is_derived: AtomicBool,
    source: ArcSwapOption<S>,
    quarantines: AtomicU64,
}

impl<S> SourceLink<S> {
    /// Creates the link of a scope that is not known to be derived.
    pub(in crate::scope) fn new() -> Self {
        Self {
            is_derived: AtomicBool::new(false),
            source: ArcSwapOption::empty(),
            quarantines: AtomicU64::new(0),
        }
    }

    /// Returns `true` if the scope has no list and watch at upstream. Its source may not be open
    /// yet.
    pub(in crate::scope) fn is_derived(&self) -> bool {
        self.is_derived.load(Ordering::Relaxed)
    }

    pub(in crate::scope) fn set_derived(&self, is_derived: bool) {
        self.is_derived.store(is_derived, Ordering::Relaxed);
    }

    /// Returns the source, once it is open.
    pub(in crate::scope) fn get(&self) -> Guard<Option<Arc<S>>> {
        self.source.load()
    }

    pub(in crate::scope) fn attach(&self, source: Arc<S>) {
        self.source.store(Some(source));
    }

    pub(in crate::scope) fn detach(&self) {
        self.source.store(None);
    }

    /// Returns how often the source had been quarantined before the objects were derived that are
    /// held.
    pub(in crate::scope) fn quarantines(&self) -> u64 {
        self.quarantines.load(Ordering::Acquire)
    }

    pub(in crate::scope) fn record_quarantines(&self, quarantines: u64) {
        self.quarantines.store(quarantines, Ordering::Release);
    }
}
