//! The tasks of open watches that wait for something that can concern their grant.
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use slab::Slab;

use super::request::AccessRequest;

/// The listeners of all open watches, by the user of their request.
#[derive(Debug, Default)]
pub(super) struct WatchListeners {
    by_user: Mutex<HashMap<Box<str>, Slab<Arc<ChangeListener>>>>,
}

impl WatchListeners {
    /// Wakes the tasks whose request is concerned.
    pub(super) fn wake(&self, is_concerned: impl Fn(&AccessRequest) -> bool) {
        let wakers: Vec<_> = self
            .by_user
            .lock()
            .values()
            .flatten()
            .filter(|(_, listener)| is_concerned(&listener.request))
            .filter_map(|(_, listener)| listener.waker.take())
            .collect();
        // Woken after the locks are released, because woken tasks take them at once.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the tasks of one user.
    pub(super) fn wake_user(&self, user: &str) {
        let wakers: Vec<_> = self
            .by_user
            .lock()
            .get(user)
            .into_iter()
            .flatten()
            .filter_map(|(_, listener)| listener.waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_user.lock().is_empty()
    }
}

/// Wakes one task when a change concerns its request.
#[derive(Debug)]
pub(super) struct ChangeSubscription {
    listeners: Arc<WatchListeners>,
    listener: Arc<ChangeListener>,
    key: usize,
}

impl ChangeSubscription {
    /// Size of a subscription without its request.
    #[cfg(test)]
    pub(super) const BYTES: usize = size_of::<Self>()
        + 2 * size_of::<usize>()
        + size_of::<ChangeListener>()
        + 2 * size_of::<usize>();

    pub(super) fn new(listeners: &Arc<WatchListeners>, request: &Arc<AccessRequest>) -> Self {
        let listener = Arc::new(ChangeListener {
            request: Arc::clone(request),
            waker: AtomicWaker::new(),
        });
        let user = request.identity.user.as_str().into();
        let key = listeners
            .by_user
            .lock()
            .entry(user)
            .or_default()
            .insert(Arc::clone(&listener));
        Self {
            listeners: Arc::clone(listeners),
            listener,
            key,
        }
    }

    pub(super) fn request(&self) -> &Arc<AccessRequest> {
        &self.listener.request
    }

    /// Registers the task that the next change wakes. Call it before the verdict is compared with
    /// the changes, so that no change is missed in between.
    pub(super) fn register(&self, waker: &Waker) {
        self.listener.waker.register(waker);
    }
}

impl Drop for ChangeSubscription {
    fn drop(&mut self) {
        let mut by_user = self.listeners.by_user.lock();
        let user = self.listener.request.identity.user.as_str();
        if let Some(own) = by_user.get_mut(user) {
            own.try_remove(self.key);
            if own.is_empty() {
                by_user.remove(user);
            }
        }
    }
}

/// A task that waits for changes that concern its request.
#[derive(Debug)]
struct ChangeListener {
    request: Arc<AccessRequest>,
    waker: AtomicWaker,
}
