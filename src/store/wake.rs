//! Wakes exactly the subscriptions that an event can concern.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use slab::Slab;

use super::object::StoredObject;

/// Which events a subscription can be concerned by. Narrower means fewer wake-ups, never fewer
/// events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Every event of the scope.
    All,
    /// Objects of one namespace.
    Namespace(Box<str>),
    /// One object, by its key.
    Key(Box<str>),
    /// Objects whose selectable field, by its position in the type's table, has this value.
    Field(usize, Box<str>),
}

/// Nothing unseen: the subscriber has read up to the head of the window.
pub(super) const NOTHING: u64 = u64::MAX;

/// What the writer and one subscriber share.
#[derive(Debug)]
pub(super) struct Slot {
    /// Sequence number of the first event of interest since the subscriber last looked.
    /// Written only while the state is locked, so that a reader sees it together with the window.
    pub(super) unseen: AtomicU64,
    pub(super) waker: AtomicWaker,
}

impl Slot {
    fn mark(&self, sequence: u64, wakers: &mut Vec<Waker>) {
        // Fails when something earlier is unseen already: then the subscriber was woken for that.
        if self
            .unseen
            .compare_exchange(NOTHING, sequence, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
            && let Some(waker) = self.waker.take()
        {
            wakers.push(waker);
        }
    }
}

/// All subscriptions of a scope, by what they are interested in.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Who is interested holds the key, too.
    slots: HashMap<Arc<Interest>, Slab<Arc<Slot>>>,
    /// Positions of fields that somebody is interested in, with how many are.
    fields: HashMap<usize, usize>,
    count: usize,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn add(&mut self, interest: Interest) -> (Arc<Interest>, Arc<Slot>, usize) {
        if let Interest::Field(position, _) = interest {
            *self.fields.entry(position).or_default() += 1;
        }
        let slot = Arc::new(Slot {
            unseen: AtomicU64::new(NOTHING),
            waker: AtomicWaker::new(),
        });
        let interest = match self.slots.get_key_value(&interest) {
            Some((equal, _)) => Arc::clone(equal),
            None => Arc::new(interest),
        };
        let key = self
            .slots
            .entry(Arc::clone(&interest))
            .or_default()
            .insert(Arc::clone(&slot));
        self.count += 1;
        (interest, slot, key)
    }

    pub(super) fn remove(&mut self, interest: &Interest, key: usize) {
        let Some(slots) = self.slots.get_mut(interest) else {
            return;
        };
        if slots.try_remove(key).is_none() {
            return;
        }
        if slots.is_empty() {
            self.slots.remove(interest);
        }
        self.count -= 1;
        if let Interest::Field(position, _) = interest
            && let Some(users) = self.fields.get_mut(position)
        {
            *users -= 1;
            if *users == 0 {
                self.fields.remove(position);
            }
        }
    }

    /// Marks whom a change from `old` to `new` concerns, and gives back the wakers to call once the
    /// state is unlocked.
    pub(super) fn mark(
        &self,
        sequence: u64,
        old: Option<&StoredObject>,
        new: &StoredObject,
    ) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut mark = |interest: &Interest| {
            for (_, slot) in self.slots.get(interest).into_iter().flatten() {
                slot.mark(sequence, &mut wakers);
            }
        };
        mark(&Interest::All);
        mark(&Interest::Namespace(new.attributes.namespace().into()));
        mark(&Interest::Key(new.key().into()));
        for &position in self.fields.keys() {
            let value = new.attributes.field(position);
            mark(&Interest::Field(position, value.into()));
            if let Some(before) = old
                .map(|old| old.attributes.field(position))
                .filter(|b| *b != value)
            {
                mark(&Interest::Field(position, before.into()));
            }
        }
        wakers
    }

    /// Marks everybody.
    pub(super) fn mark_all(&self, sequence: u64) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (_, slot) in self.slots.values().flatten() {
            slot.mark(sequence, &mut wakers);
        }
        wakers
    }
}
