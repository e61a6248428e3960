//! Questions to the followed server beside its watch.
use super::release::{LearnedRelease, ReleaseLearner};
use super::streaming::StreamingLearner;
use crate::upstream::{InitialEventsAnswer, Release};

/// Learns what the followed server's changes do not show.
pub(super) struct FollowedServer {
    pub(super) release: ReleaseLearner,
    pub(super) streaming: StreamingLearner,
    /// Its release, once it has answered.
    known_release: Option<Release>,
    /// An event that is known came again in other bytes. The release tells why.
    is_rewritten: bool,
}

/// An answer of the followed server.
pub(super) enum ServerAnswer {
    InitialEvents(InitialEventsAnswer),
    Release(LearnedRelease),
}

impl FollowedServer {
    /// Prepares to ask servers, none of which is followed yet.
    pub(super) fn new(release: ReleaseLearner, streaming: StreamingLearner) -> Self {
        Self {
            release,
            streaming,
            known_release: None,
            is_rewritten: false,
        }
    }

    /// Returns the next answer. Cancelling a call loses nothing.
    pub(super) async fn answer(&mut self) -> ServerAnswer {
        tokio::select! {
            answer = self.streaming.learned() => ServerAnswer::InitialEvents(answer),
            learned = self.release.learned() => ServerAnswer::Release(learned),
        }
    }

    /// Gives up the questions under way. They are asked anew after a list.
    pub(super) fn cancel(&mut self) {
        self.release.cancel();
        self.streaming.cancel();
    }

    /// Asks no longer, as the changes are derived now. The source learns what there is to know.
    pub(super) fn leave_to_source(&mut self) {
        self.release.record_list(None);
        self.streaming.record_list(true);
        self.is_rewritten = false;
    }

    /// Notes that a known event came in other bytes. Returns `false` if the server is not being
    /// asked for the reason.
    pub(super) fn defer_rewriting(&mut self) -> bool {
        let is_learning = self.release.is_learning();
        self.is_rewritten |= is_learning;
        is_learning
    }

    /// Returns `true` if a known event came in other bytes, which is explained with this.
    pub(super) fn end_rewriting(&mut self) -> bool {
        std::mem::take(&mut self.is_rewritten)
    }

    /// Records the release of the server. Returns `true` if it is another one than was known.
    pub(super) fn record_release(&mut self, release: Option<Release>) -> bool {
        let before = std::mem::replace(&mut self.known_release, release);
        before.is_some() && before != self.known_release
    }
}
