//! Throttles log lines about what any request may cause: one in a while stands for many.
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Counts what is to be logged, and lets one line pass in each interval.
#[derive(Debug)]
pub struct LogThrottle {
    interval: Duration,
    unlogged: Mutex<Unlogged>,
}

#[derive(Debug)]
struct Unlogged {
    /// The moment of the last line.
    last: Option<Instant>,
    /// The number of occasions since then.
    count: usize,
}

impl LogThrottle {
    /// Creates a throttle that lets one line pass in each interval.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            unlogged: Mutex::new(Unlogged {
                last: None,
                count: 0,
            }),
        }
    }

    /// Counts so many occasions. If a line is due, returns the number of them since the last one.
    /// No lock is held then, as logging may block.
    pub fn count(&self, occasions: usize) -> Option<usize> {
        let mut unlogged = self.unlogged.lock();
        unlogged.count += occasions;
        let is_recent = |last: Instant| last.elapsed() < self.interval;
        if unlogged.last.is_some_and(is_recent) {
            return None;
        }
        unlogged.last = Some(Instant::now());
        Some(std::mem::take(&mut unlogged.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stands_for_all_since_the_one_before() {
        let line = LogThrottle::new(Duration::from_hours(1));
        assert_eq!(line.count(1), Some(1));
        assert_eq!([line.count(1), line.count(2)], [None, None]);
        line.unlogged.lock().last = None;
        assert_eq!(line.count(1), Some(4));
    }
}
