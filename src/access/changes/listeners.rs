//! The tasks of open watches that wait for something that can concern their grant.
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use super::rbac::Affected;
use crate::access::request::AccessRequest;

/// The listeners of all open watches.
#[derive(Debug, Default)]
pub(in crate::access) struct WatchListeners {
    index: Mutex<ListenerIndex>,
}

/// The listeners, by what changes are about. A namespace's administrators can cause any number of
/// changes of RBAC there: they must not cost a look at every watch of the cluster.
#[derive(Debug, Default)]
struct ListenerIndex {
    /// All, by the user of their request.
    by_user: HashMap<Box<str>, Slab<Arc<ChangeListener>>>,
    /// Those of requests in a namespace, by that.
    by_namespace: HashMap<Box<str>, Slab<Arc<ChangeListener>>>,
}

impl WatchListeners {
    /// Wakes the tasks whose request a change can concern.
    pub(in crate::access) fn wake_affected(&self, affected: &Affected) {
        let index = self.index.lock();
        let is_concerned = |request: &AccessRequest| affected.concerns(request);
        let wakers = match (affected.namespace(), affected.users()) {
            (Some(namespace), _) => concerned(index.by_namespace.get(namespace), is_concerned),
            (None, Some(users)) => {
                let of_users = users.iter().filter_map(|user| index.by_user.get(user));
                concerned(of_users, is_concerned)
            }
            (None, None) => concerned(index.by_user.values(), is_concerned),
        };
        wake(index, wakers);
    }

    /// Wakes the tasks whose request is concerned.
    pub(in crate::access) fn wake(&self, is_concerned: impl Fn(&AccessRequest) -> bool) {
        let index = self.index.lock();
        let wakers = concerned(index.by_user.values(), is_concerned);
        wake(index, wakers);
    }

    /// Wakes the tasks of one user.
    pub(in crate::access) fn wake_user(&self, user: &str) {
        let index = self.index.lock();
        let wakers = concerned(index.by_user.get(user), |_| true);
        wake(index, wakers);
    }

    #[cfg(test)]
    pub(in crate::access) fn is_empty(&self) -> bool {
        let index = self.index.lock();
        index.by_user.is_empty() && index.by_namespace.is_empty()
    }
}

/// Takes the wakers of the listeners whose request is concerned.
fn concerned<'a>(
    listeners: impl IntoIterator<Item = &'a Slab<Arc<ChangeListener>>>,
    is_concerned: impl Fn(&AccessRequest) -> bool,
) -> Vec<Waker> {
    listeners
        .into_iter()
        .flatten()
        .filter(|(_, listener)| is_concerned(&listener.request))
        .filter_map(|(_, listener)| listener.waker.take())
        .collect()
}

/// Wakes tasks after the lock is released, because woken tasks take it at once.
fn wake(index: MutexGuard<'_, ListenerIndex>, wakers: Vec<Waker>) {
    drop(index);
    wakers.into_iter().for_each(Waker::wake);
}

/// Adds a listener under a name. Returns its key there.
fn add(
    to: &mut HashMap<Box<str>, Slab<Arc<ChangeListener>>>,
    name: &str,
    listener: &Arc<ChangeListener>,
) -> usize {
    to.entry(name.into())
        .or_default()
        .insert(Arc::clone(listener))
}

/// Removes the listener with this key under a name.
fn remove(from: &mut HashMap<Box<str>, Slab<Arc<ChangeListener>>>, name: &str, key: usize) {
    if let Some(own) = from.get_mut(name) {
        own.try_remove(key);
        if own.is_empty() {
            from.remove(name);
        }
    }
}

/// Wakes one task when a change concerns its request.
#[derive(Debug)]
pub(in crate::access) struct ChangeSubscription {
    listeners: Arc<WatchListeners>,
    listener: Arc<ChangeListener>,
    key_by_user: usize,
    /// `None` if the request is in no namespace.
    key_by_namespace: Option<usize>,
}

impl ChangeSubscription {
    /// Size of a subscription without its request.
    #[cfg(test)]
    pub(in crate::access) const BYTES: usize = size_of::<Self>()
        + 2 * size_of::<usize>()
        + size_of::<ChangeListener>()
        + 2 * size_of::<usize>();

    pub(in crate::access) fn new(
        listeners: &Arc<WatchListeners>,
        request: &Arc<AccessRequest>,
    ) -> Self {
        let listener = Arc::new(ChangeListener {
            request: Arc::clone(request),
            waker: AtomicWaker::new(),
        });
        let (key_by_user, key_by_namespace) = {
            let index = &mut *listeners.index.lock();
            let user = request.identity.user.as_str();
            let namespace = request.namespace();
            (
                add(&mut index.by_user, user, &listener),
                namespace.map(|name| add(&mut index.by_namespace, name, &listener)),
            )
        };
        Self {
            listeners: Arc::clone(listeners),
            listener,
            key_by_user,
            key_by_namespace,
        }
    }

    pub(in crate::access) fn request(&self) -> &Arc<AccessRequest> {
        &self.listener.request
    }

    /// Registers the task that the next change wakes. Call it before the verdict is compared with
    /// the changes, so that no change is missed in between.
    pub(in crate::access) fn register(&self, waker: &Waker) {
        self.listener.waker.register(waker);
    }
}

impl Drop for ChangeSubscription {
    fn drop(&mut self) {
        let index = &mut *self.listeners.index.lock();
        let request = &self.listener.request;
        remove(&mut index.by_user, &request.identity.user, self.key_by_user);
        if let (Some(namespace), Some(key)) = (request.namespace(), self.key_by_namespace) {
            remove(&mut index.by_namespace, namespace, key);
        }
    }
}

/// A task that waits for changes that concern its request.
#[derive(Debug)]
struct ChangeListener {
    request: Arc<AccessRequest>,
    waker: AtomicWaker,
}
