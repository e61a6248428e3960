//! Learns whether upstream streams initial events, for scopes whose list was not streamed.
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use tokio::time::{Instant, sleep_until};

use crate::upstream::{AnswerError, InitialEventsAnswer, InitialEventsProbe, ServedBy};

/// First and longest pause between questions. A release that does not stream is asked seldom: when
/// upstream is upgraded, the scope's watch breaks, and the next question is soon.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Asks upstream until it streams initial events.
///
/// A list that was not streamed says little: upstream may have been silent for a moment, or be an
/// older server that is about to be upgraded.
pub(super) struct StreamingLearner {
    probe: InitialEventsProbe,
    /// Upstream streams, as far as is known.
    streams: bool,
    state: LearnerState,
}

enum LearnerState {
    /// Nothing is to be learned: upstream streams, or nothing is listed yet.
    Settled,
    /// The next question is due at this moment.
    Waiting { until: Instant, pause: Duration },
    /// A question is under way.
    Asking {
        answer: BoxFuture<'static, Result<InitialEventsAnswer, AnswerError>>,
        pause: Duration,
    },
}

impl LearnerState {
    fn wait(pause: Duration) -> Self {
        let jitter = 0.5 + fastrand::f64() / 2.0;
        Self::Waiting {
            until: Instant::now() + pause.mul_f64(jitter),
            pause,
        }
    }
}

impl StreamingLearner {
    pub(super) fn new(probe: InitialEventsProbe) -> Self {
        Self {
            probe,
            streams: false,
            state: LearnerState::Settled,
        }
    }

    /// Notes that upstream streamed a list, or did not.
    pub(super) fn listed(&mut self, streamed: bool) {
        self.streams = streamed;
        self.state = if streamed {
            LearnerState::Settled
        } else {
            LearnerState::wait(PAUSES.0)
        };
    }

    /// Notes that a connection to upstream is new: another server may be at its end.
    pub(super) fn reconnected(&mut self) {
        if matches!(self.state, LearnerState::Waiting { .. }) {
            self.state = LearnerState::wait(PAUSES.0);
        }
    }

    /// Notes the server to ask.
    pub(super) fn follow(&mut self, server: &ServedBy) {
        self.probe = self.probe.beside(server);
    }

    /// Gives up a question under way. It is asked again later.
    pub(super) fn cancel(&mut self) {
        if let LearnerState::Asking { pause, .. } = self.state {
            self.state = LearnerState::wait(pause);
        }
    }

    /// Asks at once, as the server is of another release.
    pub(super) fn ask_again(&mut self) {
        self.state = LearnerState::Waiting {
            until: Instant::now(),
            pause: PAUSES.0,
        };
    }

    /// Returns the answer, once upstream streams initial events, or does so no longer. Cancelling a
    /// call loses nothing.
    pub(super) async fn learned(&mut self) -> InitialEventsAnswer {
        loop {
            match &mut self.state {
                LearnerState::Settled => pending().await,
                LearnerState::Waiting { until, pause } => {
                    sleep_until(*until).await;
                    self.state = LearnerState::Asking {
                        answer: self.probe.clone().ask().boxed(),
                        pause: *pause,
                    };
                }
                LearnerState::Asking { answer, pause } => {
                    let (answer, pause) = (answer.await, *pause);
                    match answer {
                        Ok(answer @ InitialEventsAnswer::Streamed(_)) => {
                            self.streams = true;
                            self.state = LearnerState::Settled;
                            return answer;
                        }
                        Ok(answer @ InitialEventsAnswer::NotStreamed) if self.streams => {
                            self.streams = false;
                            self.state = LearnerState::wait(pause);
                            return answer;
                        }
                        Ok(InitialEventsAnswer::NotStreamed) => {}
                        Err(error) => {
                            tracing::debug!(%error, "cannot learn if upstream streams lists");
                        }
                    }
                    self.state = LearnerState::wait((pause * 2).min(PAUSES.1));
                }
            }
        }
    }
}
