//! Differences between the objects of a scope and upstream's.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Differences that were found between the objects of a scope and upstream's.
#[derive(Debug, Default)]
pub(in crate::scope) struct FoundDifferences {
    found: Notify,
    /// One that is not taken up yet is of [`DifferingPart::Print`].
    is_of_print: AtomicBool,
    quarantines: AtomicU64,
}

/// The part in which objects differ from upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scope) enum DifferingPart {
    /// There are other objects, or other versions of them.
    Objects,
    /// The same versions have other bytes.
    Print,
}

impl DifferingPart {
    /// Returns the value of the label `result` or `reason` in metrics.
    pub(in crate::scope) fn label(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::Print => "bytes",
        }
    }
}

impl FoundDifferences {
    /// Tells the scope's task that its objects are not upstream's.
    pub(in crate::scope) fn report(&self, part: DifferingPart) {
        if part == DifferingPart::Print {
            self.is_of_print.store(true, Ordering::Release);
        }
        self.found.notify_one();
    }

    /// Waits for a report. Cancelling a call loses nothing.
    pub(in crate::scope) async fn reported(&self) -> DifferingPart {
        self.found.notified().await;
        if self.is_of_print.swap(false, Ordering::AcqRel) {
            DifferingPart::Print
        } else {
            DifferingPart::Objects
        }
    }

    /// Returns how often the scope was quarantined.
    pub(in crate::scope) fn quarantines(&self) -> u64 {
        self.quarantines.load(Ordering::Acquire)
    }

    pub(in crate::scope) fn count_quarantine(&self) {
        self.quarantines.fetch_add(1, Ordering::AcqRel);
    }
}
