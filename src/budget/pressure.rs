//! The steps that are taken one after the other as memory runs short.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Memory that was freed leaves the process within this time: the allocator gives pages back after
/// ten seconds.
const SETTLE: Duration = Duration::from_secs(12);
/// A step ends once usage is so many percent of the limit below its beginning.
const HYSTERESIS: usize = 5;
/// Small scopes that are closed within this time are judged together. Other memory changes meanwhile.
const TOGETHER: Duration = Duration::from_mins(1);
/// Scopes are not closed for resident memory for this long after closings did not make it less.
const FUTILE: Duration = Duration::from_mins(5);

/// Divisor of the limit: closing half a percent of it shows in the resident memory.
const WORTH_CLOSING: usize = 200;

/// Returns the bytes above which closing a scope helps.
pub const fn worth_closing(limit: usize) -> usize {
    limit / WORTH_CLOSING
}

/// A step against a shortage of memory. Each one includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureStep {
    /// Memory suffices.
    #[default]
    Relaxed,
    /// Compressed forms that nobody used recently are released.
    ReleaseDerived,
    /// History that upstream does not promise either is released. Of quiet types that is all.
    ReleaseHistory,
    /// Scopes that nobody uses are closed, the least recently used first.
    CloseIdle,
    /// No new scopes are opened: their requests are forwarded.
    RefuseScopes,
    /// Scopes are closed although they are used, the largest first.
    CloseLargest,
    /// Requests for very large answers are refused.
    RefuseAnswers,
}

impl PressureStep {
    /// All steps, in their order.
    pub const ALL: [Self; 7] = [
        Self::Relaxed,
        Self::ReleaseDerived,
        Self::ReleaseHistory,
        Self::CloseIdle,
        Self::RefuseScopes,
        Self::CloseLargest,
        Self::RefuseAnswers,
    ];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::ReleaseDerived => "release-derived",
            Self::ReleaseHistory => "release-history",
            Self::CloseIdle => "close-idle",
            Self::RefuseScopes => "refuse-scopes",
            Self::CloseLargest => "close-largest",
            Self::RefuseAnswers => "refuse-answers",
        }
    }

    /// Returns the usage at which the step begins, in percent of the limit.
    pub const fn begins_at(self) -> usize {
        match self {
            Self::Relaxed => 0,
            Self::ReleaseDerived => 70,
            Self::ReleaseHistory => 75,
            Self::CloseIdle => 80,
            Self::RefuseScopes => 85,
            Self::CloseLargest => 90,
            Self::RefuseAnswers => 95,
        }
    }

    /// Returns the last step that has begun when a usage of `percent` is reached.
    fn begun_at(percent: usize) -> Self {
        Self::ALL
            .into_iter()
            .rfind(|step| step.begins_at() <= percent)
            .unwrap_or_default()
    }
}

/// The memory of the process at one moment, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUsage {
    /// The limit.
    pub limit: usize,
    /// The memory that is counted.
    pub counted: usize,
    /// The resident memory.
    pub resident: usize,
}

/// Finds the step from what is used and what was released a moment ago.
#[derive(Debug, Default)]
pub struct PressureGauge {
    step: PressureStep,
    /// Closed scopes that are too small to be judged one by one.
    small: Option<ClosedScopes>,
    /// Releases that resident memory may not show yet.
    released: VecDeque<FreedMemory>,
    /// Closing scopes does not make resident memory less, as far as is known until then.
    futile_until: Option<Instant>,
}

/// Memory that was freed a moment ago.
#[derive(Clone, Copy, Debug)]
struct FreedMemory {
    at: Instant,
    bytes: usize,
    /// Scopes that were closed, if it is time to judge what that brought.
    closed: Option<ClosedScopes>,
}

/// Scopes that were closed to make the process smaller.
#[derive(Clone, Copy, Debug)]
struct ClosedScopes {
    /// The first closure.
    since: Instant,
    bytes: usize,
    /// Resident bytes that were not counted before the first closure.
    uncounted: usize,
}

impl PressureGauge {
    /// Returns the step for this usage. It goes up at once, and down with a delay of some percent.
    ///
    /// Released bytes are taken off the resident memory for a while. Else one release would look
    /// like none, and the next step would begin for nothing.
    pub fn observe(
        &mut self,
        now: Instant,
        limit: usize,
        counted: usize,
        resident: usize,
    ) -> PressureStep {
        let is_settled =
            |release: &FreedMemory| now.saturating_duration_since(release.at) >= SETTLE;
        while let Some(settled) = self.released.pop_front_if(|first| is_settled(first)) {
            let uncounted = resident.saturating_sub(counted + self.on_its_way());
            let stays = |closed: ClosedScopes| {
                uncounted.saturating_sub(closed.uncounted) > closed.bytes / 2
            };
            if settled.closed.is_some_and(stays) {
                self.futile_until = Some(now + FUTILE);
            }
        }
        let on_its_way = self.on_its_way();
        let used = counted.max(resident.saturating_sub(on_its_way));
        let percent = used.saturating_mul(100) / limit.max(1);
        let up = PressureStep::begun_at(percent);
        let down = PressureStep::begun_at(percent.saturating_add(HYSTERESIS));
        self.step = up.max(self.step.min(down));
        self.step
    }

    /// Records that so many bytes were freed.
    pub fn released(&mut self, now: Instant, bytes: usize) {
        self.record(now, bytes, None);
    }

    /// Records that scopes of so many bytes are closed, with the usage before. Whether that made the
    /// resident memory less is judged once enough was closed: it changes by some kilobytes by itself.
    pub fn closed(&mut self, now: Instant, bytes: usize, usage: MemoryUsage) {
        let is_recent =
            |closed: &ClosedScopes| now.saturating_duration_since(closed.since) < TOGETHER;
        let mut closed = self.small.take().filter(is_recent).unwrap_or(ClosedScopes {
            since: now,
            bytes: 0,
            uncounted: usage.resident.saturating_sub(usage.counted),
        });
        closed.bytes += bytes;
        let is_judged = closed.bytes > worth_closing(usage.limit);
        if !is_judged {
            self.small = Some(closed);
        }
        self.record(now, bytes, is_judged.then_some(closed));
    }

    /// Returns `true` if scopes may be closed: what is counted demands it, or resident memory that
    /// became less when scopes were closed before.
    ///
    /// Else memory that nobody counts, or that the allocator keeps, would have every scope closed.
    pub fn may_close(&self, now: Instant, limit: usize, counted: usize) -> bool {
        let percent = counted.saturating_mul(100) / limit.max(1);
        PressureStep::begun_at(percent) >= PressureStep::CloseIdle || !self.is_futile(now)
    }

    /// Returns `true` if closing scopes did not make resident memory less recently.
    pub fn is_futile(&self, now: Instant) -> bool {
        self.futile_until.is_some_and(|until| now < until)
    }

    fn record(&mut self, at: Instant, bytes: usize, closed: Option<ClosedScopes>) {
        if bytes > 0 {
            self.released.push_back(FreedMemory { at, bytes, closed });
        }
    }

    fn on_its_way(&self) -> usize {
        self.released.iter().map(|release| release.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use PressureStep::{
        CloseIdle, CloseLargest, RefuseAnswers, RefuseScopes, Relaxed, ReleaseDerived,
        ReleaseHistory,
    };

    #[test]
    fn steps_begin_in_order_and_end_some_percent_below() {
        let mut gauge = PressureGauge::default();
        let now = Instant::now();
        for (used, step) in [
            (69, Relaxed),
            (70, ReleaseDerived),
            (75, ReleaseHistory),
            (80, CloseIdle),
            (76, CloseIdle),
            (74, ReleaseHistory),
            (85, RefuseScopes),
            (93, CloseLargest),
            (96, RefuseAnswers),
            (90, RefuseAnswers),
            (89, CloseLargest),
            (64, Relaxed),
        ] {
            assert_eq!(gauge.observe(now, 100, 0, used), step, "{used}");
        }
        assert_eq!(gauge.observe(now, 100, 91, 10), CloseLargest, "the larger");
    }

    #[test]
    fn a_release_counts_before_resident_memory_shows_it() {
        let mut gauge = PressureGauge::default();
        let now = Instant::now();
        assert_eq!(gauge.observe(now, 100, 0, 92), CloseLargest);
        gauge.released(now, 30);
        assert_eq!(gauge.observe(now, 100, 0, 92), Relaxed);
        assert_eq!(
            gauge.observe(now + SETTLE, 100, 0, 92),
            CloseLargest,
            "it has not left the process"
        );
    }

    fn usage(counted: usize, resident: usize) -> MemoryUsage {
        MemoryUsage {
            limit: 1000,
            counted,
            resident,
        }
    }

    #[test]
    fn scopes_are_not_closed_for_resident_memory_that_closing_does_not_free() {
        let mut gauge = PressureGauge::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        gauge.observe(start, 1000, 400, 920);
        assert!(gauge.may_close(start, 1000, 400));
        // Two are closed, and all of their memory stays with the process.
        gauge.closed(start, 50, usage(400, 920));
        gauge.closed(at(1), 50, usage(350, 920));
        assert_eq!(gauge.observe(at(13), 1000, 300, 920), CloseLargest);
        assert!(!gauge.may_close(at(13), 1000, 300));
        assert!(
            gauge.may_close(at(14), 1000, 800),
            "counted memory is freed"
        );
        assert!(gauge.may_close(at(13) + FUTILE, 1000, 300), "once more");

        // Others are closed later, and their memory leaves.
        let mut gauge = PressureGauge::default();
        gauge.closed(start, 50, usage(400, 920));
        gauge.closed(at(5), 50, usage(350, 890));
        gauge.observe(at(12), 1000, 300, 850);
        gauge.observe(at(17), 1000, 300, 825);
        assert!(gauge.may_close(at(17), 1000, 300));

        // A tiny one is closed, and nothing shows it. Many are as much as a large one.
        let mut gauge = PressureGauge::default();
        gauge.closed(start, 3, usage(400, 920));
        gauge.observe(at(12), 1000, 397, 920);
        assert!(gauge.may_close(at(12), 1000, 397));
        gauge.closed(at(13), 3, usage(397, 920));
        gauge.observe(at(25), 1000, 394, 920);
        assert!(!gauge.may_close(at(25), 1000, 394));

        // What was closed long ago shows nothing: other memory has grown.
        let mut gauge = PressureGauge::default();
        gauge.closed(start, 3, usage(400, 900));
        gauge.closed(at(3600), 3, usage(400, 920));
        gauge.observe(at(3612), 1000, 397, 917);
        assert!(gauge.may_close(at(3612), 1000, 397));
    }

    proptest! {
        #[test]
        fn the_step_is_within_the_hysteresis_of_the_usage(
            usages in prop::collection::vec(0..120_usize, 1..50),
        ) {
            let mut gauge = PressureGauge::default();
            let now = Instant::now();
            for used in usages {
                let step = gauge.observe(now, 100, 0, used);
                prop_assert!(step >= PressureStep::begun_at(used));
                prop_assert!(step <= PressureStep::begun_at(used + HYSTERESIS));
            }
        }
    }
}
