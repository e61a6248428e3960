//! Learns whether upstream streams initial events, for scopes whose list was not streamed.
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use tokio::time::{Instant, sleep_until};

use crate::backoff::{Backoff, PauseRange};
use crate::upstream::{AnswerError, InitialEventsAnswer, InitialEventsProbe, ServedBy};

/// Pauses between questions. A release that does not stream is asked rarely: when upstream is
/// upgraded, the scope's watch breaks, and the next question is soon.
const PAUSES: PauseRange = PauseRange::new(Duration::from_secs(1), Duration::from_mins(5));

/// Asks upstream until it streams initial events.
///
/// A list that was not streamed says little: upstream may have been silent for a moment, or be an
/// older server that is about to be upgraded.
pub(super) struct StreamingLearner {
    probe: InitialEventsProbe,
    /// Upstream streams, as far as is known.
    streams: bool,
    pauses: Backoff,
    state: LearnerState,
}

enum LearnerState {
    /// Nothing is to be learned: upstream streams, or nothing is listed yet.
    Settled,
    /// The next question is due at this moment.
    Waiting { until: Instant },
    /// A question is under way.
    Asking(BoxFuture<'static, Result<InitialEventsAnswer, AnswerError>>),
}

impl StreamingLearner {
    pub(super) fn new(probe: InitialEventsProbe) -> Self {
        Self {
            probe,
            streams: false,
            pauses: PAUSES.backoff(),
            state: LearnerState::Settled,
        }
    }

    /// Notes that upstream streamed a list, or did not.
    pub(super) fn record_list(&mut self, streamed: bool) {
        self.streams = streamed;
        self.pauses.reset();
        if streamed {
            self.state = LearnerState::Settled;
        } else {
            self.wait();
        }
    }

    /// Notes that a connection to upstream is new: another server may be at its end.
    pub(super) fn record_reconnection(&mut self) {
        if matches!(self.state, LearnerState::Waiting { .. }) {
            self.pauses.reset();
            self.wait();
        }
    }

    /// Notes the server to ask.
    pub(super) fn follow(&mut self, server: &ServedBy) {
        self.probe = self.probe.beside(server);
    }

    /// Gives up a question under way. It is asked again later.
    pub(super) fn cancel(&mut self) {
        if matches!(self.state, LearnerState::Asking(_)) {
            self.wait();
        }
    }

    /// Asks at once, as the server is of another release.
    pub(super) fn ask_again(&mut self) {
        self.pauses.reset();
        self.state = LearnerState::Waiting {
            until: Instant::now(),
        };
    }

    fn wait(&mut self) {
        let until = Instant::now() + self.pauses.pause();
        self.state = LearnerState::Waiting { until };
    }

    /// Returns the answer, once upstream streams initial events, or does so no longer. Cancelling a
    /// call loses nothing.
    pub(super) async fn learned(&mut self) -> InitialEventsAnswer {
        loop {
            match &mut self.state {
                LearnerState::Settled => pending().await,
                LearnerState::Waiting { until } => {
                    sleep_until(*until).await;
                    self.state = LearnerState::Asking(self.probe.clone().ask().boxed());
                }
                LearnerState::Asking(answer) => {
                    let answer = answer.await;
                    match answer {
                        Ok(answer @ InitialEventsAnswer::Streamed(_)) => {
                            self.streams = true;
                            self.state = LearnerState::Settled;
                            return answer;
                        }
                        Ok(answer @ InitialEventsAnswer::NotStreamed) if self.streams => {
                            self.streams = false;
                            self.wait();
                            return answer;
                        }
                        Ok(InitialEventsAnswer::NotStreamed) => {}
                        Err(error) => {
                            tracing::debug!(%error, "cannot learn if upstream streams lists");
                        }
                    }
                    self.wait();
                }
            }
        }
    }
}
