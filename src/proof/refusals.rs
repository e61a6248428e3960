//! Pauses after questions that upstream did not answer.
//!
//! An upstream that refuses is often overloaded, and each question that it refuses costs it
//! something. So readers are forwarded for a while without a question. The next question shows if
//! upstream answers again.
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backoff::{Backoff, PauseRange};
use crate::upstream::AnswerError;

/// Pauses between questions. Most refusals pass soon, and so does a connection that was cut.
const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(500), Duration::from_secs(30));

/// The questions of one scope that failed lately.
#[derive(Debug)]
pub(super) struct RefusedQuestions(Mutex<RefusalState>);

#[derive(Debug)]
struct RefusalState {
    pauses: Backoff,
    /// End of the last pause.
    until: Option<Instant>,
}

impl Default for RefusedQuestions {
    fn default() -> Self {
        Self(Mutex::new(RefusalState {
            pauses: PAUSES.backoff(),
            until: None,
        }))
    }
}

impl RefusedQuestions {
    /// Returns `true` if upstream should not be asked now.
    pub(super) fn is_pausing(&self) -> bool {
        let until = self.0.lock().until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes an answer. The pauses are over.
    pub(super) fn answered(&self) {
        let mut state = self.0.lock();
        state.pauses.reset();
        state.until = None;
    }

    /// Notes a failure, and begins a pause.
    pub(super) fn failed(&self, error: &AnswerError) {
        let now = Instant::now();
        let mut state = self.0.lock();
        // Questions that were under way together fail together, which is one failure.
        let pause = match state.until {
            Some(until) if now < until => until - now,
            _ => state.pauses.pause(),
        };
        state.until = Some(now + pause.max(error.retry_after()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    fn refused() -> AnswerError {
        AnswerError::Refused {
            status: StatusCode::TOO_MANY_REQUESTS,
            retry_after: None,
        }
    }

    /// Waits until questions may be asked again. Returns the time that took.
    async fn pause_of(refusals: &RefusedQuestions) -> Duration {
        let began = Instant::now();
        while refusals.is_pausing() {
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_upstream_answers() {
        let refusals = RefusedQuestions::default();
        assert!(!refusals.is_pausing());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            refusals.failed(&refused());
            pauses.push(pause_of(&refusals).await);
        }
        let step = Duration::from_millis(10);
        assert!(pauses[0] <= PAUSES.first + step, "{pauses:?}");
        assert!(pauses[11] >= PAUSES.longest / 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= PAUSES.longest + step));
        refusals.failed(&refused());
        refusals.answered();
        assert!(!refusals.is_pausing());
        refusals.failed(&refused());
        assert!(pause_of(&refusals).await <= PAUSES.first + step);
    }

    #[tokio::test(start_paused = true)]
    async fn upstream_can_ask_for_a_longer_pause() {
        let refusals = RefusedQuestions::default();
        let postponed = |retry_after| AnswerError::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            retry_after: Some(retry_after),
        };
        refusals.failed(&postponed(Duration::from_secs(7)));
        assert_eq!(pause_of(&refusals).await, Duration::from_secs(7));
        refusals.failed(&postponed(Duration::from_hours(5)));
        assert_eq!(pause_of(&refusals).await, Duration::from_mins(1));
    }

    #[tokio::test(start_paused = true)]
    async fn questions_that_fail_together_are_one_failure() {
        let refusals = RefusedQuestions::default();
        for _ in 0..100 {
            refusals.failed(&refused());
        }
        assert!(pause_of(&refusals).await <= PAUSES.first + Duration::from_millis(10));
    }
}
