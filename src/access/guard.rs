//! The grant of an open watch: asked about anew when it runs out or RBAC changes.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::authorize::{Authorizer, Decision, Judged, Verdict};
use super::changes::Ear;
use super::review::{ReviewError, Unavailable};
use crate::watcher::{Grant, GrantStatus};

/// Grants that stand for less are asked about this often only, unless RBAC changes: ten thousand
/// watches are a hundred and seventy questions a second. Upstream itself asks once, when a watch
/// begins.
pub(super) const LEAST: Duration = Duration::from_mins(1);
/// At the end of its lifetime a verdict is asked about anew, or this many times later.
pub(super) const LONGEST: f32 = 1.1;
/// Between a failure and the next question, and between an answer and the next.
const AGAIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// What is noticed this late was missed by a client that did not read.
pub(super) const OVERDUE: Duration = Duration::from_secs(5);

/// Watches over a grant. Waits for nothing: it is polled with its watch.
pub struct Guard {
    authorizer: Arc<Authorizer>,
    verdict: Arc<Verdict>,
    ear: Ear,
    asking: Option<JoinHandle<Result<Judged, Arc<ReviewError>>>>,
    /// Nothing is delivered until upstream has answered.
    held: bool,
    /// The verdict was found to be in doubt, and whether by a change of RBAC. Each is held back for
    /// once: after a failure it may be decided otherwise.
    noticed: Option<bool>,
    /// No question before this moment.
    pause: Instant,
    /// How many lifetimes of a verdict it waits for: watches that began together shall not ask
    /// together for ever.
    lifetimes: f32,
}

impl Authorizer {
    /// Has a watch know when its grant is gone.
    pub fn guard(self: &Arc<Self>, judged: Judged) -> Guard {
        let Judged { question, verdict } = judged;
        Guard {
            ear: Ear::new(self.changes(), &question),
            authorizer: Arc::clone(self),
            verdict,
            asking: None,
            held: false,
            noticed: None,
            pause: Instant::now(),
            lifetimes: 1.0 + (LONGEST - 1.0) * fastrand::f32(),
        }
    }
}

impl Grant for Guard {
    /// What the watch may do now. The task is woken when a change of RBAC or upstream's answer has
    /// something new to say; the clock is the caller's, see [`Grant::due`].
    fn poll(&mut self, context: &mut Context<'_>) -> GrantStatus {
        // First, so that no change slips in between.
        self.ear.listen(context.waker());
        loop {
            self.authorizer
                .changes()
                .tell(&self.verdict, self.ear.question());
            let overtaken = self.verdict.overtaken_at().is_some();
            if let Some(asking) = &mut self.asking {
                let Poll::Ready(answer) = Pin::new(asking).poll(context) else {
                    if overtaken {
                        self.notice(true, false);
                    }
                    return self.status();
                };
                self.asking = None;
                let now = Instant::now();
                match answer {
                    Ok(Ok(judged)) if matches!(judged.decision(), Decision::Allowed(_)) => {
                        self.verdict = judged.verdict;
                        self.held = false;
                        self.noticed = None;
                        self.pause = now + PAUSE;
                        continue;
                    }
                    Ok(Ok(_)) => return GrantStatus::Revoked,
                    // Nobody says any more that they may. Their next request is forwarded, and
                    // upstream decides.
                    Ok(Err(error)) if overtaken && !error.is_unavailable() => {
                        return GrantStatus::Revoked;
                    }
                    Ok(Err(error)) => self.unanswered(&error, now),
                    // The task was ended with the runtime.
                    Err(_) => self.pause = now + AGAIN,
                }
            }
            let now = Instant::now();
            let (since, changed) = self.doubtful_since();
            if now < since {
                return self.status();
            }
            self.notice(changed, now.saturating_duration_since(since) > OVERDUE);
            if now < self.pause {
                return self.status();
            }
            let (authorizer, question) = (
                Arc::clone(&self.authorizer),
                Arc::clone(self.ear.question()),
            );
            // A task of its own: equal questions share one review, and a watch whose client stopped
            // reading is not polled. Everybody else would wait for it.
            self.asking = Some(tokio::spawn(async move {
                authorizer.ask_again(&question).await
            }));
        }
    }

    /// When it is to be polled next at the latest.
    fn due(&self) -> Instant {
        match self.asking {
            // The answer wakes.
            Some(_) => Instant::now() + LEAST,
            None => self.doubtful_since().0.max(self.pause),
        }
    }
}

impl Guard {
    fn notice(&mut self, changed: bool, late: bool) {
        if self.noticed < Some(changed) {
            self.noticed = Some(changed);
            self.held |= changed;
        }
        self.held |= late;
    }

    fn status(&self) -> GrantStatus {
        if self.held {
            GrantStatus::InDoubt
        } else {
            GrantStatus::Granted
        }
    }

    /// Since when, or from when on, upstream should be asked again; and whether for a change of
    /// RBAC.
    fn doubtful_since(&self) -> (Instant, bool) {
        if let Some(at) = self.verdict.overtaken_at() {
            return (at, true);
        }
        let Verdict {
            place,
            ttl,
            unwatched_ttl,
            ..
        } = &*self.verdict;
        let ttl = if self.authorizer.changes().are_followed() {
            ttl
        } else {
            unwatched_ttl
        };
        let end = place.asked + (*ttl).max(LEAST).mul_f32(self.lifetimes);
        (
            self.verdict.settles_at().map_or(end, |at| at.min(end)),
            false,
        )
    }

    fn unanswered(&mut self, error: &ReviewError, now: Instant) {
        tracing::debug!(%error, "an open watch could not be reviewed");
        if error.is_unavailable() && self.authorizer.config().unavailable == Unavailable::Refuse {
            // What a change took away is not delivered; nothing else is known to be wrong.
            self.held &= self.verdict.overtaken_at().is_some();
            self.pause = now + AGAIN;
        } else {
            self.held = false;
            self.pause = now + LEAST;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What watching over a grant takes of each open watch, beside the question.
    #[test]
    fn a_guard_is_small() {
        let bytes = size_of::<Guard>() + Ear::BYTES - size_of::<Ear>();
        assert!(bytes <= 200, "{bytes}");
    }
}
