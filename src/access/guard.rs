//! The grant of an open watch: reviewed again when it expires, or when a change concerns it.
//!
//! A verdict goes through three states. It is *valid* until its lifetime ends, or RBAC or the pods
//! that it rests on change. Then it is *in doubt* until upstream has reviewed it again. The review
//! either renews it or *revokes* the watch. [`WatchGuard::poll`] advances these states whenever the
//! watch itself is polled.
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::authorize::{Authorizer, MAX_LIFETIME_FACTOR, MIN_WATCH_LIFETIME, OVERDUE};
use super::changes::listeners::ChangeSubscription;
use super::config::ReviewFailurePolicy;
use super::error::ReviewError;
use super::metrics::{self, ReviewCause};
use super::verdict::{Decision, ReviewedAccess, Verdict, VerdictBasis};
use crate::backoff::PauseRange;
use crate::watcher::{AccessGuard, AccessStatus};

/// Time between a failed review and the next one. While the watch goes on all the same, it is twice
/// as long after each further failure, [`MIN_WATCH_LIFETIME`] at most.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Time between an answered review and the next one.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Watches over the grant of one open watch.
pub struct WatchGuard {
    authorizer: Arc<Authorizer>,
    verdict: Arc<Verdict>,
    subscription: ChangeSubscription,
    /// The address that the watch came from.
    address: IpAddr,
    review: Option<RunningReview>,
    doubts: Doubts,
    /// No review starts before this moment.
    not_before: Instant,
    /// Failed reviews in a row that did not hold the watch.
    failures: u8,
    /// Random multiple of the lifetime after which the verdict is reviewed. It spreads the reviews
    /// of watches that began together, for example after a restart.
    lifetime_factor: f32,
}

/// A review that is under way.
struct RunningReview {
    /// The doubt that it is to end.
    doubt: Doubt,
    answer: JoinHandle<Result<ReviewedAccess, Arc<ReviewError>>>,
}

/// The reason why a verdict is in doubt, weaker first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    /// Its lifetime has ended. It is most likely right still, so events go on.
    Expired,
    /// A change concerns it. Events wait: they may be from after a revocation.
    Overtaken,
}

/// The doubts about a verdict, until it is renewed.
#[derive(Debug, Default)]
struct Doubts {
    /// The strongest one so far. Each holds the watch back once: after a failed review,
    /// [`WatchGuard::review_failed`] decides whether it stays held.
    strongest: Option<Doubt>,
    /// Nothing is delivered until upstream has answered.
    hold_watch: bool,
}

impl Doubts {
    /// Notes a doubt that has existed for `age`, and holds the watch if it is a new, strong one.
    /// Returns `true` if it is new.
    fn notice(&mut self, doubt: Doubt, age: Duration) -> bool {
        if self.strongest >= Some(doubt) {
            return false;
        }
        // A client that did not read kept its watch from being polled. Its verdict may be older
        // than any that the proxy would rely on, so events wait for the review.
        let is_overdue = self.strongest.is_none() && age > OVERDUE;
        self.hold_watch |= doubt == Doubt::Overtaken || is_overdue;
        self.strongest = Some(doubt);
        true
    }
}

impl Authorizer {
    /// Creates the guard of a watch from this address that has been granted.
    pub fn guard(self: &Arc<Self>, granted: ReviewedAccess, address: IpAddr) -> WatchGuard {
        let ReviewedAccess { request, verdict } = granted;
        WatchGuard {
            subscription: ChangeSubscription::new(self.changes().listeners(), &request),
            authorizer: Arc::clone(self),
            address,
            verdict,
            review: None,
            doubts: Doubts::default(),
            not_before: Instant::now(),
            failures: 0,
            lifetime_factor: 1.0 + (MAX_LIFETIME_FACTOR - 1.0) * fastrand::f32(),
        }
    }
}

impl AccessGuard for WatchGuard {
    fn poll(&mut self, context: &mut Context<'_>) -> AccessStatus {
        // Registered before the verdict is compared with the changes. The other order would lose
        // the wake-up of a change that is recorded in between.
        self.subscription.register(context.waker());
        loop {
            self.authorizer
                .compare(&self.verdict, self.subscription.request());
            if let Some(review) = &mut self.review {
                let doubt = review.doubt;
                let Poll::Ready(answer) = Pin::new(&mut review.answer).poll(context) else {
                    // RBAC can change while a review of an expired verdict is under way. Its answer
                    // may be from before the change, so the watch has to wait from now on.
                    if self.verdict.overtaken_at().is_some() {
                        self.doubts.notice(Doubt::Overtaken, Duration::ZERO);
                    }
                    return self.status();
                };
                self.review = None;
                match self.take(answer, doubt, Instant::now()) {
                    ReviewEffect::Renewed => continue,
                    ReviewEffect::Revoked => return AccessStatus::Revoked,
                    ReviewEffect::Missing => {}
                }
            }
            let now = Instant::now();
            let (since, doubt) = self.doubtful_since();
            if now < since {
                return self.status();
            }
            if self
                .doubts
                .notice(doubt, now.saturating_duration_since(since))
            {
                // What made the last review fail says nothing about this one, for which the watch
                // may be held.
                self.not_before = self.not_before.min(now + MIN_INTERVAL);
            }
            if now < self.not_before {
                return self.status();
            }
            self.start_review(doubt);
            // The loop goes on, because the first poll of the task's handle registers the waker.
        }
    }

    fn due(&self) -> Instant {
        match self.review {
            // The answer wakes the task, so no earlier poll is needed.
            Some(_) => Instant::now() + MIN_WATCH_LIFETIME,
            None => self.doubtful_since().0.max(self.not_before),
        }
    }
}

/// The effect of a finished review.
enum ReviewEffect {
    /// The grant has a new verdict.
    Renewed,
    /// The grant is gone.
    Revoked,
    /// Upstream gave no verdict, and the old one is kept.
    Missing,
}

impl WatchGuard {
    fn start_review(&mut self, doubt: Doubt) {
        metrics::watch_reviewed(match (doubt, &self.verdict.basis) {
            (Doubt::Expired, _) => ReviewCause::Lifetime,
            (Doubt::Overtaken, VerdictBasis::Rbac { .. } | VerdictBasis::Other) => {
                ReviewCause::Rbac
            }
            (Doubt::Overtaken, VerdictBasis::Node { .. }) => ReviewCause::Pods,
        });
        let authorizer = Arc::clone(&self.authorizer);
        let request = Arc::clone(self.subscription.request());
        let address = self.address;
        // The review runs in a task of its own, because equal requests share it. Without one, it
        // would stand still with a watch whose client does not read, and all others would wait.
        let answer = tokio::spawn(async move { authorizer.recheck(&request, address).await });
        self.review = Some(RunningReview { doubt, answer });
    }

    fn take(
        &mut self,
        answer: Result<Result<ReviewedAccess, Arc<ReviewError>>, JoinError>,
        doubt: Doubt,
        now: Instant,
    ) -> ReviewEffect {
        match answer {
            Ok(Ok(reviewed)) if matches!(reviewed.decision(), Decision::Allowed(_)) => {
                self.verdict = reviewed.verdict;
                self.doubts = Doubts::default();
                self.failures = 0;
                // The new verdict may be in doubt at once. Without a pause, frequent changes of
                // RBAC would turn each watch into a busy loop of reviews.
                self.not_before = now + MIN_INTERVAL;
                ReviewEffect::Renewed
            }
            Ok(Ok(_)) => ReviewEffect::Revoked,
            // The old verdict is overtaken, and upstream refuses to give a new one. So nothing
            // grants the access any more. The client's next request is forwarded, and upstream
            // decides.
            Ok(Err(error)) if self.verdict.overtaken_at().is_some() && !error.may_pass() => {
                ReviewEffect::Revoked
            }
            Ok(Err(error)) => {
                self.review_failed(&error, now);
                if self.doubts.strongest > Some(doubt) {
                    // A change came meanwhile, which the review may not have seen.
                    self.not_before = now + MIN_INTERVAL;
                }
                ReviewEffect::Missing
            }
            // The task ended with the runtime.
            Err(_) => {
                self.not_before = now + RETRY_AFTER_FAILURE;
                ReviewEffect::Missing
            }
        }
    }

    fn review_failed(&mut self, error: &ReviewError, now: Instant) {
        tracing::debug!(%error, "an open watch could not be reviewed");
        if error.may_pass()
            && self.authorizer.config().review_failure_policy == ReviewFailurePolicy::Refuse
        {
            // An overtaken verdict keeps the watch held: the change may have revoked it. An expired
            // one does not, because nothing suggests that upstream would decide otherwise now.
            self.doubts.hold_watch &= self.verdict.overtaken_at().is_some();
            self.not_before = now + RETRY_AFTER_FAILURE;
        } else {
            // The operator prefers open watches to strict checks, or upstream refuses reviews.
            // Holding the watch would not change that.
            self.doubts.hold_watch = false;
            // A server that has just started refuses everything for a moment.
            let pauses = PauseRange::new(RETRY_AFTER_FAILURE, MIN_WATCH_LIFETIME);
            self.not_before = now + pauses.after(self.failures.into());
            self.failures = self.failures.saturating_add(1);
        }
    }

    fn status(&self) -> AccessStatus {
        if self.doubts.hold_watch {
            AccessStatus::InDoubt
        } else {
            AccessStatus::Granted
        }
    }

    /// Returns the moment at which the verdict becomes or became doubtful, and the reason.
    fn doubtful_since(&self) -> (Instant, Doubt) {
        if let Some(at) = self.verdict.overtaken_at() {
            return (at, Doubt::Overtaken);
        }
        let (from, lifetime) = self
            .authorizer
            .lifetime(&self.verdict, self.subscription.request());
        let lifetime = lifetime.max(MIN_WATCH_LIFETIME);
        let end = from + lifetime.mul_f32(self.lifetime_factor);
        let since = self.verdict.settled_at().map_or(end, |at| at.min(end));
        (since, Doubt::Expired)
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(review) = self.review.take() {
            review.answer.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn a_doubt_that_lasts_does_not_hold_the_watch_later() {
        let mut doubts = Doubts::default();
        doubts.notice(Doubt::Expired, MOMENT);
        assert!(!doubts.hold_watch, "events go on");
        // The review failed. Until the next one, each event and each bookmark polls the guard.
        doubts.notice(Doubt::Expired, 2 * OVERDUE);
        assert!(!doubts.hold_watch, "upstream cannot be asked");
        doubts.notice(Doubt::Overtaken, MOMENT);
        assert!(doubts.hold_watch, "a change may have revoked the grant");
        doubts.hold_watch = false;
        doubts.notice(Doubt::Overtaken, 2 * OVERDUE);
        assert!(!doubts.hold_watch, "the operator prefers open watches");
    }

    #[test]
    fn a_watch_whose_client_did_not_read_waits_for_the_review() {
        let mut doubts = Doubts::default();
        doubts.notice(Doubt::Expired, OVERDUE + MOMENT);
        assert!(doubts.hold_watch);
    }

    /// Each open watch has a guard. The request is not counted: equal ones share it.
    #[test]
    fn a_guard_is_small() {
        let bytes =
            size_of::<WatchGuard>() + ChangeSubscription::BYTES - size_of::<ChangeSubscription>();
        assert!(bytes <= 200, "{bytes}");
    }
}
