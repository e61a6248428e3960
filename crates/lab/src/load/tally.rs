//! Counters of one round, updated by its clients.
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Number of histograms for latencies, so that watches seldom wait for the same lock.
const SHARDS: usize = 8;

/// Latencies are microseconds up to here, in three digits.
const MAX_LATENCY_MICROS: u64 = 600_000_000;
const DIGITS: u8 = 3;

/// Number of different errors that are kept. All others count as one more.
const MAX_KINDS: usize = 50;
const FURTHER: &str = "further kinds of errors";

/// Counts of one round.
pub(super) struct RoundTally {
    /// True from the first states to the last event, while events count.
    measuring: AtomicBool,
    /// Watches that have their first state.
    pub(super) synced: AtomicUsize,
    /// Watches whose first state was refused for a reason that stays.
    pub(super) refused: AtomicUsize,
    pub(super) first_state: Latencies,
    /// Events of any object, bookmarks left out.
    pub(super) events: AtomicU64,
    /// Stamped ones that were expected.
    pub(super) delivered: AtomicU64,
    /// Stamped ones that came again, or after a newer one.
    pub(super) repeated: AtomicU64,
    /// Stamped ones that a newer one of the same object shows to be missing.
    pub(super) missed: AtomicU64,
    /// Watches that ended in good order and were opened again.
    pub(super) resumed: AtomicU64,
    /// Bytes of watches' bodies, as they came.
    pub(super) watch_bytes: AtomicU64,
    pub(super) latency: Latencies,
    pub(super) lists: RequestTally,
    pub(super) gets: RequestTally,
    pub(super) writes: RequestTally,
    errors: Mutex<BTreeMap<String, u64>>,
}

/// Requests of one kind.
pub(super) struct RequestTally {
    pub(super) done: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Not sent, as too many were waiting for their answers.
    pub(super) skipped: AtomicU64,
    pub(super) latency: Latencies,
}

/// Recorded durations.
pub(super) struct Latencies(Vec<Mutex<Histogram<u64>>>);

impl RoundTally {
    pub(super) fn new() -> Self {
        Self {
            measuring: AtomicBool::new(false),
            synced: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            first_state: Latencies::new(1),
            events: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            watch_bytes: AtomicU64::new(0),
            latency: Latencies::new(SHARDS),
            lists: RequestTally::new(),
            gets: RequestTally::new(),
            writes: RequestTally::new(),
            errors: Mutex::default(),
        }
    }

    pub(super) fn measure(&self, now: bool) {
        self.measuring.store(now, Ordering::Release);
    }

    pub(super) fn is_measuring(&self) -> bool {
        self.measuring.load(Ordering::Acquire)
    }

    /// Adds to a count while measuring.
    pub(super) fn count(&self, counter: &AtomicU64, n: u64) {
        if self.is_measuring() {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Errors are counted from the first connection on.
    pub(super) fn error(&self, of: &str, error: impl Display) {
        let text = format!("{of}: {error}");
        tracing::debug!(%text, "client failed");
        let mut errors = self.errors.lock();
        let kind = if errors.len() < MAX_KINDS || errors.contains_key(&text) {
            text
        } else {
            FURTHER.to_owned()
        };
        *errors.entry(kind).or_default() += 1;
    }

    pub(super) fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().clone()
    }

    /// Returns the most frequent error with its count; `None` if there was none.
    pub(super) fn most_frequent_error(&self) -> Option<String> {
        let errors = self.errors.lock();
        let (text, count) = errors.iter().max_by_key(|(_, count)| **count)?;
        Some(format!("{count} times: {text}"))
    }

    pub(super) fn error_count(&self) -> u64 {
        self.errors.lock().values().sum()
    }
}

impl RequestTally {
    fn new() -> Self {
        Self {
            done: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            latency: Latencies::new(1),
        }
    }

    pub(super) fn add(&self, took: Duration, bytes: u64) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.latency.record(0, took);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_MICROS, DIGITS)
        .expect("the bounds are in order, and the digits are few")
}

impl Latencies {
    fn new(shards: usize) -> Self {
        Self((0..shards).map(|_| Mutex::new(histogram())).collect())
    }

    pub(super) fn record(&self, by: usize, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0[by % self.0.len()].lock().saturating_record(micros);
    }

    /// All of them together.
    pub(super) fn total(&self) -> Histogram<u64> {
        let mut total = histogram();
        for shard in &self.0 {
            // Of the same bounds, so that it fits.
            let _ = total.add(&*shard.lock());
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_begins_with_the_measurement_but_errors_count_before() {
        let tally = RoundTally::new();
        tally.count(&tally.events, 1);
        tally.measure(true);
        tally.count(&tally.events, 2);
        assert_eq!(tally.events.load(Ordering::Relaxed), 2);
        (0..1000).for_each(|n| tally.error("watch", n));
        assert_eq!(
            (tally.error_count(), tally.errors().len()),
            (1000, MAX_KINDS + 1)
        );
        (0..5000).for_each(|_| tally.error("list", "503"));
        let further = format!("5950 times: {FURTHER}");
        assert_eq!(tally.most_frequent_error(), Some(further));
    }

    #[test]
    fn latencies_of_all_watches_are_one_distribution() {
        let latencies = Latencies::new(3);
        (0..1000).for_each(|n| latencies.record(n, Duration::from_millis(1 + n as u64)));
        latencies.record(0, Duration::MAX);
        let total = latencies.total();
        assert_eq!(total.len(), 1001);
        assert_eq!(total.value_at_quantile(0.5) / 1000, 501);
    }
}
