//! Watches the memory of the process, and frees some when it runs short.
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use crate::budget::{
    MemoryBudget, MemoryCharge, MemoryClass, MemoryUsage, PressureGauge, PressureStep, metrics,
    worth_closing,
};
use crate::scope::Scopes;

/// Interval of measurements.
const INTERVAL: Duration = Duration::from_secs(1);
/// Measurements between two ticks of compressed forms: each tick visits all of them.
const AGE_FORMS_EVERY: u32 = 5;
/// Idle scopes that are closed at a time.
const MAX_CLOSINGS: usize = 16;
/// Measurements between two releases of frames that can be made again.
const RELEASE_FRAMES_EVERY: u32 = 2;

/// The task that keeps the process within its budget.
pub(super) struct PressureKeeper {
    budget: MemoryBudget,
    scopes: Scopes,
    gauge: PressureGauge,
    /// The bytes of compressed forms at the last tick.
    derived: MemoryCharge,
    /// The last release of frames. Measurements do not wait for it.
    releasing: Option<JoinHandle<()>>,
}

impl PressureKeeper {
    pub(super) fn new(scopes: Scopes) -> Self {
        let budget = scopes.budget().clone();
        Self {
            derived: budget.charge(MemoryClass::Derived, 0),
            budget,
            scopes,
            gauge: PressureGauge::default(),
            releasing: None,
        }
    }

    /// Measures and frees memory at every interval. Never returns.
    pub(super) async fn run(mut self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = 0_u32;
        loop {
            ticks.tick().await;
            if tick.is_multiple_of(AGE_FORMS_EVERY) {
                self.age_forms().await;
            }
            if tick.is_multiple_of(RELEASE_FRAMES_EVERY) {
                self.release_frames();
            }
            tick = tick.wrapping_add(1);
            let resident = self.budget.measure();
            if let Some(limit) = self.budget.limit() {
                self.keep(Instant::now(), limit, resident).await;
            }
        }
    }

    /// Begins to release frames, unless that is under way.
    fn release_frames(&mut self) {
        if self.releasing.as_ref().is_none_or(JoinHandle::is_finished) {
            let (scopes, now) = (self.scopes.clone(), Instant::now());
            self.releasing = Some(spawn_blocking(move || scopes.release_frames(now)));
        }
    }

    /// Takes the step that the usage demands, and those before it.
    async fn keep(&mut self, now: Instant, limit: usize, resident: usize) {
        let counted = self.budget.counted_total();
        let before = self.budget.step();
        let was_futile = self.gauge.is_futile(now);
        let step = self.gauge.observe(now, limit, counted, resident);
        self.budget.set_step(step);
        if step != before {
            report(before, step, limit, counted, resident);
        }
        if step >= PressureStep::ReleaseDerived {
            let scopes = self.scopes.clone();
            let release = move || (scopes.fold_cold(true), scopes.release_compressed());
            let (folded, released) = spawn_blocking(release).await.unwrap_or_default();
            self.freed(now, PressureStep::ReleaseDerived, folded + released);
            self.derived
                .set(self.derived.bytes().saturating_sub(released));
        }
        if step >= PressureStep::ReleaseHistory {
            let scopes = self.scopes.clone();
            let released = spawn_blocking(move || scopes.release_history(now)).await;
            self.freed(now, PressureStep::ReleaseHistory, released.unwrap_or(0));
        }
        if self.gauge.is_futile(now) && !was_futile {
            tracing::warn!(
                limit,
                counted,
                resident,
                "closing scopes did not reduce the process's memory; pausing such closures"
            );
        }
        // What was released just now does not count any more.
        let usage = MemoryUsage {
            limit,
            counted: self.budget.counted_total(),
            resident,
        };
        if self.gauge.may_close(now, limit, usage.counted) {
            self.close(step, now, usage);
        }
    }

    /// Closes a scope, if the step demands it and there is one. At the later step, room is made: idle scopes
    /// are closed until that helps, or else the largest.
    fn close(&mut self, step: PressureStep, now: Instant, usage: MemoryUsage) {
        let (idle, largest) = (PressureStep::CloseIdle, PressureStep::CloseLargest);
        let (mut freed, enough) = (0, worth_closing(usage.limit));
        let most = match step {
            _ if step >= largest => MAX_CLOSINGS,
            _ if step >= idle => 1,
            _ => 0,
        };
        for _ in 0..most {
            let Some(bytes) = self.scopes.close_idlest(now) else {
                break;
            };
            metrics::released(idle, bytes);
            freed += bytes;
            if freed > enough {
                break;
            }
        }
        if step >= largest
            && freed <= enough
            && let Some(bytes) = self.scopes.close_largest(now)
        {
            metrics::released(largest, bytes);
            freed += bytes;
        }
        if freed > 0 {
            self.gauge.closed(now, freed, usage);
        }
    }

    /// Counts what compressed forms take, and folds objects that are held twice and hardly read.
    async fn age_forms(&mut self) {
        let scopes = self.scopes.clone();
        let age = move || {
            scopes.fold_cold(false);
            scopes.age_compressed()
        };
        if let Ok(bytes) = spawn_blocking(age).await {
            self.derived.set(bytes);
        }
    }

    fn freed(&mut self, now: Instant, step: PressureStep, bytes: usize) {
        if bytes > 0 {
            self.gauge.released(now, bytes);
            metrics::released(step, bytes);
        }
    }
}

fn report(before: PressureStep, step: PressureStep, limit: usize, counted: usize, resident: usize) {
    let name = step.as_str();
    if step > before {
        tracing::warn!(
            step = name,
            limit,
            counted,
            resident,
            "memory is short (--memory-limit)"
        );
    } else {
        tracing::info!(
            step = name,
            limit,
            counted,
            resident,
            "memory pressure decreased"
        );
    }
}

#[cfg(test)]
mod tests;
