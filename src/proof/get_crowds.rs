//! The rate at which consistent gets of each type come.
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use watershed_protocol::GroupVersionResource;

/// Gets of one type in a second from which on they may wait for each other. Within 25 ms, which is
/// the longest wait, that is eight.
pub(crate) const MANY_GETS: f64 = 320.0;

/// Numbers of gets whose time tells a rate. The first shows a burst as it begins, the last also
/// spans the pauses between small bursts.
const SCALES: [usize; 3] = [8, 16, GETS_REMEMBERED];
const GETS_REMEMBERED: usize = 32;
/// Pauses between gets up to this length are those of a burst.
const SHORT_PAUSE: Duration = Duration::from_micros(500);
/// A crowd ends with a pause this many times as long as any in it.
const UNUSUAL: u32 = 2;

/// Types without a get for this long are forgotten. The rate of their gets is far below [`MANY_GETS`] by then.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(1);

/// Counts consistent gets by type.
#[derive(Debug, Default)]
pub(crate) struct GetCrowds(Mutex<HashMap<GroupVersionResource, GetCrowd>>);

/// The gets of one type.
#[derive(Clone, Debug, Default)]
struct GetCrowd {
    /// The moments at which the last ones came, the newest first.
    arrivals: VecDeque<Instant>,
    /// Gets that wait for others, or for a proof.
    waiting: u32,
}

/// A get that arrives, and the gets before it.
#[derive(Debug)]
pub(crate) struct ArrivingGet<'a> {
    crowds: &'a GetCrowds,
    gvr: &'a GroupVersionResource,
    /// Expected number of gets of the type in a second. It is zero for a get that comes after an
    /// unusual pause.
    pub(crate) rate: f64,
    /// Others are waiting.
    has_company: bool,
}

/// A get that waits for a proof, for as long as this lives.
#[derive(Debug)]
pub(crate) struct WaitingGet<'a> {
    crowds: &'a GetCrowds,
    gvr: &'a GroupVersionResource,
}

impl GetCrowds {
    /// Counts a get that arrives at this time.
    pub(crate) fn arrived<'a>(
        &'a self,
        gvr: &'a GroupVersionResource,
        now: Instant,
    ) -> ArrivingGet<'a> {
        let mut crowds = self.0.lock();
        let (rate, has_company) = if let Some(crowd) = crowds.get_mut(gvr) {
            (crowd.arrived(now), crowd.waiting > 0)
        } else {
            // Custom types come and go.
            crowds.retain(|_, crowd| crowd.is_remembered(now));
            let crowd = crowds.entry(gvr.clone()).or_default();
            (crowd.arrived(now), false)
        };
        ArrivingGet {
            crowds: self,
            gvr,
            rate,
            has_company,
        }
    }
}

impl<'a> ArrivingGet<'a> {
    /// Returns `true` if the get may wait for others.
    pub(crate) fn is_in_a_crowd(&self) -> bool {
        self.has_company || self.rate >= MANY_GETS
    }

    /// Notes that the get waits for a proof from now on.
    pub(crate) fn wait(self) -> WaitingGet<'a> {
        let Self { crowds, gvr, .. } = self;
        let mut counted = crowds.0.lock();
        if let Some(crowd) = counted.get_mut(gvr) {
            crowd.waiting += 1;
        } else {
            // Its type was forgotten in between.
            counted.entry(gvr.clone()).or_default().waiting = 1;
        }
        WaitingGet { crowds, gvr }
    }
}

impl GetCrowd {
    /// Counts a get that arrives at this time. Returns the rate that it meets.
    fn arrived(&mut self, now: Instant) -> f64 {
        let rate = self.rate(now);
        self.arrivals.truncate(GETS_REMEMBERED - 1);
        self.arrivals.push_front(now);
        rate
    }

    /// Returns `true` if a get waits, or came lately.
    fn is_remembered(&self, now: Instant) -> bool {
        let newest = self.arrivals.front();
        let is_recent =
            newest.is_some_and(|newest| now.saturating_duration_since(*newest) < FORGOTTEN_AFTER);
        self.waiting > 0 || is_recent
    }

    /// Returns the rate of gets up to now. The past tells nothing about a get that comes after a
    /// longer pause than any before it: it may be alone, and a wait would be for nothing.
    fn rate(&self, now: Instant) -> f64 {
        let Some(newest) = self.arrivals.front() else {
            return 0.0;
        };
        let pause = now.saturating_duration_since(*newest);
        let mut longest = SHORT_PAUSE;
        let mut rate: f64 = 0.0;
        let pairs = self.arrivals.iter().zip(self.arrivals.iter().skip(1));
        for (index, (later, earlier)) in pairs.enumerate() {
            longest = longest.max(later.saturating_duration_since(*earlier));
            let count = index + 2;
            if SCALES.contains(&count) && pause <= UNUSUAL * longest {
                let time = now.saturating_duration_since(*earlier).as_secs_f64();
                rate = rate.max(count as f64 / time);
            }
        }
        rate
    }
}

impl Drop for WaitingGet<'_> {
    fn drop(&mut self) {
        if let Some(crowd) = self.crowds.0.lock().get_mut(self.gvr) {
            crowd.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Lets gets arrive at these times after a moment. Returns the rate that each one meets.
    fn rates(times: impl IntoIterator<Item = Duration>) -> Vec<f64> {
        let start = Instant::now();
        let mut crowd = GetCrowd::default();
        let rates = times.into_iter().map(|time| crowd.arrived(start + time));
        rates.collect()
    }

    #[test]
    fn a_steady_stream_has_its_rate_and_few_gets_have_none() {
        let steady = rates((0..250).map(|number| number * 2 * MILLI));
        assert!(steady[..8].iter().all(|rate| *rate < MANY_GETS));
        let later = &steady[32..];
        assert!(later.iter().all(|rate| (450.0..=550.0).contains(rate)));
        let slow = rates((0..250).map(|number| number * 10 * MILLI));
        assert!(slow.iter().all(|rate| *rate < MANY_GETS));
    }

    #[test]
    fn a_burst_is_known_after_its_first_gets() {
        let burst = rates((0..100).map(|number| number * MILLI / 10));
        assert!(burst[..8].iter().all(|rate| *rate < MANY_GETS));
        assert!(burst[8..].iter().all(|rate| *rate > 2000.0));
    }

    #[test]
    fn a_lone_get_after_a_crowd_expects_nobody() {
        for pause in [3, 10, 100, 400, 900, 5000] {
            let burst = (0..100).map(|number| number * MILLI / 10);
            let alone = rates(burst.chain([10 * MILLI + pause * MILLI]));
            assert_eq!(alone.last(), Some(&0.0), "{pause} ms after a burst");
        }
        for pause in [6, 20, 300] {
            let steady = (0..100).map(|number| number * 2 * MILLI);
            let alone = rates(steady.chain([200 * MILLI + pause * MILLI]));
            assert_eq!(alone.last(), Some(&0.0), "{pause} ms after a stream");
        }
    }

    #[test]
    fn small_bursts_that_follow_each_other_are_one_crowd() {
        let bursts = (0..5).flat_map(|burst| {
            let gets = 0..20;
            gets.map(move |number| burst * 40 * MILLI + number * MILLI / 10)
        });
        let rates = rates(bursts);
        for first in [40, 60, 80] {
            assert!(rates[first] >= MANY_GETS, "{first}: {}", rates[first]);
        }
    }

    #[test]
    fn a_get_joins_others_that_wait() {
        let crowds = GetCrowds::default();
        let pods = GroupVersionResource::new("", "v1", "pods");
        let first = crowds.arrived(&pods, Instant::now());
        assert!(!first.is_in_a_crowd());
        let waiting = first.wait();
        assert!(crowds.arrived(&pods, Instant::now()).is_in_a_crowd());
        drop(waiting);
        assert!(!crowds.arrived(&pods, Instant::now()).is_in_a_crowd());
    }

    #[test]
    fn types_without_gets_are_forgotten_unless_one_waits() {
        let crowds = GetCrowds::default();
        let start = Instant::now();
        let pods = GroupVersionResource::new("", "v1", "pods");
        let types: Vec<_> = (0..100)
            .map(|number| GroupVersionResource::new("example.com", "v1", &format!("type{number}s")))
            .collect();
        let arrive = |gvr, minutes| crowds.arrived(gvr, start + Duration::from_mins(minutes));
        let waiting = arrive(&types[0], 0).wait();
        for gvr in &types[1..] {
            arrive(gvr, 0);
        }
        assert_eq!(crowds.0.lock().len(), 100);
        arrive(&pods, 2);
        assert_eq!(crowds.0.lock().len(), 2);
        drop(waiting);
        arrive(&types[1], 4);
        assert_eq!(crowds.0.lock().len(), 1);
    }

    #[test]
    fn a_get_whose_type_was_forgotten_may_wait_all_the_same() {
        let crowds = GetCrowds::default();
        let start = Instant::now();
        let types = ["pods", "nodes"].map(|name| GroupVersionResource::new("", "v1", name));
        let first = crowds.arrived(&types[0], start);
        crowds.arrived(&types[1], start + Duration::from_mins(2));
        let waiting = first.wait();
        let second = crowds.arrived(&types[0], start + Duration::from_mins(2));
        assert!(second.is_in_a_crowd());
        drop((waiting, second.wait()));
        assert_eq!(crowds.0.lock()[&types[0]].waiting, 0);
    }
}
