//! What was done in the last minutes, for the status page: a ring of samples of fixed size.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::State;
use crate::upstream::RequestPurpose;

/// Between two samples.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// Samples kept: ten minutes, and one more to begin with.
const SAMPLES: usize = 121;

/// Sums since the start of the process, and what is held and open, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// Requests that were answered here.
    pub(super) here: u64,
    /// Requests that upstream answered.
    pub(super) forwarded: u64,
    /// Bytes of answers to clients.
    pub(super) sent: u64,
    /// Bytes of upstream's answers.
    pub(super) received: u64,
    /// Watches open that are served here.
    pub(super) watches_here: u64,
    /// Watches open that are forwarded.
    pub(super) watches_forwarded: u64,
    /// Bytes of memory that the process has.
    pub(super) resident: u64,
    /// Bytes of the objects and events that scopes hold.
    pub(super) held: u64,
}

/// The samples.
#[derive(Debug, Default)]
pub struct History(Mutex<VecDeque<(Instant, Sums)>>);

/// One line of a chart: a value for each interval, the newest last.
pub(super) type Line = Vec<f64>;

/// The last minutes, as charts show them.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    /// How long the lines reach back.
    pub(super) covers: Duration,
    /// Requests a second: answered here, forwarded.
    pub(super) requests: [Line; 2],
    /// Bytes a second: to clients, from upstream.
    pub(super) bytes: [Line; 2],
    /// Watches open: served here, forwarded.
    pub(super) watches: [Line; 2],
    /// Bytes of memory: of the process, of what scopes hold.
    pub(super) memory: [Line; 2],
}

impl Sums {
    /// Those of this moment.
    pub(super) fn of(state: &State) -> Self {
        let mut sums = Self::default();
        for (source, requests, bytes) in state.usage.by_source() {
            *(if source == "forward" {
                &mut sums.forwarded
            } else {
                &mut sums.here
            }) += requests;
            sums.sent += bytes;
        }
        let traffic = state.upstream.traffic();
        sums.received = RequestPurpose::ALL
            .iter()
            .map(|purpose| traffic.received_bytes(*purpose))
            .sum();
        (sums.watches_here, sums.watches_forwarded) = state.usage.watches();
        sums.resident = metrics_process::collector::collect()
            .resident_memory_bytes
            .unwrap_or(0);
        for scope in state.scopes.all() {
            let figures = scope.reader.stats();
            sums.held += (figures.object_bytes + figures.event_bytes) as u64;
        }
        sums
    }
}

impl History {
    /// Takes samples for ever.
    pub(super) async fn follow(state: &State) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            interval.tick().await;
            let now = Instant::now();
            state.usage.tick(now - last);
            last = now;
            state.history.add(now, Sums::of(state));
        }
    }

    fn add(&self, at: Instant, sums: Sums) {
        let mut samples = self.0.lock();
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back((at, sums));
    }

    /// The last minutes.
    pub(super) fn rates(&self) -> Rates {
        let samples = self.0.lock();
        let pairs = || samples.iter().zip(samples.iter().skip(1));
        let rate = |of: fn(&Sums) -> u64| -> Line {
            let rate = |((before, from), (at, to)): (&(Instant, Sums), &(Instant, Sums))| {
                of(to).saturating_sub(of(from)) as f64 / (*at - *before).as_secs_f64().max(0.001)
            };
            pairs().map(rate).collect()
        };
        let level = |of: fn(&Sums) -> u64| -> Line {
            samples.iter().map(|(_, sums)| of(sums) as f64).collect()
        };
        let covers = match (samples.front(), samples.back()) {
            (Some((first, _)), Some((last, _))) => *last - *first,
            _ => Duration::ZERO,
        };
        Rates {
            covers,
            requests: [rate(|sums| sums.here), rate(|sums| sums.forwarded)],
            bytes: [rate(|sums| sums.sent), rate(|sums| sums.received)],
            watches: [
                level(|sums| sums.watches_here),
                level(|sums| sums.watches_forwarded),
            ],
            memory: [level(|sums| sums.resident), level(|sums| sums.held)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_of_samples_gives_rates() {
        let (history, begun) = (History::default(), Instant::now());
        assert!(history.rates().requests[0].is_empty());
        for n in 0..300u32 {
            let sums = Sums {
                here: u64::from(n) * 50,
                watches_here: 7,
                ..Sums::default()
            };
            history.add(begun + INTERVAL * n, sums);
        }
        let rates = history.rates();
        assert_eq!(rates.covers, Duration::from_mins(10));
        assert_eq!(rates.requests[0], vec![10.0; SAMPLES - 1]);
        assert_eq!(rates.requests[1], vec![0.0; SAMPLES - 1]);
        assert_eq!(rates.watches[0], vec![7.0; SAMPLES]);
    }
}
