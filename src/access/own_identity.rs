//! The proxy's own identity, for callers that act as the proxy.
//!
//! No request waits long for it: it is asked for beside the requests, the last one counts while
//! upstream cannot be asked, and after a failure there is a pause.
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::error::ReviewError;
use super::identity::Identity;
use super::own::OwnRights;
use crate::log_throttle::LogThrottle;
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;

/// Time after which upstream is asked again. Meanwhile the answer from before counts.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Time for which an answer counts, as grants do while upstream cannot be asked.
const COUNTS_FOR: Duration = Duration::from_mins(5);
/// Pause after a question that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest wait of a request for the first answer.
const PATIENCE: Duration = Duration::from_secs(1);

static FAILURES: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// The proxy's own identity.
pub(super) struct OwnIdentity {
    shared: Arc<Shared>,
}

struct Shared {
    rights: OwnRights,
    timeline: Timeline,
    state: Mutex<OwnState>,
    answered: Notify,
}

/// What upstream told about the proxy.
#[derive(Debug, Default)]
struct OwnState {
    /// The timeline of what follows: another cluster may know the proxy by another name.
    timeline: u64,
    /// The last answer, and the moment of its question.
    known: Option<(Arc<Identity>, Instant)>,
    failed: Option<Instant>,
    is_asking: bool,
}

/// What a request learns of the state.
#[derive(Debug, PartialEq, Eq)]
struct Inspection {
    answer: OwnAnswer,
    /// The caller is to ask upstream.
    asks: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum OwnAnswer {
    Known(Arc<Identity>),
    /// The first answer is under way.
    Awaited,
    Unknown,
}

impl OwnIdentity {
    pub(super) fn new(client: UpstreamClient, timeline: Timeline) -> Self {
        Self {
            shared: Arc::new(Shared {
                rights: OwnRights::new(client),
                timeline,
                state: Mutex::default(),
                answered: Notify::new(),
            }),
        }
    }

    /// Returns the identity, or `None` if upstream does not tell it.
    pub(super) async fn identity(&self) -> Option<Arc<Identity>> {
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
                OwnAnswer::Awaited => timeout_at(until, answered).await.ok()?,
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
        let is_due = |(_, asked): &(_, Instant)| age(*asked) >= ASK_AGAIN;
        let is_pausing = self.failed.is_some_and(|failed| age(failed) < PAUSE);
        let asks = !self.is_asking && !is_pausing && self.known.as_ref().is_none_or(is_due);
        self.is_asking |= asks;
        let known = self
            .known
            .as_ref()
            .filter(|(_, asked)| age(*asked) < COUNTS_FOR);
        let answer = match known {
            Some((identity, _)) => OwnAnswer::Known(Arc::clone(identity)),
            None if self.is_asking && !is_pausing => OwnAnswer::Awaited,
            None => OwnAnswer::Unknown,
        };
        Inspection { answer, asks }
    }

    /// Notes the answer to a question that was asked at a moment of a timeline.
    fn answered(&mut self, answer: Option<Arc<Identity>>, timeline: u64, asked: Instant) {
        match answer {
            _ if self.timeline != timeline => {}
            Some(identity) => {
                self.known = Some((identity, asked));
                self.failed = None;
            }
            None => self.failed = Some(Instant::now()),
        }
    }
}

/// Ends a question, also if its task panics.
struct IdentityQuestion(Arc<Shared>);

impl Drop for IdentityQuestion {
    fn drop(&mut self) {
        self.0.state.lock().is_asking = false;
        self.0.answered.notify_waiters();
    }
}

/// Asks upstream, and notes its answer.
async fn ask(shared: Arc<Shared>) {
    let question = IdentityQuestion(shared);
    let shared = &question.0;
    let (timeline, asked) = (shared.timeline.number(), Instant::now());
    let answer = shared.rights.identity().await;
    if let Err(error) = &answer {
        report(error);
    }
    let answer = answer.ok().map(Arc::new);
    shared.state.lock().answered(answer, timeline, asked);
}

fn report(error: &ReviewError) {
    if let Some(questions) = FAILURES.count(1) {
        tracing::warn!(%error, questions, "cannot determine the proxy's own identity");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(identity: &Arc<Identity>, asks: bool) -> Inspection {
        Inspection {
            answer: OwnAnswer::Known(Arc::clone(identity)),
            asks,
        }
    }

    fn without(answer: OwnAnswer, asks: bool) -> Inspection {
        Inspection { answer, asks }
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_counts_while_upstream_cannot_be_asked_for_minutes() {
        let (mut state, start) = (OwnState::default(), Instant::now());
        let me = Arc::new(Identity::anonymous());
        assert_eq!(state.look(1, start), without(OwnAnswer::Awaited, true));
        assert_eq!(state.look(1, start), without(OwnAnswer::Awaited, false));
        state.is_asking = false;
        state.answered(Some(Arc::clone(&me)), 1, start);
        assert_eq!(state.look(1, start), known(&me, false));
        assert_eq!(state.look(1, start + ASK_AGAIN), known(&me, true));
        state.is_asking = false;
        state.answered(None, 1, start + ASK_AGAIN);
        tokio::time::advance(ASK_AGAIN).await;
        state.failed = Some(Instant::now());
        assert_eq!(state.look(1, Instant::now()), known(&me, false));
        assert_eq!(state.look(1, Instant::now() + PAUSE), known(&me, true));
        let later = start + COUNTS_FOR;
        assert_eq!(state.look(1, later), without(OwnAnswer::Awaited, false));
    }

    #[test]
    fn no_request_waits_in_the_pause_after_a_failure() {
        let (mut state, start) = (OwnState::default(), Instant::now());
        assert!(state.look(1, start).asks);
        state.is_asking = false;
        state.answered(None, 1, start);
        let failed = state.failed.unwrap();
        assert_eq!(state.look(1, failed), without(OwnAnswer::Unknown, false));
        let next = state.look(1, failed + PAUSE);
        assert_eq!(next, without(OwnAnswer::Awaited, true));
    }

    #[test]
    fn an_answer_of_another_timeline_does_not_count() {
        let (mut state, start) = (OwnState::default(), Instant::now());
        let me = Arc::new(Identity::anonymous());
        assert!(state.look(1, start).asks);
        assert_eq!(state.look(2, start), without(OwnAnswer::Awaited, false));
        state.is_asking = false;
        state.answered(Some(Arc::clone(&me)), 1, start);
        assert!(state.look(2, start).asks);
        state.is_asking = false;
        state.answered(Some(Arc::clone(&me)), 2, start);
        assert_eq!(state.look(2, start), known(&me, false));
        assert_eq!(state.look(3, start).answer, OwnAnswer::Awaited);
    }
}
