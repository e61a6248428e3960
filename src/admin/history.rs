//! Figures of the last minutes for the status page, as a ring of samples of fixed size.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Interval between samples.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of samples kept. Rates need a pair of samples, so ten minutes take 121.
const SAMPLES: usize = 121;

/// The samples of the last minutes.
#[derive(Debug, Default)]
pub struct History(Mutex<Samples>);

type Samples = VecDeque<(Instant, HistorySample)>;

/// Counters since the start of the process, and levels at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HistorySample {
    /// Requests that the proxy answered itself.
    pub(super) here: u64,
    /// Requests that upstream answered.
    pub(super) forwarded: u64,
    /// Bytes of answers to clients.
    pub(super) sent: u64,
    /// Bytes of upstream's answers.
    pub(super) received: u64,
    /// Open watches that the proxy serves itself.
    pub(super) watches_here: u64,
    /// Open watches that are forwarded.
    pub(super) watches_forwarded: u64,
    /// Resident memory of the process, in bytes.
    pub(super) resident: u64,
    /// Bytes of the objects and events that scopes hold.
    pub(super) held: u64,
}

/// Values of one chart line, the newest last.
pub(super) type Series = Vec<f64>;

/// Figures of the last minutes, as charts show them.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentFigures {
    /// Time between the first sample and the last.
    pub(super) covers: Duration,
    /// Requests a second: answered here, forwarded.
    pub(super) requests: [Series; 2],
    /// Bytes a second: to clients, from upstream.
    pub(super) bytes: [Series; 2],
    /// Open watches: served here, forwarded.
    pub(super) watches: [Series; 2],
    /// Bytes of memory: of the process, of what scopes hold.
    pub(super) memory: [Series; 2],
}

impl History {
    /// Adds a sample. A full ring drops its oldest one.
    pub(super) fn add(&self, at: Instant, sample: HistorySample) {
        let mut samples = self.0.lock();
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back((at, sample));
    }

    /// Returns the figures of the last minutes.
    pub(super) fn recent(&self) -> RecentFigures {
        let samples = self.0.lock();
        let covers = match (samples.front(), samples.back()) {
            (Some((first, _)), Some((last, _))) => *last - *first,
            _ => Duration::ZERO,
        };
        RecentFigures {
            covers,
            requests: [
                rates(&samples, |sample| sample.here),
                rates(&samples, |sample| sample.forwarded),
            ],
            bytes: [
                rates(&samples, |sample| sample.sent),
                rates(&samples, |sample| sample.received),
            ],
            watches: [
                levels(&samples, |sample| sample.watches_here),
                levels(&samples, |sample| sample.watches_forwarded),
            ],
            memory: [
                levels(&samples, |sample| sample.resident),
                levels(&samples, |sample| sample.held),
            ],
        }
    }
}

/// Returns the growth of a counter per second, for each pair of neighbouring samples.
fn rates(samples: &Samples, counter: fn(&HistorySample) -> u64) -> Series {
    samples
        .iter()
        .zip(samples.iter().skip(1))
        .map(|((before, from), (at, to))| {
            let seconds = (*at - *before).as_secs_f64().max(0.001);
            counter(to).saturating_sub(counter(from)) as f64 / seconds
        })
        .collect()
}

/// Returns a level at each sample.
fn levels(samples: &Samples, level: fn(&HistorySample) -> u64) -> Series {
    samples
        .iter()
        .map(|(_, sample)| level(sample) as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_of_samples_gives_rates() {
        let (history, begun) = (History::default(), Instant::now());
        assert!(history.recent().requests[0].is_empty());
        for n in 0..300u32 {
            let sample = HistorySample {
                here: u64::from(n) * 50,
                watches_here: 7,
                ..HistorySample::default()
            };
            history.add(begun + SAMPLE_INTERVAL * n, sample);
        }
        let recent = history.recent();
        assert_eq!(recent.covers, Duration::from_mins(10));
        assert_eq!(recent.requests[0], vec![10.0; SAMPLES - 1]);
        assert_eq!(recent.requests[1], vec![0.0; SAMPLES - 1]);
        assert_eq!(recent.watches[0], vec![7.0; SAMPLES]);
    }
}
