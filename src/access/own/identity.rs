//! The proxy's own identity, for callers that act as the proxy.
//!
//! No request waits long for it: it is asked for beside the requests, the last one counts while
//! upstream cannot be asked, and after a failure there is a pause.
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::access::error::ReviewError;
use crate::access::identity::Identity;
use crate::access::own::rights::OwnRights;
use crate::log_throttle::LogThrottle;
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;

/// Time for which an answer counts in any case.
const FRESH_FOR: Duration = Duration::from_mins(1);
/// Time for which an answer counts while upstream cannot be asked, as grants do.
const COUNTS_FOR: Duration = Duration::from_mins(5);
/// Pause after a question that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest wait of a request for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

static FAILURES: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// The proxy's own identity.
pub(in crate::access) struct OwnIdentity {
    shared: Arc<SharedIdentity>,
}

struct SharedIdentity {
    rights: OwnRights,
    timeline: Timeline,
    state: Mutex<OwnState>,
    answered: Notify,
}

/// Upstream's answers about the proxy.
#[derive(Debug, Default)]
struct OwnState {
    /// The timeline of what follows: another cluster may know the proxy by another name.
    timeline: u64,
    /// The last answer, and the moment of its question.
    known: Option<(Arc<Identity>, Instant)>,
    failed: Option<Instant>,
    is_asking: bool,
}

/// The part of the state that a request needs.
#[derive(Debug, PartialEq, Eq)]
struct Inspection {
    answer: OwnAnswer,
    /// The caller is to ask upstream.
    asks: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum OwnAnswer {
    Known(Arc<Identity>),
    /// An answer is under way. If it is late, the one before counts.
    Awaited(Option<Arc<Identity>>),
    Unknown,
}

impl OwnIdentity {
    pub(in crate::access) fn new(client: UpstreamClient, timeline: Timeline) -> Self {
        Self {
            shared: Arc::new(SharedIdentity {
                rights: OwnRights::new(client),
                timeline,
                state: Mutex::default(),
                answered: Notify::new(),
            }),
        }
    }

    /// Returns the identity, or `None` if upstream does not tell it.
    pub(in crate::access) async fn identity(&self) -> Option<Arc<Identity>> {
        let until = Instant::now() + PATIENCE;
        loop {
            // It is told of an answer that comes after the look.
            let answered = self.shared.answered.notified();
            let look = self.look();
            if look.asks {
                tokio::spawn(ask(Arc::clone(&self.shared)));
            }
            match look.answer {
                OwnAnswer::Known(identity) => return Some(identity),
                OwnAnswer::Awaited(earlier) => {
                    if timeout_at(until, answered).await.is_err() {
                        return earlier;
                    }
                }
                OwnAnswer::Unknown => return None,
            }
        }
    }

    fn look(&self) -> Inspection {
        let timeline = self.shared.timeline.number();
        self.shared.state.lock().look(timeline, Instant::now())
    }
}

impl OwnState {
    fn look(&mut self, timeline: u64, now: Instant) -> Inspection {
        if self.timeline != timeline {
            *self = Self {
                timeline,
                is_asking: self.is_asking,
                ..Self::default()
            };
        }
        let age = |since: Instant| now.saturating_duration_since(since);
        let is_pausing = self.failed.is_some_and(|failed| age(failed) < PAUSE);
        let known = self.known.as_ref();
        let is_fresh = known.is_some_and(|(_, asked)| age(*asked) < FRESH_FOR);
        let asks = !self.is_asking && !is_pausing && !is_fresh;
        self.is_asking |= asks;
        let identity = known
            .filter(|(_, asked)| age(*asked) < COUNTS_FOR)
            .map(|(identity, _)| Arc::clone(identity));
        let answer = match identity {
            // While upstream cannot be asked, nobody waits for the next question to fail.
            Some(identity) if is_fresh || self.failed.is_some() => OwnAnswer::Known(identity),
            earlier if self.is_asking && !is_pausing => OwnAnswer::Awaited(earlier),
            _ => OwnAnswer::Unknown,
        };
        Inspection { answer, asks }
    }

    /// Notes the answer to a question that was asked at a moment of a timeline.
    fn answered(&mut self, answer: Result<Identity, ReviewError>, timeline: u64, asked: Instant) {
        match answer {
            _ if self.timeline != timeline => {}
            Ok(identity) => {
                self.known = Some((Arc::new(identity), asked));
                self.failed = None;
            }
            Err(error) => {
                self.failed = Some(Instant::now());
                if !error.is_unavailable() {
                    // Upstream does not know the proxy any more.
                    self.known = None;
                }
            }
        }
    }
}

/// Ends a question, also if its task panics.
struct IdentityQuestion(Arc<SharedIdentity>);

impl Drop for IdentityQuestion {
    fn drop(&mut self) {
        self.0.state.lock().is_asking = false;
        self.0.answered.notify_waiters();
    }
}

/// Asks upstream, and notes its answer.
async fn ask(shared: Arc<SharedIdentity>) {
    let question = IdentityQuestion(shared);
    let shared = &question.0;
    let (timeline, asked) = (shared.timeline.number(), Instant::now());
    let answer = shared.rights.identity().await;
    if let Err(error) = &answer {
        report(error);
    }
    shared.state.lock().answered(answer, timeline, asked);
}

fn report(error: &ReviewError) {
    if let Some(questions) = FAILURES.count(1) {
        tracing::warn!(%error, questions, "cannot determine the proxy's own identity");
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn answer(look: Inspection) -> (OwnAnswer, bool) {
        (look.answer, look.asks)
    }

    fn known() -> OwnAnswer {
        OwnAnswer::Known(Arc::new(Identity::anonymous()))
    }

    fn awaited() -> OwnAnswer {
        OwnAnswer::Awaited(Some(Arc::new(Identity::anonymous())))
    }

    /// A question that got this answer.
    fn tell(state: &mut OwnState, answer: Result<Identity, ReviewError>, timeline: u64) {
        state.is_asking = false;
        state.answered(answer, timeline, Instant::now());
    }

    fn unavailable() -> ReviewError {
        ReviewError::Late(PATIENCE)
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_counts_for_minutes_while_upstream_cannot_be_asked() {
        let mut state = OwnState::default();
        let look = |state: &mut OwnState| answer(state.look(1, Instant::now()));
        assert_eq!(look(&mut state), (OwnAnswer::Awaited(None), true));
        assert_eq!(look(&mut state), (OwnAnswer::Awaited(None), false));
        tell(&mut state, Ok(Identity::anonymous()), 1);
        assert_eq!(look(&mut state), (known(), false));
        tokio::time::advance(FRESH_FOR).await;
        assert_eq!(look(&mut state), (awaited(), true));
        tell(&mut state, Err(unavailable()), 1);
        assert_eq!(look(&mut state), (known(), false));
        tokio::time::advance(PAUSE).await;
        assert_eq!(look(&mut state), (known(), true), "nobody waits for it");
        tokio::time::advance(COUNTS_FOR).await;
        assert_eq!(look(&mut state), (OwnAnswer::Awaited(None), false));
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_that_upstream_refuses_does_not_count() {
        let mut state = OwnState::default();
        assert!(state.look(1, Instant::now()).asks);
        tell(&mut state, Ok(Identity::anonymous()), 1);
        tokio::time::advance(FRESH_FOR).await;
        assert!(state.look(1, Instant::now()).asks);
        tell(
            &mut state,
            Err(ReviewError::Refused(StatusCode::UNAUTHORIZED)),
            1,
        );
        let look = answer(state.look(1, Instant::now()));
        assert_eq!(look, (OwnAnswer::Unknown, false), "and nobody waits");
        tokio::time::advance(PAUSE).await;
        let look = answer(state.look(1, Instant::now()));
        assert_eq!(look, (OwnAnswer::Awaited(None), true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_of_another_timeline_does_not_count() {
        let mut state = OwnState::default();
        assert!(state.look(1, Instant::now()).asks);
        assert!(
            !state.look(2, Instant::now()).asks,
            "one question at a time"
        );
        tell(&mut state, Ok(Identity::anonymous()), 1);
        assert!(state.look(2, Instant::now()).asks);
        tell(&mut state, Ok(Identity::anonymous()), 2);
        assert_eq!(state.look(2, Instant::now()).answer, known());
        let other = state.look(3, Instant::now()).answer;
        assert_eq!(other, OwnAnswer::Awaited(None));
    }
}
