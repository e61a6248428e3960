//! The callers whose reviews are late.
//!
//! Nobody is limited for a few late reviews, such as those of an API server that is slow for a moment. Many of
//! one caller limit that caller. Many of all limit those who had a late one a short while ago.
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::fairness::CallerKey;

/// Time for which a late caller is remembered.
const REMEMBERED: Duration = Duration::from_mins(1);
/// Time without a late review after which one in time shows that the caller's are not late any more. Some
/// reviews of a caller may hang while others are answered at once.
const CALM: Duration = Duration::from_secs(5);
/// Time for which limits last after the late reviews have become fewer. Those that hang often end together,
/// and others take their places.
const HOLD: Duration = Duration::from_secs(2);
/// Callers that are remembered without a late review under way. Of more, those that were late longest ago
/// are forgotten.
const MAX_CALLERS: usize = 1024;

/// The late reviews under way, and whose they were.
#[derive(Debug)]
pub(super) struct LateCallers {
    /// Late reviews of one caller that limit it.
    each: usize,
    /// Late reviews of all that limit everyone who had one.
    all: usize,
    late: Mutex<LateReviews>,
}

#[derive(Debug, Default)]
struct LateReviews {
    under_way: LateCount,
    callers: HashMap<CallerKey, LateCaller>,
}

#[derive(Debug)]
struct LateCaller {
    under_way: LateCount,
    /// The moment of the last late review.
    last: Instant,
    /// The moment of that, or of one that was given up before it could be late.
    seen: Instant,
}

/// The number of late reviews under way.
#[derive(Debug, Default)]
struct LateCount {
    now: usize,
    /// The last moment at which they were as many as a limit.
    many: Option<Instant>,
}

/// A late review that is under way, for as long as this lives.
#[derive(Debug)]
pub(super) struct LateReview<'a> {
    callers: &'a LateCallers,
    caller: &'a CallerKey,
}

impl LateCallers {
    /// Creates the record. `all` and `each` late reviews under way limit those who have them.
    pub(super) fn new(all: usize, each: usize) -> Self {
        Self {
            each,
            all,
            late: Mutex::default(),
        }
    }

    /// Returns `true` if the reviews of this caller are limited now.
    pub(super) fn limits(&self, caller: &CallerKey) -> bool {
        let late = self.late.lock();
        let Some(known) = late.callers.get(caller) else {
            return false;
        };
        let is_remembered = known.under_way.now > 0 || known.seen.elapsed() < REMEMBERED;
        known.under_way.are_many(self.each) || (is_remembered && late.under_way.are_many(self.all))
    }

    /// Notes that a review of this caller is late.
    pub(super) fn begin<'a>(&'a self, caller: &'a CallerKey) -> LateReview<'a> {
        let now = Instant::now();
        let mut late = self.late.lock();
        late.under_way.now += 1;
        late.forget_some();
        let known = late.callers.entry(caller.clone()).or_insert(LateCaller {
            under_way: LateCount::default(),
            last: now,
            seen: now,
        });
        known.under_way.now += 1;
        (known.last, known.seen) = (now, now);
        LateReview {
            callers: self,
            caller,
        }
    }

    /// Notes that a review of a limited caller was given up before it could be late.
    pub(super) fn given_up(&self, caller: &CallerKey) {
        if let Some(known) = self.late.lock().callers.get_mut(caller) {
            known.seen = Instant::now();
        }
    }

    /// Notes that a review of this caller was in time.
    pub(super) fn in_time(&self, caller: &CallerKey) {
        let mut late = self.late.lock();
        let is_calm = |known: &LateCaller| known.under_way.now == 0 && known.last.elapsed() >= CALM;
        if late.callers.get(caller).is_some_and(is_calm) {
            late.callers.remove(caller);
        }
    }
}

impl LateCount {
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

impl LateReviews {
    /// Makes room for one more. Forgets half at once, so that this is rare.
    fn forget_some(&mut self) {
        let idle = |known: &LateCaller| known.under_way.now == 0;
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

impl Drop for LateReview<'_> {
    fn drop(&mut self) {
        let mut late = self.callers.late.lock();
        late.under_way.end_one(self.callers.all);
        if let Some(known) = late.callers.get_mut(self.caller) {
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
    async fn a_few_late_reviews_limit_nobody() {
        let callers = LateCallers::new(10, 3);
        let (one, other) = (caller(1), caller(2));
        let mut late: Vec<_> = (0..2).map(|_| callers.begin(&one)).collect();
        assert!(!callers.limits(&one));
        late.push(callers.begin(&one));
        assert!(callers.limits(&one));
        assert!(!callers.limits(&other));
        late.pop();
        assert!(callers.limits(&one), "others may take its place");
        tokio::time::advance(HOLD).await;
        assert!(!callers.limits(&one));
    }

    #[tokio::test(start_paused = true)]
    async fn many_late_reviews_limit_those_who_had_one_until_theirs_are_in_time() {
        let callers = LateCallers::new(10, 3);
        let others: Vec<_> = (10..20).map(caller).collect();
        let (before, new) = (caller(1), caller(2));
        drop(callers.begin(&before));
        assert!(!callers.limits(&before));
        let late: Vec<_> = others.iter().map(|other| callers.begin(other)).collect();
        assert!(callers.limits(&before));
        assert!(!callers.limits(&new));
        callers.in_time(&before);
        assert!(callers.limits(&before), "others of it may hang");
        tokio::time::advance(CALM).await;
        callers.in_time(&before);
        assert!(!callers.limits(&before));
        tokio::time::advance(REMEMBERED).await;
        assert!(callers.limits(&others[0]), "its own is still under way");
        drop(late);
        tokio::time::advance(HOLD).await;
        assert!(!callers.limits(&others[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_late_callers_is_bounded() {
        let callers = LateCallers::new(10, 3);
        for n in 0..10_000 {
            drop(callers.begin(&caller(n)));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(callers.late.lock().callers.len() <= MAX_CALLERS + 1);
        let known = callers.late.lock().callers.contains_key(&caller(9_999));
        assert!(known);
    }
}
