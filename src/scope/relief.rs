//! Frees memory of scopes when it runs short, from what is missed least to what is missed most.
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cached::Scope;
use super::registry::Scopes;
use crate::budget::{DoesNotFit, SizeSource, worth_closing};
use crate::store::NEVER_READ;

/// Age up to which history is kept when memory runs short: what kube-apiserver promises itself.
/// Source: `apiserver/pkg/storage/cacher/cacher.go` (eventFreshDuration).
const PROMISED_HISTORY: Duration = Duration::from_secs(75);
/// Time within which nearly all watches take an event.
const DELIVERED: Duration = Duration::from_secs(2);
/// A scope that was used within this time is not idle: its client may be between two reads.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Objects of scopes for whose sake nothing is listed are folded after so many ticks without a
/// reader: a minute.
const FOLDED_AFTER: u8 = 12;
/// The same of all scopes, when memory is short.
const FOLDED_SOON_AFTER: u8 = 6;
/// Bytes that are compressed for it at a time: a fraction of a second of work.
const FOLDED_AT_ONCE: usize = 4 << 20;
/// The same when memory is short.
const FOLDED_IN_HASTE: usize = 16 << 20;

impl Scopes {
    /// Advances the idle counters of all compressed forms, and returns the forms' bytes. Takes a
    /// moment for each leaf of each scope.
    pub fn age_compressed(&self) -> usize {
        let age = |scope: &Arc<Scope>| {
            let bytes = scope.reader.snapshot().age_compressed();
            scope.memory.set_compressed(bytes);
            bytes
        };
        self.all().iter().map(age).sum()
    }

    /// Releases the compressed forms that nobody used recently, and returns their bytes. Takes a
    /// moment for each leaf of each scope.
    pub fn release_compressed(&self) -> usize {
        let release = |scope: &Arc<Scope>| scope.reader.snapshot().release_compressed();
        self.all().iter().map(release).sum()
    }

    /// Folds objects that nobody has read recently, a part of them at a time, and returns the bytes
    /// that are not held any more. [`Scopes::age_compressed`] counts how long nobody has.
    ///
    /// Scopes that are derived, or that only derived ones read, are folded whenever they are cold: one
    /// of a type's two encodings is hardly read. All others are folded when memory is short. What
    /// nobody has read since its list counts as cold at once. Unmade objects let go of what they would be
    /// made of, where they hold it alone.
    pub fn fold_cold(&self, is_short: bool) -> usize {
        // Each list has objects that were never read once, as what changes is never again unread.
        let (idle, mut budget, mut budget_of_unread) = if is_short {
            (FOLDED_SOON_AFTER, FOLDED_IN_HASTE, 0)
        } else {
            (FOLDED_AFTER, FOLDED_AT_ONCE, FOLDED_IN_HASTE)
        };
        let (all, mut budget_of_origins) = (self.all(), FOLDED_IN_HASTE);
        for scope in &all {
            let snapshot = scope.reader.snapshot();
            snapshot.release_origins(&mut budget_of_origins);
        }
        let is_second = |scope: &&Arc<Scope>| {
            is_short || scope.is_derived() || scope.is_source_only.load(Ordering::Relaxed)
        };
        let fold = |scope: &Arc<Scope>| {
            let snapshot = scope.reader.snapshot();
            let unread = snapshot.fold(NEVER_READ, &mut budget_of_unread);
            let freed = unread + snapshot.fold(idle, &mut budget);
            scope.count_held();
            freed
        };
        all.iter().filter(is_second).map(fold).sum()
    }

    /// Releases the frames of derived events that were delivered, and that nobody has used since the
    /// last call: they are printed again for those who come late. Takes a moment for each that is
    /// held.
    pub fn release_frames(&self, now: Instant) {
        for scope in self.all() {
            if scope.reader.release_frames(now, DELIVERED) > 0 {
                scope.count_held();
            }
        }
    }

    /// Releases the history that is older than kube-apiserver's own, and returns its bytes. Of a
    /// quiet type that is all of it.
    pub fn release_history(&self, now: Instant) -> usize {
        let release = |scope: &Arc<Scope>| {
            let released = scope.reader.release_history(now, PROMISED_HISTORY);
            scope.count_held();
            released
        };
        self.all().iter().map(release).sum()
    }

    /// Closes the scope that has been idle for longest, if there is one, and returns its bytes.
    pub fn close_idlest(&self, now: Instant) -> Option<usize> {
        let idle_since = |scope: &Arc<Scope>| {
            let is_watched = scope.reader.stats().watchers > 0;
            let since = scope.idle.since(is_watched, now)?;
            let is_idle = now.saturating_duration_since(since) >= IDLE_AFTER;
            (is_idle && scope.held() > 0).then_some(since)
        };
        let scopes = self.all();
        let idle = scopes
            .iter()
            .filter_map(|scope| Some((idle_since(scope)?, scope)));
        let (_, idlest) = idle.min_by_key(|(since, _)| *since)?;
        // A request may have acquired it since. That one has a handle and is answered; a watch ends
        // at once, and is forwarded when its client comes back.
        Some(self.close_for_memory(idlest, now, "nobody uses it"))
    }

    /// Closes the largest scope, if there is one that is worth it, and returns its bytes. Its
    /// watches end cleanly. The source of derived scopes that nobody else reads is closed after
    /// them.
    pub fn close_largest(&self, now: Instant) -> Option<usize> {
        let least = worth_closing(self.budget().limit()?);
        let scopes = self.all();
        let sources: HashSet<_> = scopes
            .iter()
            .filter_map(|scope| scope.source.get().as_ref().map(Arc::as_ptr))
            .collect();
        let largest = scopes
            .iter()
            .filter(|scope| !scope.idle.is_pinned() && scope.held() > least)
            .filter(|scope| {
                !scope.is_source_only.load(Ordering::Relaxed)
                    || !sources.contains(&Arc::as_ptr(scope))
            })
            .max_by_key(|scope| scope.held())?;
        Some(self.close_for_memory(largest, now, "it is the largest"))
    }

    fn close_for_memory(&self, scope: &Arc<Scope>, now: Instant, why: &str) -> usize {
        let bytes = scope.held();
        tracing::warn!(
            resource = %scope.key.gvr,
            selection = %scope.key.selection,
            bytes,
            why,
            "closed, as memory is short (--memory-limit)"
        );
        // A list of it holds everything unfolded.
        let held = scope.reader.held();
        let needed = held.objects + held.folded + held.history;
        let size = DoesNotFit {
            needed,
            known_by: SizeSource::Load,
        };
        self.unfit().add(scope.key.clone(), size, now);
        // Before it stops: what it holds would stay with readers that do not read.
        scope.memory.free();
        self.forget(scope);
        bytes
    }
}
