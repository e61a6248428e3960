//! The items of a leaf in one place: as they are sent, compressed, or both.
//!
//! Items that nobody has read for some time can be folded: only their compressed form is held then.
//! Items that can be made from what is held elsewhere need not be held at all before they are read.
//! A reader unfolds or makes them, for everybody; a peek leaves them as they are.
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use watershed_protocol::{Deflated, ItemRun, deflate};

use super::derived::{COLD, DerivedForm};
use super::tally::{ByteCharge, ByteTally};

/// Objects as they are sent.
#[derive(Debug)]
pub(super) struct PackedItems {
    /// End offset of each item, its separator included.
    ends: Box<[u32]>,
    /// The separator behind the last item.
    separator: &'static [u8],
    held: Mutex<HeldItems>,
    /// Held by whoever compresses the items, so that it is done once. `held` is free meanwhile: an
    /// event unfolds items under the store's lock.
    compressing: Mutex<()>,
    /// Ticks since the items were read as they are.
    idle: AtomicU8,
    /// Ticks since they were read compressed.
    compressed_idle: AtomicU8,
    /// All objects as ADDED events, as a member of gzip.
    pub(super) added: DerivedForm<Bytes>,
}

/// The forms in which items are held. The compressed one has no separator behind the last item.
#[derive(Debug)]
enum HeldItems {
    Plain(Bytes),
    /// As `Plain`. Compressing them is known to gain little.
    Dense(Bytes),
    Both(Bytes, Arc<Deflated>),
    Folded {
        deflated: Arc<Deflated>,
        /// Stands for the bytes of the items, which are not held.
        _saved: ByteCharge,
    },
    /// Nobody has read them yet.
    Unmade {
        origin: Box<dyn ItemsOrigin>,
        /// As that of `Folded`. What the origin holds counts where it comes from, for as long as that
        /// holds it as well.
        saved: ByteCharge,
    },
}

/// Makes the items of a leaf, the same bytes each time.
pub trait ItemsOrigin: fmt::Debug + Send + Sync {
    /// Appends all items, each with a separator behind it.
    fn put_items(&self, items: &mut Vec<u8>);

    /// Returns `true` if some of what it holds is held by nothing else any more.
    fn is_orphaned(&self) -> bool;
}

/// The result of folding items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FoldedItems {
    /// Bytes that are not held any more, less those that are held instead.
    pub(super) freed: usize,
    /// The work of it, in bytes that could be compressed in the same time.
    pub(super) work: usize,
}

/// Inflating and comparing takes at most a part of the time of compressing.
const INFLATED_PER_COMPRESSED: usize = 4;

/// Ticks that stand for those since a list, if nobody has read an item since.
pub const NEVER_READ: u8 = u8::MAX;

impl PackedItems {
    /// Returns the items of a list, which may never be read.
    pub(super) fn listed(run: ItemRun, separator: usize) -> Self {
        Self {
            idle: AtomicU8::new(NEVER_READ),
            ..Self::new(run, separator)
        }
    }

    /// Returns items that are made when somebody reads them, given the end of each. What is not held
    /// meanwhile counts in `saved`.
    pub(super) fn unmade(
        ends: Box<[u32]>,
        separator: usize,
        origin: Box<dyn ItemsOrigin>,
        saved: &ByteTally,
    ) -> Self {
        let length = ends.last().map_or(0, |end| *end as usize);
        let held = HeldItems::Unmade {
            origin,
            saved: saved.charge(length),
        };
        Self {
            idle: AtomicU8::new(NEVER_READ),
            ..Self::of(ends, separator, held)
        }
    }

    pub(super) fn new(run: ItemRun, separator: usize) -> Self {
        Self::of(run.ends, separator, HeldItems::Plain(run.bytes))
    }

    fn of(ends: Box<[u32]>, separator: usize, held: HeldItems) -> Self {
        Self {
            ends,
            separator: if separator == 0 { b"" } else { b"," },
            held: Mutex::new(held),
            compressing: Mutex::new(()),
            idle: AtomicU8::new(0),
            compressed_idle: AtomicU8::new(0),
            added: DerivedForm::default(),
        }
    }

    /// Returns the end offset of each item, its separator included.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Returns the number of bytes of all items, separators included.
    pub(super) fn len(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    /// Returns the place of some items, by their numbers.
    pub(super) fn place(&self, items: &Range<usize>) -> Range<usize> {
        let end_before = |index: usize| index.checked_sub(1).map_or(0, |last| self.ends[last]);
        end_before(items.start) as usize..end_before(items.end) as usize
    }

    /// Returns all items, each with a separator behind it. Unfolds or makes them.
    pub(super) fn items(&self) -> Bytes {
        note_use(&self.idle);
        let mut held = self.lock();
        let (items, unfolded) = match &*held {
            HeldItems::Plain(items) | HeldItems::Dense(items) | HeldItems::Both(items, _) => {
                return items.clone();
            }
            HeldItems::Folded { deflated, .. } => {
                let items = self.unfolded(deflated);
                (items.clone(), HeldItems::Both(items, Arc::clone(deflated)))
            }
            HeldItems::Unmade { origin, .. } => {
                let items = self.made(&**origin);
                (items.clone(), HeldItems::Plain(items))
            }
        };
        *held = unfolded;
        items
    }

    /// Returns the same as [`PackedItems::items`]. Items that are not held are inflated or made for
    /// each call. It does not count as a use.
    pub(super) fn peek(&self) -> Bytes {
        let deflated = match &*self.lock() {
            HeldItems::Plain(items) | HeldItems::Dense(items) | HeldItems::Both(items, _) => {
                return items.clone();
            }
            HeldItems::Unmade { origin, .. } => return self.made(&**origin),
            HeldItems::Folded { deflated, .. } => Arc::clone(deflated),
        };
        self.unfolded(&deflated)
    }

    /// Returns all items, without the last separator, as a piece of gzip. Others who want it at
    /// that moment wait while it is made; readers of the items do not.
    pub(super) fn deflated(&self) -> Arc<Deflated> {
        note_use(&self.compressed_idle);
        let known = self.lock().deflated().cloned();
        if let Some(deflated) = known {
            return deflated;
        }
        let _compressing = unpoisoned(self.compressing.lock());
        let (items, is_unmade) = match &*self.lock() {
            HeldItems::Both(_, deflated) | HeldItems::Folded { deflated, .. } => {
                return Arc::clone(deflated);
            }
            HeldItems::Plain(items) | HeldItems::Dense(items) => (items.clone(), false),
            HeldItems::Unmade { origin, .. } => (self.made(&**origin), true),
        };
        let deflated = Arc::new(self.deflate(&items));
        // Nobody has set memory aside for the items as they are.
        let is_to_fold = is_unmade && self.is_worthwhile(&items, &deflated);
        let mut held = self.lock();
        *held = match std::mem::replace(&mut *held, HeldItems::Plain(Bytes::new())) {
            HeldItems::Unmade { saved, .. } if is_to_fold => HeldItems::Folded {
                deflated: Arc::clone(&deflated),
                _saved: saved,
            },
            _ => HeldItems::Both(items, Arc::clone(&deflated)),
        };
        deflated
    }

    /// Holds unmade items compressed once their origin is held for their sake alone. Returns the work,
    /// as [`FoldedItems::work`].
    pub(super) fn release_origin(&self) -> usize {
        let is_orphaned = match &*self.lock() {
            HeldItems::Unmade { origin, .. } => origin.is_orphaned(),
            _ => false,
        };
        if !is_orphaned {
            return 0;
        }
        self.deflated();
        self.len()
    }

    /// Returns `true` if [`PackedItems::deflated`] costs nothing. Does not wait for one that is
    /// being made.
    pub(super) fn is_deflated(&self) -> bool {
        self.lock().deflated().is_some()
    }

    /// Returns `true` if the compressed form alone is held.
    #[cfg(not(loom))]
    #[cfg(test)]
    pub(super) fn is_folded(&self) -> bool {
        matches!(*self.lock(), HeldItems::Folded { .. })
    }

    /// Returns the bytes of the compressed forms.
    pub(super) fn compressed_bytes(&self) -> usize {
        self.deflated_bytes() + self.added.get().map_or(0, |member| member.len())
    }

    /// Advances the idle counter of each form by a tick, and returns the bytes of the compressed
    /// ones.
    pub(super) fn age(&self) -> usize {
        for idle in [&self.idle, &self.compressed_idle] {
            let ticks = idle.load(Ordering::Relaxed);
            idle.store(ticks.saturating_add(1), Ordering::Relaxed);
        }
        self.deflated_bytes() + self.added.age().map_or(0, |member| member.len())
    }

    /// Releases compressed forms that nobody used recently, and returns their bytes. They are made
    /// again when a reader asks. That of folded items stays.
    pub(super) fn release_compressed(&self) -> usize {
        let added = self.added.release_if_cold();
        let added = added.map_or(0, |member| member.len());
        if self.compressed_idle.load(Ordering::Relaxed) < COLD {
            return added;
        }
        let mut held = self.lock();
        let HeldItems::Both(items, deflated) = &*held else {
            return added;
        };
        let released = deflated.bytes.len();
        *held = HeldItems::Plain(items.clone());
        added + released
    }

    /// Holds the compressed form alone, if nobody has read the items for so many ticks. What is not
    /// held counts in `saved`.
    pub(super) fn fold(&self, idle: u8, saved: &ByteTally) -> FoldedItems {
        if self.idle.load(Ordering::Relaxed) < idle {
            return FoldedItems::default();
        }
        // A reader has it compressed at this moment. The next attempt finds that form.
        let Ok(_compressing) = self.compressing.try_lock() else {
            return FoldedItems::default();
        };
        let (items, known) = match &*self.lock() {
            HeldItems::Plain(items) => (items.clone(), None),
            HeldItems::Both(items, deflated) if gains(items, deflated) => {
                (items.clone(), Some(Arc::clone(deflated)))
            }
            HeldItems::Both(..)
            | HeldItems::Dense(_)
            | HeldItems::Folded { .. }
            | HeldItems::Unmade { .. } => return FoldedItems::default(),
        };
        // Without the lock, as readers would wait.
        let work = if known.is_some() {
            items.len() / INFLATED_PER_COMPRESSED
        } else {
            items.len()
        };
        let deflated = known.unwrap_or_else(|| Arc::new(self.deflate(&items)));
        let is_worthwhile = self.is_worthwhile(&items, &deflated);
        let mut held = self.lock();
        let was_read = self.idle.load(Ordering::Relaxed) < idle;
        let freed = match &*held {
            HeldItems::Plain(_) if !is_worthwhile => {
                *held = HeldItems::Dense(items);
                return FoldedItems { freed: 0, work };
            }
            HeldItems::Plain(_) if !was_read => items.len() - deflated.bytes.len(),
            HeldItems::Both(..) if is_worthwhile && !was_read => items.len(),
            _ => return FoldedItems { freed: 0, work },
        };
        *held = HeldItems::Folded {
            deflated,
            _saved: saved.charge(items.len()),
        };
        FoldedItems { freed, work }
    }

    fn deflate(&self, items: &Bytes) -> Deflated {
        deflate(&items[..items.len().saturating_sub(self.separator.len())])
    }

    /// Returns `true` if the compressed form may be held alone: it gains much, and is all that it was made
    /// of.
    fn is_worthwhile(&self, items: &Bytes, deflated: &Deflated) -> bool {
        gains(items, deflated) && self.inflate(deflated).as_ref() == Some(items)
    }

    /// Returns the items of a compressed form that was held alone.
    fn unfolded(&self, deflated: &Deflated) -> Bytes {
        let items = self.inflate(deflated);
        items.expect("folded items were found in their compressed form")
    }

    fn made(&self, origin: &dyn ItemsOrigin) -> Bytes {
        let mut items = Vec::with_capacity(self.len());
        origin.put_items(&mut items);
        assert_eq!(items.len(), self.len(), "the items are made as before");
        items.into()
    }

    fn inflate(&self, deflated: &Deflated) -> Option<Bytes> {
        let mut items = Vec::with_capacity(self.len());
        let is_whole = deflated.inflate(&mut items);
        items.extend_from_slice(self.separator);
        is_whole.then(|| items.into())
    }

    fn deflated_bytes(&self) -> usize {
        let held = self.lock();
        held.deflated().map_or(0, |deflated| deflated.bytes.len())
    }

    /// Makes readers of the items wait until the guard is dropped.
    #[cfg(not(loom))]
    #[cfg(test)]
    pub(super) fn block_readers(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, HeldItems> {
        unpoisoned(self.held.lock())
    }
}

impl HeldItems {
    fn deflated(&self) -> Option<&Arc<Deflated>> {
        match self {
            Self::Plain(_) | Self::Dense(_) | Self::Unmade { .. } => None,
            Self::Both(_, deflated) | Self::Folded { deflated, .. } => Some(deflated),
        }
    }
}

/// Returns `true` if the compressed form is so much smaller that it is worthwhile to hold it
/// alone.
fn gains(items: &Bytes, deflated: &Deflated) -> bool {
    deflated.bytes.len() <= items.len() / 2
}

/// Records a use. Written only if that is news: readers share the memory around it.
fn note_use(idle: &AtomicU8) {
    if idle.load(Ordering::Relaxed) != 0 {
        idle.store(0, Ordering::Relaxed);
    }
}

fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn packed(items: &[&[u8]], separator: usize) -> PackedItems {
        let mut end = 0;
        let ends = items.iter().map(|item| {
            end += item.len() as u32;
            end
        });
        let ends = ends.collect();
        let bytes = items.concat().into();
        PackedItems::new(ItemRun { bytes, ends }, separator)
    }

    #[test]
    fn folded_items_are_held_compressed_until_they_are_read() {
        let item = [&b"x".repeat(4_000)[..], b","].concat();
        let items = packed(&[&item, &item], 1);
        let (all, saved) = (items.items(), ByteTally::default());
        assert_eq!(items.fold(1, &saved), FoldedItems::default(), "just read");
        items.age();
        let folded = items.fold(1, &saved);
        assert!(items.is_folded());
        assert_eq!(saved.bytes(), 8_002);
        assert!(items.is_deflated());
        let compressed = items.compressed_bytes();
        assert!((1..200).contains(&compressed), "{compressed}");
        let attempt = |freed, work| FoldedItems { freed, work };
        assert_eq!(folded, attempt(8_002 - compressed, 8_002));
        // Readers of the compressed form unfold nothing.
        assert_eq!(items.deflated().data_len(), 8_001);
        assert_eq!(saved.bytes(), 8_002);
        for _ in 0..=COLD {
            items.age();
        }
        assert_eq!(items.release_compressed(), 0, "nothing else is held");
        assert!(items.items() == all);
        assert_eq!(saved.bytes(), 0);
        // Both forms are held now, and either may go.
        items.age();
        let folded = items.fold(1, &saved);
        assert_eq!(folded, attempt(8_002, 8_002 / 4), "compressed before");
        assert!(items.items() == all);
        assert_eq!(items.release_compressed(), compressed);
        assert!(items.items() == all);
        assert!(!items.is_deflated());
    }

    #[test]
    fn items_that_do_not_shrink_are_compressed_once() {
        let mut noise = vec![0; 5_000];
        fastrand::Rng::with_seed(1).fill(&mut noise);
        let (items, saved) = (packed(&[&noise], 0), ByteTally::default());
        items.age();
        let attempt = |freed, work| FoldedItems { freed, work };
        assert_eq!(items.fold(1, &saved), attempt(0, 5_000));
        assert_eq!(items.fold(1, &saved), attempt(0, 0));
        assert!(items.items() == noise);
        assert_eq!(saved.bytes(), 0);
    }

    #[test]
    fn a_peek_at_folded_items_leaves_them_folded_and_idle() {
        let (items, saved) = (packed(&[&b"x".repeat(4_000)], 0), ByteTally::default());
        assert!(items.peek() == items.items());
        items.age();
        assert!(items.peek() == b"x".repeat(4_000)[..]);
        assert!(items.fold(1, &saved).freed > 0, "a peek is not a use");
        assert!(items.peek() == b"x".repeat(4_000)[..]);
        assert!(items.is_folded());
        assert_eq!(saved.bytes(), 4_000);
    }

    /// Makes the same items each time, and counts how often.
    #[derive(Debug)]
    struct Counted(Arc<AtomicU8>);

    impl ItemsOrigin for Counted {
        fn put_items(&self, items: &mut Vec<u8>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            items.extend_from_slice(&b"x".repeat(4_000));
        }

        fn is_orphaned(&self) -> bool {
            Arc::strong_count(&self.0) == 1
        }
    }

    fn unmade(made: &Arc<AtomicU8>, saved: &ByteTally) -> PackedItems {
        let origin = Box::new(Counted(Arc::clone(made)));
        PackedItems::unmade(Box::new([1_500, 4_000]), 0, origin, saved)
    }

    #[test]
    fn items_that_nobody_has_read_are_made_for_the_first_reader() {
        let (saved, made) = (ByteTally::default(), Arc::<AtomicU8>::default());
        let (all, items) = (b"x".repeat(4_000), unmade(&made, &saved));
        assert_eq!(saved.bytes(), 4_000);
        assert_eq!(items.fold(NEVER_READ, &saved), FoldedItems::default());
        assert!(items.peek() == all[..]);
        assert_eq!(saved.bytes(), 4_000, "a peek holds nothing");
        assert_eq!(made.swap(0, Ordering::Relaxed), 1, "for the peek alone");
        assert!(items.items() == all[..] && items.items() == all[..]);
        assert_eq!(made.load(Ordering::Relaxed), 1, "for all readers");
        assert_eq!(saved.bytes(), 0);
        // From here on they are like all others.
        items.age();
        assert!(items.fold(1, &saved).freed > 0);
    }

    #[test]
    fn items_that_are_read_compressed_first_are_held_compressed_alone() {
        let (saved, made) = (ByteTally::default(), Arc::<AtomicU8>::default());
        let items = unmade(&made, &saved);
        assert_eq!(items.deflated().data_len(), 4_000);
        assert!(items.is_folded());
        assert_eq!(saved.bytes(), 4_000);
        assert!(items.items() == b"x".repeat(4_000)[..]);
        assert_eq!(made.load(Ordering::Relaxed), 1, "for both forms");
        drop(items);
        assert_eq!(saved.bytes(), 0);
    }

    #[test]
    fn unmade_items_let_go_of_an_origin_that_nothing_else_holds() {
        let (saved, made) = (ByteTally::default(), Arc::<AtomicU8>::default());
        let items = unmade(&made, &saved);
        assert_eq!(items.release_origin(), 0, "another scope holds it");
        let alone = Arc::downgrade(&made);
        drop(made);
        assert_eq!(items.release_origin(), 4_000);
        assert_eq!(alone.strong_count(), 0);
        assert!(items.is_folded());
        assert_eq!(items.release_origin(), 0);
        assert_eq!(saved.bytes(), 4_000);
        assert!(items.items() == b"x".repeat(4_000)[..]);
    }

    #[test]
    fn readers_of_items_do_not_wait_for_their_compression() {
        let (items, saved) = (packed(&[&b"x".repeat(4_000)], 0), ByteTally::default());
        items.age();
        let compressing = items.compressing.lock();
        // Neither may block, and a reader's compression is not repeated.
        assert_eq!(items.items().len(), 4_000);
        assert!(!items.is_deflated());
        items.age();
        assert_eq!(items.fold(1, &saved), FoldedItems::default());
        drop(compressing);
        assert!(items.fold(1, &saved).freed > 0);
    }
}
