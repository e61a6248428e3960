//! Limits the requests that each caller starts per second.
//!
//! A start is not held and given back as a [`Share`](crate::fairness::Share) is: a caller may start
//! more with time.
use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::exceeded::LimitExceeded;
use crate::fairness::CallerKey;

/// Callers counted at a time. When the table is full, all others share one bucket.
const MAX_CALLERS: usize = 100_000;
/// Interval between sweeps for callers whose buckets are full.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Counts the requests that each caller starts.
pub(super) struct RequestRate {
    refill: Refill,
    table: Mutex<BucketTable>,
}

/// The tokens that a bucket gets each second, and those that it holds.
#[derive(Clone, Copy, Debug)]
struct Refill {
    per_second: f64,
    burst: f64,
}

struct BucketTable {
    known: HashMap<CallerKey, TokenBucket>,
    /// The bucket of all callers beyond the size of the table.
    others: TokenBucket,
    most: usize,
    swept: Instant,
}

/// The requests that a caller may start.
struct TokenBucket {
    left: f64,
    at: Instant,
}

impl RequestRate {
    /// Creates a limit of so many requests per second, after a burst.
    pub(super) fn new(per_second: u32, burst: f64) -> Self {
        let (per_second, now) = (per_second.into(), Instant::now());
        let refill = Refill { per_second, burst };
        Self {
            refill,
            table: Mutex::new(BucketTable {
                known: HashMap::new(),
                others: refill.full_bucket(now),
                most: MAX_CALLERS,
                swept: now,
            }),
        }
    }

    /// Counts a request that starts now.
    pub(super) fn start(&self, caller: CallerKey, now: Instant) -> Result<(), LimitExceeded> {
        let mut table = self.table.lock();
        let bucket = table.bucket_of(caller, self.refill, now);
        bucket.refill(self.refill, now);
        if bucket.left < 1.0 {
            return Err(LimitExceeded::Rate);
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

impl Refill {
    fn full_bucket(self, now: Instant) -> TokenBucket {
        TokenBucket {
            left: self.burst,
            at: now,
        }
    }
}

impl BucketTable {
    /// Returns the bucket of a caller: its own while the table has room.
    fn bucket_of(&mut self, caller: CallerKey, refill: Refill, now: Instant) -> &mut TokenBucket {
        if self.has_room_for(&caller, refill, now) {
            let bucket = self.known.entry(caller);
            bucket.or_insert_with(|| refill.full_bucket(now))
        } else {
            &mut self.others
        }
    }

    fn has_room_for(&mut self, caller: &CallerKey, refill: Refill, now: Instant) -> bool {
        if self.known.len() < self.most || self.known.contains_key(caller) {
            return true;
        }
        if now.saturating_duration_since(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.known.retain(|_, bucket| {
                bucket.refill(refill, now);
                bucket.left < refill.burst
            });
        }
        self.known.len() < self.most
    }
}

impl TokenBucket {
    fn refill(&mut self, refill: Refill, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * refill.per_second).min(refill.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let rate = RequestRate::new(10, 3.0);
        let begun = Instant::now();
        let at = |millis| {
            let now = begun + Duration::from_millis(millis);
            rate.start(CallerKey::user("a"), now).is_ok()
        };
        assert_eq!([at(0), at(0), at(0), at(0)], [true, true, true, false]);
        assert_eq!([at(99), at(101), at(102)], [false, true, false]);
        assert_eq!(
            [at(60_000), at(60_000), at(60_000), at(60_000)],
            [true, true, true, false]
        );
    }

    #[test]
    fn the_table_of_callers_is_bounded() {
        let rate = RequestRate::new(1, 1.0);
        rate.table.lock().most = 2;
        let now = Instant::now();
        let start = |name: &str, at| rate.start(CallerKey::user(name), at);
        for name in ["a", "b", "c"] {
            assert_eq!(start(name, now), Ok(()));
        }
        assert!(!rate.table.lock().known.contains_key(&CallerKey::user("c")));
        assert_eq!(
            start("d", now),
            Err(LimitExceeded::Rate),
            "all others share one bucket"
        );
        let later = now + SWEEP_INTERVAL;
        assert_eq!(start("d", later), Ok(()));
        assert!(
            rate.table.lock().known.contains_key(&CallerKey::user("d")),
            "idle callers are forgotten"
        );
        assert!(rate.table.lock().known.len() <= 2);
    }
}
