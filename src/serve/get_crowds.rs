//! The rate at which consistent gets of each type come.
use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use watershed_protocol::GroupVersionResource;

/// Period in which gets are counted.
const PERIOD: Duration = Duration::from_millis(100);

/// Counts consistent gets by type. Only types of the catalog are counted, so there are few.
#[derive(Debug, Default)]
pub(super) struct GetCrowds(Mutex<HashMap<GroupVersionResource, GetCrowd>>);

/// The gets of one type.
#[derive(Clone, Copy, Debug)]
struct GetCrowd {
    began: Instant,
    /// Gets since then.
    now: u32,
    /// Gets in the period before.
    before: u32,
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
            before: 0,
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
        let elapsed = now.saturating_duration_since(self.began);
        if elapsed >= PERIOD {
            let follows = elapsed < 2 * PERIOD;
            *self = Self {
                began: now,
                now: 0,
                before: if follows { self.now } else { 0 },
                waiting: self.waiting,
            };
        }
        self.now += 1;
        // A burst counts at once, and a period that has just begun does not end it. Clients that
        // wait for a proof longer than a period come back at once.
        let gets = self.now.max(self.before).max(self.waiting);
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
            before: 0,
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
