//! Results of a run, in the form of the JSON file.
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::plan::LoadWrites;
use super::tally::{Latencies, RequestTally};
use crate::process::Machine;

/// The name of this program among the processes.
pub const OWN_PROCESS: &str = "load";

/// Points of a distribution for each decade of what is left above.
const STEPS: u32 = 10;
const MAX_DECADES: u32 = 9;

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadResult {
    /// The plan of a run, and its machine.
    pub setting: LoadSetting,
    /// In the order of the command line; the first is what others are compared with.
    pub servers: Vec<ServerResult>,
    /// True if the user ended the run before its time.
    pub interrupted: bool,
    /// Problems besides those of the rounds.
    pub errors: Vec<String>,
}

/// The plan of a run, and its machine.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadSetting {
    /// Version of this program.
    pub version: &'static str,
    /// Machine of this program.
    pub machine: Machine,
    /// The clients, a line for each kind.
    pub clients: Vec<String>,
    /// Writes during the rounds.
    pub writes: LoadWrites,
    /// Planned length of a round in seconds.
    pub duration_seconds: f64,
    /// Planned number of rounds.
    pub rounds: usize,
}

/// One server's rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerResult {
    /// From the command line.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// In the order of time.
    pub rounds: Vec<RoundResult>,
}

/// One server's turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoundResult {
    /// Length of the load in seconds, without the settling after it.
    pub seconds: f64,
    /// Watches that were wanted.
    pub watches: usize,
    /// Those that had their first state in time.
    pub watches_begun: usize,
    /// Connections of the watches.
    pub connections: usize,
    /// Until all watches had their first state, in seconds.
    pub opening_seconds: f64,
    /// Time of each watch to its first state, from when its client began: further attempts and the
    /// wait for its turn are included.
    pub first_state: Distribution,
    /// Events of any kind in these seconds.
    pub events: u64,
    /// Confirmed writes, each times the watches that were to be told.
    pub events_expected: u64,
    /// Those that came, once and in order.
    pub events_delivered: u64,
    /// Those that did not come.
    pub events_lost: u64,
    /// Those that came again or late.
    pub events_repeated: u64,
    /// Watches that ended in good order and were opened again.
    pub watches_resumed: u64,
    /// Bytes of watches in these seconds.
    pub watch_bytes: u64,
    /// From before the write was sent until its event was there.
    pub delivery: Distribution,
    /// Lists.
    pub lists: RequestStats,
    /// Gets.
    pub gets: RequestStats,
    /// Writes, which all rounds send to the same server.
    pub writes: RequestStats,
    /// By name. This program is `load`.
    pub processes: BTreeMap<String, ProcessConsumption>,
    /// By what they say, with how often.
    pub errors: BTreeMap<String, u64>,
    /// Over time.
    pub samples: Vec<Sample>,
}

/// Requests of a kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStats {
    /// Answered while the load lasted. [`Distribution::count`] has all answers.
    pub answered: u64,
    /// Not sent, as too many were waiting for their answers.
    pub skipped: u64,
    /// Bytes of all answers; of writes, of all requests.
    pub bytes: u64,
    /// From when it was due until the end of its answer.
    pub latency: Distribution,
}

/// Distribution of durations in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Half were faster.
    pub p50: f64,
    /// Nine of ten were.
    pub p90: f64,
    /// 99 of 100 were.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
    /// The whole of it: quantile and milliseconds.
    pub quantiles: Vec<(f64, f64)>,
    #[serde(skip)]
    pub(crate) histogram: Option<Histogram<u64>>,
}

/// CPU time and memory that a process used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessConsumption {
    /// CPU seconds until all watches had their first state.
    pub opening_cpu_seconds: f64,
    /// CPU seconds during the load.
    pub cpu_seconds: f64,
    /// The most resident memory seen in the round.
    pub memory_bytes: u64,
}

/// A moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// Since the measurement began.
    pub seconds: f64,
    /// Since the sample before.
    pub events_per_second: f64,
    /// The same of the bytes of watches.
    pub watch_bytes_per_second: f64,
    /// Cores each process used since the sample before.
    pub cores: BTreeMap<String, f64>,
    /// Resident bytes.
    pub memory_bytes: BTreeMap<String, u64>,
}

impl LoadResult {
    /// Returns `true` if nothing was lost, repeated, refused or skipped, and nothing failed.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
            && self
                .servers
                .iter()
                .flat_map(|server| &server.rounds)
                .all(RoundResult::is_clean)
    }

    /// Returns `true` if no round was measured.
    pub fn is_empty(&self) -> bool {
        self.servers.iter().all(|server| server.rounds.is_empty())
    }
}

impl RoundResult {
    /// Returns `true` if nothing was lost, repeated, refused or skipped.
    pub fn is_clean(&self) -> bool {
        let requests = [&self.lists, &self.gets, &self.writes];
        requests.iter().all(|of| of.skipped == 0)
            && self.events_lost == 0
            && self.events_repeated == 0
            && self.watches_begun == self.watches
            && self.errors.is_empty()
    }
}

impl RequestStats {
    pub(super) fn of(requests: &RequestTally, answered: u64) -> Self {
        Self {
            answered,
            skipped: requests.skipped.load(Ordering::Relaxed),
            bytes: requests.bytes.load(Ordering::Relaxed),
            latency: Distribution::of(&requests.latency),
        }
    }
}

impl Distribution {
    pub(super) fn of(latencies: &Latencies) -> Self {
        Self::from(latencies.total())
    }

    /// Returns one of the values; `None` if nothing was measured.
    pub(super) fn measured(&self, value: f64) -> Option<f64> {
        (self.count > 0).then_some(value)
    }

    /// Joins the distributions of several rounds.
    pub(crate) fn joined<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut histograms = all.filter_map(|one| one.histogram.as_ref());
        let Some(mut total) = histograms.next().cloned() else {
            return Self::default();
        };
        for one in histograms {
            // Of the same bounds, so that it fits.
            let _ = total.add(one);
        }
        Self::from(total)
    }
}

impl From<Histogram<u64>> for Distribution {
    /// Converts a histogram of microseconds.
    fn from(histogram: Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let milliseconds = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        // As far as there are single values above.
        let decades = (histogram.len() as f64).log10();
        let quantiles = (0..=MAX_DECADES * STEPS)
            .map(|step| f64::from(step) / f64::from(STEPS))
            .take_while(|above| *above <= decades)
            .map(|above| 1.0 - 10_f64.powf(-above))
            .chain([1.0])
            .map(|quantile| (quantile, milliseconds(quantile)))
            .collect();
        Self {
            count: histogram.len(),
            p50: milliseconds(0.5),
            p90: milliseconds(0.9),
            p99: milliseconds(0.99),
            max: histogram.max() as f64 / 1000.0,
            quantiles,
            histogram: Some(histogram),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_quantiles() {
        let mut histogram = Histogram::new(3).unwrap();
        (1..=1000).for_each(|n| histogram.record(n * 1000).unwrap());
        let distribution = Distribution::from(histogram);
        assert_eq!(distribution.count, 1000);
        assert!(
            (distribution.p99 - 990.0).abs() < 2.0,
            "{}",
            distribution.p99
        );
        assert_eq!(distribution.quantiles.len(), 32);
        assert!(
            distribution
                .quantiles
                .is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1)
        );
        let twice = Distribution::joined([&distribution, &distribution].into_iter());
        assert_eq!(twice.count, 2000);
        assert_eq!(Distribution::from(Histogram::new(3).unwrap()).count, 0);
    }

    #[test]
    fn a_round_with_a_lost_event_is_not_clean() {
        assert!(RoundResult::default().is_clean());
        assert!(
            !RoundResult {
                events_lost: 1,
                ..RoundResult::default()
            }
            .is_clean()
        );
        assert!(
            !RoundResult {
                events_repeated: 1,
                ..RoundResult::default()
            }
            .is_clean()
        );
        assert!(
            !RoundResult {
                watches: 1,
                ..RoundResult::default()
            }
            .is_clean()
        );
        let skipped = RequestStats {
            skipped: 1,
            ..RequestStats::default()
        };
        assert!(
            !RoundResult {
                writes: skipped,
                ..RoundResult::default()
            }
            .is_clean()
        );
        assert!(
            !RoundResult {
                errors: [("list: 500".to_owned(), 1)].into(),
                ..RoundResult::default()
            }
            .is_clean()
        );
    }
}
