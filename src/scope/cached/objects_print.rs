//! The release that printed the objects of a scope.
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::upstream::Release;

/// The release that printed the objects of a scope, as far as it is known.
#[derive(Debug, Default)]
pub(in crate::scope) struct ObjectsPrint {
    release: Mutex<Option<Release>>,
    is_outdated: AtomicBool,
}

impl ObjectsPrint {
    /// Returns the release that printed all objects, once it is known.
    pub(in crate::scope) fn release(&self) -> Option<Release> {
        self.release.lock().clone()
    }

    pub(in crate::scope) fn set_release(&self, release: Option<Release>) {
        *self.release.lock() = release;
    }

    /// Returns `true` if `release` is known to have printed all objects, or if neither is known.
    pub(in crate::scope) fn is_of(&self, release: Option<&Release>) -> bool {
        self.release.lock().as_ref() == release
    }

    /// Returns `true` if another release than that of the followed server printed the objects.
    pub(in crate::scope) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Relaxed)
    }

    pub(in crate::scope) fn set_outdated(&self, is_outdated: bool) {
        self.is_outdated.store(is_outdated, Ordering::Relaxed);
    }
}
