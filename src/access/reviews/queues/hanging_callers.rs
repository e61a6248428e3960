//! The callers whose reviews hang.
//!
//! Nobody is limited for a few reviews that hang. As many of one caller as may hang limit that caller. Many of
//! all limit those who had one a short while ago.
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::fairness::CallerKey;

/// Time for which a caller is remembered.
const REMEMBERED: Duration = Duration::from_mins(1);
/// Time without a hanging review after which an answer shows that the caller's do not hang any more. Some
/// reviews of a caller may hang while others are answered at once.
const CALM: Duration = Duration::from_secs(5);
/// Time for which limits last after the hanging reviews have become fewer. They often end together,
/// and others take their places.
const HOLD: Duration = Duration::from_secs(5);
/// Callers that are remembered without a hanging review under way. Of more, those that had one longest ago
/// are forgotten.
const MAX_CALLERS: usize = 1024;

/// The hanging reviews under way, and whose they were.
#[derive(Debug)]
pub(super) struct HangingCallers {
    /// Hanging reviews of one caller that limit it.
    each: usize,
    /// Hanging reviews of all that limit everyone who had one.
    all: usize,
    hanging: Mutex<HangingReviews>,
}

#[derive(Debug, Default)]
struct HangingReviews {
    under_way: HangingCount,
    callers: HashMap<CallerKey, HangingCaller>,
}

#[derive(Debug)]
struct HangingCaller {
    under_way: HangingCount,
    /// The moment at which the last one began to hang, or was given up for that.
    last: Instant,
    /// The moment of that, or of one that was given up early.
    seen: Instant,
}

/// The number of hanging reviews under way.
#[derive(Debug, Default)]
struct HangingCount {
    now: usize,
    /// The last moment at which they were as many as a limit.
    many: Option<Instant>,
}

/// A hanging review that is under way, for as long as this lives.
#[derive(Debug)]
pub(super) struct HangingReview<'a> {
    callers: &'a HangingCallers,
    caller: &'a CallerKey,
}

impl HangingCallers {
    /// Creates the record. `all` and `each` hanging reviews limit those who have them.
    pub(super) fn new(all: usize, each: usize) -> Self {
        Self {
            each,
            all,
            hanging: Mutex::default(),
        }
    }

    /// Returns `true` if the reviews of this caller are limited now.
    pub(super) fn limits(&self, caller: &CallerKey) -> bool {
        let hanging = self.hanging.lock();
        let Some(known) = hanging.callers.get(caller) else {
            return false;
        };
        let is_remembered = known.under_way.now > 0 || known.seen.elapsed() < REMEMBERED;
        known.under_way.are_many(self.each)
            || (is_remembered && hanging.under_way.are_many(self.all))
    }

    /// Notes that a review of this caller hangs, and goes on.
    pub(super) fn begin<'a>(&'a self, caller: &'a CallerKey) -> HangingReview<'a> {
        let mut hanging = self.hanging.lock();
        hanging.under_way.now += 1;
        hanging.note(caller).under_way.now += 1;
        HangingReview {
            callers: self,
            caller,
        }
    }

    /// Notes that a review of this caller hung, and was given up.
    pub(super) fn give_up(&self, caller: &CallerKey) {
        self.hanging.lock().note(caller);
    }

    /// Notes that a review of this caller, who is limited, was given up early.
    pub(super) fn give_up_early(&self, caller: &CallerKey) {
        if let Some(known) = self.hanging.lock().callers.get_mut(caller) {
            known.seen = Instant::now();
        }
    }

    /// Notes that a review of this caller was answered in time.
    pub(super) fn answered(&self, caller: &CallerKey) {
        let mut hanging = self.hanging.lock();
        let is_calm =
            |known: &HangingCaller| known.under_way.now == 0 && known.last.elapsed() >= CALM;
        if hanging.callers.get(caller).is_some_and(is_calm) {
            hanging.callers.remove(caller);
        }
    }
}

impl HangingCount {
    /// Returns `true` if they are as many as `limit`, or were a moment ago.
    fn are_many(&self, limit: usize) -> bool {
        self.now >= limit || self.many.is_some_and(|many| many.elapsed() < HOLD)
    }

    fn end_one(&mut self, limit: usize) {
        if self.now >= limit {
            self.many = Some(Instant::now());
        }
        self.now -= 1;
    }
}

impl HangingReviews {
    /// Notes that a review of this caller hangs now.
    fn note(&mut self, caller: &CallerKey) -> &mut HangingCaller {
        self.forget_some();
        let now = Instant::now();
        let known = self.callers.entry(caller.clone());
        let known = known.or_insert_with(|| HangingCaller {
            under_way: HangingCount::default(),
            last: now,
            seen: now,
        });
        (known.last, known.seen) = (now, now);
        known
    }

    /// Makes room for one more. Forgets half at once, so that this is rare.
    fn forget_some(&mut self) {
        let idle = |known: &HangingCaller| known.under_way.now == 0;
        if self.callers.len() < MAX_CALLERS + self.under_way.now {
            return;
        }
        let callers = self.callers.values();
        let mut moments: Vec<_> = callers.filter(|it| idle(it)).map(|it| it.seen).collect();
        let middle = moments.len() / 2;
        if middle > 0 {
            let newest_forgotten = *moments.select_nth_unstable(middle).1;
            self.callers
                .retain(|_, known| !idle(known) || known.seen > newest_forgotten);
        }
    }
}

impl Drop for HangingReview<'_> {
    fn drop(&mut self) {
        let mut hanging = self.callers.hanging.lock();
        hanging.under_way.end_one(self.callers.all);
        if let Some(known) = hanging.callers.get_mut(self.caller) {
            known.under_way.end_one(self.callers.each);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn caller(n: u32) -> CallerKey {
        CallerKey::Address(IpAddr::from(n.to_be_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_hanging_reviews_limit_nobody() {
        let callers = HangingCallers::new(10, 3);
        let (one, other) = (caller(1), caller(2));
        let mut hanging: Vec<_> = (0..2).map(|_| callers.begin(&one)).collect();
        assert!(!callers.limits(&one));
        hanging.push(callers.begin(&one));
        assert!(callers.limits(&one));
        assert!(!callers.limits(&other));
        hanging.pop();
        assert!(callers.limits(&one), "others may take its place");
        tokio::time::advance(HOLD).await;
        assert!(!callers.limits(&one));
    }

    #[tokio::test(start_paused = true)]
    async fn many_hanging_reviews_limit_those_who_had_one_until_theirs_are_answered() {
        let callers = HangingCallers::new(10, 3);
        let others: Vec<_> = (10..20).map(caller).collect();
        let (before, new) = (caller(1), caller(2));
        drop(callers.begin(&before));
        assert!(!callers.limits(&before));
        let hanging: Vec<_> = others.iter().map(|other| callers.begin(other)).collect();
        assert!(callers.limits(&before));
        assert!(!callers.limits(&new));
        callers.answered(&before);
        assert!(callers.limits(&before), "others of it may hang");
        tokio::time::advance(CALM).await;
        callers.answered(&before);
        assert!(!callers.limits(&before));
        tokio::time::advance(REMEMBERED).await;
        assert!(callers.limits(&others[0]), "its own is still under way");
        drop(hanging);
        tokio::time::advance(HOLD).await;
        assert!(!callers.limits(&others[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_callers_is_bounded() {
        let callers = HangingCallers::new(10, 3);
        for n in 0..10_000 {
            drop(callers.begin(&caller(n)));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(callers.hanging.lock().callers.len() <= MAX_CALLERS + 1);
        let known = callers.hanging.lock().callers.contains_key(&caller(9_999));
        assert!(known);
    }
}
