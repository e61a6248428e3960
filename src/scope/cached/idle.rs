//! Recognizes scopes that nobody uses.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Counts who uses a scope, and remembers when it was last used.
#[derive(Debug)]
pub(in crate::scope) struct IdleTracker {
    limit: Mutex<Option<Duration>>,
    /// The proxy follows the scope for itself.
    pinned: AtomicBool,
    handles: AtomicUsize,
    last_used: Mutex<Instant>,
}

impl IdleTracker {
    pub(in crate::scope) fn new(limit: Option<Duration>) -> Self {
        Self {
            limit: Mutex::new(limit),
            pinned: AtomicBool::new(false),
            handles: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        }
    }

    /// Sets the time after which the scope is closed if nobody uses it.
    pub(in crate::scope) fn set_limit(&self, limit: Option<Duration>) {
        *self.limit.lock() = limit;
    }

    /// Keeps the scope open for as long as the process runs.
    pub(in crate::scope) fn pin(&self) {
        self.pinned.store(true, Ordering::SeqCst);
    }

    pub(in crate::scope) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::SeqCst)
    }

    pub(in crate::scope) fn acquire(&self) {
        self.handles.fetch_add(1, Ordering::SeqCst);
    }

    pub(in crate::scope) fn release(&self) {
        // The time first: without a handle, an old time would let the scope be closed at once.
        *self.last_used.lock() = Instant::now();
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns `true` if nobody has used the scope for its idle limit.
    pub(in crate::scope) fn is_expired(&self, is_watched: bool, now: Instant) -> bool {
        let (Some(limit), Some(since)) = (*self.limit.lock(), self.since(is_watched, now)) else {
            return false;
        };
        now.saturating_duration_since(since) >= limit
    }

    /// Returns the time at which the scope was last used, which is `now` while it is; `None` if it
    /// is to stay open.
    pub(in crate::scope) fn since(&self, is_watched: bool, now: Instant) -> Option<Instant> {
        if self.is_pinned() {
            return None;
        }
        let mut last_used = self.last_used.lock();
        if is_watched || self.handles.load(Ordering::SeqCst) > 0 {
            *last_used = now;
        }
        Some(*last_used)
    }
}
