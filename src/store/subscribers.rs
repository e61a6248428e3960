//! All subscriptions of a scope. A change wakes exactly those that it can concern.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use watershed_protocol::{ObjectAttributes, ResourceVersion};

use super::cursor::{Cursor, Position};
use super::sync::AtomicWaker;

/// The events that can concern a subscription. A narrower interest means fewer wake-ups, never
/// fewer events.
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

/// The state that the writer and one subscription share.
#[derive(Debug)]
pub(super) struct SubscriptionSlot {
    pub(super) cursor: Cursor,
    /// The start, if it lay ahead of the events; else zero. Events up to this version are not the
    /// subscription's.
    pub(super) skipped: ResourceVersion,
    pub(super) waker: AtomicWaker,
    /// The index among the subscriptions with the same interest. Whoever may change these reads and
    /// writes it.
    index: AtomicUsize,
}

/// A subscription's entry among all.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) slot: Arc<SubscriptionSlot>,
    pub(super) interest: Arc<Interest>,
}

/// The subscriptions of a scope, by their interest.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    /// Subscriptions with equal interests share the key.
    slots: HashMap<Arc<Interest>, Vec<Arc<SubscriptionSlot>>>,
    /// Number of interests by the position of the field they name: a change looks up these fields
    /// only.
    fields: HashMap<usize, usize>,
    count: usize,
}

/// The interests that some objects concern.
#[derive(Debug)]
pub(super) struct ConcernedInterests {
    /// The fields that interests named when the first object was added.
    positions: Vec<usize>,
    interests: HashSet<Interest>,
}

impl Subscribers {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn add(
        &mut self,
        interest: Interest,
        position: Position,
        skipped: ResourceVersion,
    ) -> Membership {
        if let Interest::Field(position, _) = interest {
            *self.fields.entry(position).or_default() += 1;
        }
        let interest = match self.slots.get_key_value(&interest) {
            Some((equal, _)) => Arc::clone(equal),
            None => Arc::new(interest),
        };
        let slots = self.slots.entry(Arc::clone(&interest)).or_default();
        let slot = Arc::new(SubscriptionSlot {
            cursor: Cursor::new(position),
            skipped,
            waker: AtomicWaker::new(),
            index: AtomicUsize::new(slots.len()),
        });
        slots.push(Arc::clone(&slot));
        self.count += 1;
        Membership { slot, interest }
    }

    pub(super) fn remove(&mut self, membership: &Membership) {
        let interest = &*membership.interest;
        let Some(slots) = self.slots.get_mut(interest) else {
            return;
        };
        let index = membership.slot.index.load(Ordering::Relaxed);
        let found = slots.get(index);
        if !found.is_some_and(|slot| Arc::ptr_eq(slot, &membership.slot)) {
            return;
        }
        slots.swap_remove(index);
        if let Some(moved) = slots.get(index) {
            moved.index.store(index, Ordering::Relaxed);
        }
        if slots.is_empty() {
            self.slots.remove(interest);
        } else if slots.len() < slots.capacity() / 4 {
            slots.shrink_to(slots.len() * 2);
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

    /// Offers the change from `old` to `new` to the subscriptions it concerns. Returns the wakers
    /// to call once the state is unlocked.
    pub(super) fn offer(
        &self,
        sequence: u64,
        old: Option<&ObjectAttributes>,
        new: &ObjectAttributes,
    ) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.offer_to(&Interest::All, sequence, &mut wakers);
        let namespace = Interest::Namespace(new.namespace().into());
        self.offer_to(&namespace, sequence, &mut wakers);
        self.offer_to(&Interest::Key(new.key().into()), sequence, &mut wakers);
        for &position in self.fields.keys() {
            let value = new.field(position);
            let interest = Interest::Field(position, value.into());
            self.offer_to(&interest, sequence, &mut wakers);
            // A change that takes the object out of a view concerns the view, too.
            let before = old.map(|old| old.field(position));
            if let Some(before) = before.filter(|before| *before != value) {
                let interest = Interest::Field(position, before.into());
                self.offer_to(&interest, sequence, &mut wakers);
            }
        }
        wakers
    }

    /// Moves every subscription that has caught up to `head`, and wakes all of them.
    pub(super) fn wake_all(&self, head: u64) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in self.slots.values().flatten() {
            slot.cursor.offer(head);
            wakers.extend(slot.waker.take());
        }
        wakers
    }

    /// Expires every subscription.
    pub(super) fn expire(&self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in self.slots.values().flatten() {
            slot.cursor.set(Position::Expired);
            wakers.extend(slot.waker.take());
        }
        wakers
    }

    /// Returns an empty set for the interests that objects concern.
    pub(super) fn interests_concerned(&self) -> ConcernedInterests {
        ConcernedInterests {
            positions: self.fields.keys().copied().collect(),
            interests: HashSet::new(),
        }
    }

    /// Expires the subscriptions whose interest is concerned.
    pub(super) fn expire_concerned(&self, concerned: &ConcernedInterests) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let interests = self.slots.iter();
        for (_, slots) in interests.filter(|(interest, _)| concerned.has(interest)) {
            for slot in slots {
                slot.cursor.set(Position::Expired);
                wakers.extend(slot.waker.take());
            }
        }
        wakers
    }

    /// Expires every subscription, as the scope was listed again at `listed`.
    ///
    /// A subscription that starts at a later version loses nothing: it goes on at `head`. But not
    /// if the list is older than the state `known` before: then events after the start may have
    /// been handed out already, and others may take their versions.
    pub(super) fn relist(
        &self,
        known: ResourceVersion,
        listed: ResourceVersion,
        head: u64,
    ) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in self.slots.values().flatten() {
            let goes_on = listed >= known
                && slot.starts_at_or_after(listed)
                && slot.cursor.position() != Position::Expired;
            slot.cursor.set(if goes_on {
                Position::At(head)
            } else {
                Position::Expired
            });
            wakers.extend(slot.waker.take());
        }
        wakers
    }

    fn offer_to(&self, interest: &Interest, sequence: u64, wakers: &mut Vec<Waker>) {
        for slot in self.slots.get(interest).into_iter().flatten() {
            slot.offer(sequence, wakers);
        }
    }
}

impl ConcernedInterests {
    /// Adds the interests that an object concerns.
    pub(super) fn add(&mut self, object: &ObjectAttributes) {
        let fields = self.positions.iter();
        let fields =
            fields.map(|&position| Interest::Field(position, object.field(position).into()));
        self.interests.extend(fields);
        let namespace = Interest::Namespace(object.namespace().into());
        self.interests.insert(namespace);
        self.interests.insert(Interest::Key(object.key().into()));
    }

    fn has(&self, interest: &Interest) -> bool {
        match interest {
            Interest::All => !self.interests.is_empty(),
            // Nobody was interested in the field when the objects were looked at.
            Interest::Field(position, _) if !self.positions.contains(position) => true,
            Interest::Namespace(_) | Interest::Key(_) | Interest::Field(..) => {
                self.interests.contains(interest)
            }
        }
    }
}

impl SubscriptionSlot {
    /// Returns `true` if the start lay ahead of the events and is not below `version`: events up to
    /// `version` are not missed then.
    pub(super) fn starts_at_or_after(&self, version: ResourceVersion) -> bool {
        self.skipped > ResourceVersion::default() && self.skipped >= version
    }

    fn offer(&self, sequence: u64, wakers: &mut Vec<Waker>) {
        if self.cursor.offer(sequence)
            && let Some(waker) = self.waker.take()
        {
            wakers.push(waker);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_that_end_leave_no_places_to_look_at() {
        let mut subscribers = Subscribers::default();
        let mut add = || subscribers.add(Interest::All, Position::At(0), ResourceVersion(0));
        let mut members: Vec<_> = (0..1000).map(|_| add()).collect();
        // From both ends and the middle, each twice.
        while members.len() > 1 {
            let ended = members.swap_remove(members.len() * 2 / 3);
            subscribers.remove(&ended);
            subscribers.remove(&ended);
            assert_eq!(subscribers.len(), members.len());
        }
        let slots = &subscribers.slots[&Interest::All];
        assert!(Arc::ptr_eq(&slots[0], &members[0].slot));
        assert!(slots.capacity() <= 4, "{}", slots.capacity());
        subscribers.remove(&members[0]);
        assert!(subscribers.slots.is_empty());
    }
}
