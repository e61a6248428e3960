//! The rate at which consistent gets of each type come.
use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use watershed_protocol::GroupVersionResource;

/// Period in which gets are counted.
const PERIOD: Duration = Duration::from_millis(100);
/// Time for which a crowd is expected to come again. Many clients poll by the second.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Counts consistent gets by type. Only types of the catalog are counted, so there are few.
#[derive(Debug, Default)]
pub(super) struct GetCrowds(Mutex<HashMap<GroupVersionResource, GetCrowd>>);

/// The gets of one type.
#[derive(Clone, Copy, Debug)]
struct GetCrowd {
    began: Instant,
    /// Gets since then.
    now: u32,
    /// Gets in the fullest of the remembered periods before.
    peak: u32,
    peak_began: Instant,
    /// Gets that wait for a proof.
    waiting: u32,
}

/// A get that waits for a proof, for as long as this lives.
#[derive(Debug)]
pub(super) struct WaitingGet<'a> {
    crowds: &'a GetCrowds,
    gvr: &'a GroupVersionResource,
}

impl GetCrowds {
    /// Counts a get that arrives at this time. Returns the number of gets of the type that come in
    /// a second.
    pub(super) fn arrived(&self, gvr: &GroupVersionResource, now: Instant) -> f64 {
        let mut crowds = self.0.lock();
        if let Some(crowd) = crowds.get_mut(gvr) {
            return crowd.arrived(now);
        }
        let mut crowd = GetCrowd {
            began: now,
            now: 0,
            peak: 0,
            peak_began: now,
            waiting: 0,
        };
        let rate = crowd.arrived(now);
        crowds.insert(gvr.clone(), crowd);
        rate
    }

    /// Notes that a get waits for a proof. Its type was counted before.
    pub(super) fn wait<'a>(&'a self, gvr: &'a GroupVersionResource) -> WaitingGet<'a> {
        if let Some(crowd) = self.0.lock().get_mut(gvr) {
            crowd.waiting += 1;
        }
        WaitingGet { crowds: self, gvr }
    }
}

impl GetCrowd {
    fn arrived(&mut self, now: Instant) -> f64 {
        let age = |moment: Instant| now.saturating_duration_since(moment);
        if age(self.began) >= PERIOD {
            if self.now >= self.peak || age(self.peak_began) > REMEMBERED {
                (self.peak, self.peak_began) = (self.now, self.began);
            }
            (self.began, self.now) = (now, 0);
        }
        let is_remembered = age(self.peak_began) <= REMEMBERED;
        let peak = if is_remembered { self.peak } else { 0 };
        self.now += 1;
        // A burst counts at once, and a period that has just begun does not end it. Clients that
        // wait for a proof longer than a period come back at once.
        let gets = self.now.max(peak).max(self.waiting);
        f64::from(gets) / PERIOD.as_secs_f64()
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

    #[test]
    fn a_steady_stream_a_burst_and_a_rest_are_told_apart() {
        let start = Instant::now();
        let mut crowd = GetCrowd {
            began: start,
            now: 0,
            peak: 0,
            peak_began: start,
            waiting: 0,
        };
        let mut rate = 0.0;
        for number in 1..=250 {
            rate = crowd.arrived(start + number * Duration::from_millis(2));
        }
        assert!((450.0..=550.0).contains(&rate), "{rate}");
        let rest = start + Duration::from_secs(5);
        assert!(crowd.arrived(rest) <= 10.0, "a lone get after a rest");
        for _ in 0..99 {
            rate = crowd.arrived(rest);
        }
        assert!(rate >= 1000.0, "a hundred at once: {rate}");
        let mut moment = rest;
        for _ in 0..5 {
            moment += Duration::from_millis(400);
            rate = crowd.arrived(moment);
            assert!(rate >= 1000.0, "the burst is expected again: {rate}");
            for _ in 0..99 {
                crowd.arrived(moment);
            }
        }
        let alone = crowd.arrived(moment + Duration::from_millis(1200));
        assert!(alone <= 10.0, "the bursts are over: {alone}");
    }

    #[test]
    fn gets_that_wait_for_a_proof_are_a_crowd() {
        let crowds = GetCrowds::default();
        let pods = GroupVersionResource::new("", "v1", "pods");
        crowds.arrived(&pods, Instant::now());
        let waiting: Vec<_> = (0..50).map(|_| crowds.wait(&pods)).collect();
        assert!(crowds.arrived(&pods, Instant::now()) >= 500.0);
        drop(waiting);
        assert!(crowds.arrived(&pods, Instant::now()) < 100.0);
    }
}
