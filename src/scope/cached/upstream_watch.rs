//! The watch that feeds a scope, as the rest of the proxy sees it.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use watershed_protocol::ResourceVersion;

use super::age::ScopeAge;
use crate::upstream::ServedBy;

/// The watch at upstream that feeds a scope: whether it is open, at which server, and what it
/// brought last. A derived scope is fed by its source's watch and follows that here.
#[derive(Debug)]
pub struct UpstreamWatch {
    following: watch::Sender<bool>,
    /// Something that was due did not come by the watch, even if it is open again.
    lacks: AtomicBool,
    delivering: watch::Sender<bool>,
    last_heard: Mutex<Instant>,
    age: ScopeAge,
    server: watch::Sender<Option<ServedBy>>,
    /// The version of the last list or bookmark.
    bookmark: watch::Sender<ResourceVersion>,
    /// The version of the events when upstream was last found to have more.
    lacking: watch::Sender<ResourceVersion>,
    is_compressed: AtomicBool,
    /// The reason why the last attempt to list or watch failed.
    failure: Mutex<Option<String>>,
}

impl UpstreamWatch {
    /// Creates the state of a watch that is not open yet.
    pub(in crate::scope) fn new() -> Self {
        Self {
            following: watch::Sender::new(false),
            lacks: AtomicBool::new(false),
            delivering: watch::Sender::new(false),
            last_heard: Mutex::new(Instant::now()),
            age: ScopeAge::new(),
            server: watch::Sender::default(),
            bookmark: watch::Sender::default(),
            lacking: watch::Sender::default(),
            is_compressed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// Returns the reason why upstream is not followed; `None` if it is, or if none is known.
    pub fn failure(&self) -> Option<String> {
        if self.is_following() {
            return None;
        }
        self.failure.lock().clone()
    }

    pub(in crate::scope) fn set_failure(&self, failure: Option<&str>) {
        *self.failure.lock() = failure.map(str::to_owned);
    }

    /// Returns `true` if the watch is open, or was a moment ago.
    pub fn is_following(&self) -> bool {
        *self.following.borrow()
    }

    /// Returns [`Self::is_following`] as a value whose changes can be waited for.
    pub fn following(&self) -> watch::Receiver<bool> {
        self.following.subscribe()
    }

    /// Returns `true` if upstream's changes arrive, as far as is known: the watch is open, and what was due
    /// came.
    ///
    /// A watch that is opened again after a silence, or although events were missing, delivers only once
    /// something came by it: it may be as silent as the last one.
    pub fn is_delivering(&self) -> bool {
        *self.delivering.borrow()
    }

    /// Returns [`Self::is_delivering`] as a value whose changes can be waited for.
    pub fn delivering(&self) -> watch::Receiver<bool> {
        self.delivering.subscribe()
    }

    pub(in crate::scope) fn set_following(&self, now: bool) {
        set(&self.following, now);
        self.show_delivering();
    }

    /// Only the scope's task sets what this follows from.
    fn show_delivering(&self) {
        let is_delivering = self.is_following() && !self.lacks.load(Ordering::Relaxed);
        set(&self.delivering, is_delivering);
    }

    /// Returns the time for which upstream's changes have not arrived; `None` while they do.
    pub fn age(&self) -> Option<Duration> {
        self.age.get()
    }

    /// Sets the time since when upstream's changes do not arrive, `None` if they do, and whether something was
    /// due that did not come.
    pub(in crate::scope) fn set_lost(&self, since: Option<Instant>, lacks: bool) {
        self.age.publish(since);
        self.lacks.store(lacks, Ordering::Relaxed);
        self.show_delivering();
    }

    /// Returns the time of the last event, bookmark or list.
    pub fn last_heard(&self) -> Instant {
        *self.last_heard.lock()
    }

    /// Returns the time since the last event, bookmark or list.
    pub fn silence(&self) -> Duration {
        self.last_heard().elapsed()
    }

    /// Records that an event, a bookmark or a list came.
    pub(in crate::scope) fn mark_heard(&self) {
        *self.last_heard.lock() = Instant::now();
    }

    /// Returns the server at which the scope is followed, once it is known.
    pub(in crate::scope) fn server(&self) -> Option<ServedBy> {
        self.server.borrow().clone()
    }

    pub(in crate::scope) fn subscribe_server(&self) -> watch::Receiver<Option<ServedBy>> {
        self.server.subscribe()
    }

    pub(in crate::scope) fn set_server(&self, server: ServedBy) {
        self.server.send_replace(Some(server));
    }

    pub(in crate::scope) fn record_bookmark(&self, version: ResourceVersion) {
        self.bookmark.send_replace(version);
    }

    pub(in crate::scope) fn subscribe_bookmarks(&self) -> watch::Receiver<ResourceVersion> {
        self.bookmark.subscribe()
    }

    /// Records that upstream has more than the events up to `version` tell.
    pub(in crate::scope) fn record_lacking(&self, version: ResourceVersion) {
        self.lacking.send_replace(version);
    }

    pub(in crate::scope) fn subscribe_lacking(&self) -> watch::Receiver<ResourceVersion> {
        self.lacking.subscribe()
    }

    /// Returns `true` if the state came by a watch that upstream compressed.
    pub(in crate::scope) fn is_compressed(&self) -> bool {
        self.is_compressed.load(Ordering::Relaxed)
    }

    pub(in crate::scope) fn set_compressed(&self, is_compressed: bool) {
        self.is_compressed.store(is_compressed, Ordering::Relaxed);
    }
}

fn set(value: &watch::Sender<bool>, now: bool) {
    value.send_if_modified(|value| std::mem::replace(value, now) != now);
}
