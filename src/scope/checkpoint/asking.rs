//! The moments at which other replicas are worth a question.

use std::time::Duration;

use tokio::time::Instant;

/// Time after the start in which replicas are asked. A replica that has run for longer would ask
/// for what hardly anybody reads.
const ASKING_PERIOD: Duration = Duration::from_mins(5);
/// Time for which replicas that could not be reached are not asked again. All scopes ask at the
/// start.
const REST: Duration = Duration::from_secs(10);
/// Refusals one after another that are probably meant for all types.
const REFUSALS: u32 = 3;
/// Time for which replicas that refuse are not asked again.
const REFUSED_REST: Duration = Duration::from_mins(1);

/// Knows whether other replicas are asked at the moment.
#[derive(Debug)]
pub(super) struct AskingTimes {
    began: Instant,
    rests_until: Instant,
    /// Refusals since a replica gave a state.
    refusals: u32,
}

impl AskingTimes {
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            began: now,
            rests_until: now,
            refusals: 0,
        }
    }

    /// Returns `true` if replicas are asked at this moment.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        now >= self.rests_until && now < self.began + ASKING_PERIOD
    }

    /// Notes that a replica gave a state.
    pub(super) fn given(&mut self) {
        self.refusals = 0;
    }

    /// Notes that no replica could be reached.
    pub(super) fn unreachable(&mut self, now: Instant) {
        self.rests_until = self.rests_until.max(now + REST);
    }

    /// Notes that a replica refused to give a state.
    pub(super) fn refused(&mut self, now: Instant) {
        self.refusals += 1;
        if self.refusals >= REFUSALS {
            self.rests_until = self.rests_until.max(now + REFUSED_REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn replicas_are_asked_at_the_start_alone() {
        let now = Instant::now();
        let times = AskingTimes::begin(now);
        assert!(times.may_ask(now));
        assert!(times.may_ask(now + ASKING_PERIOD - SECOND));
        assert!(!times.may_ask(now + ASKING_PERIOD));
    }

    #[test]
    fn replicas_that_cannot_be_reached_rest() {
        let now = Instant::now();
        let mut times = AskingTimes::begin(now);
        times.unreachable(now);
        assert!(!times.may_ask(now + REST - SECOND));
        assert!(times.may_ask(now + REST));
    }

    #[test]
    fn replicas_that_refuse_again_and_again_rest() {
        let now = Instant::now();
        let mut times = AskingTimes::begin(now);
        for _ in 1..REFUSALS {
            times.refused(now);
        }
        assert!(times.may_ask(now));
        times.given();
        times.refused(now);
        assert!(times.may_ask(now));
        for _ in 1..REFUSALS {
            times.refused(now);
        }
        assert!(!times.may_ask(now + REFUSED_REST - SECOND));
        assert!(times.may_ask(now + REFUSED_REST));
    }
}
