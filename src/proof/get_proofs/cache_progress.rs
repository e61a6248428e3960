//! The progress of kube-apiserver's cache, for which consistent lists of idle types wait.
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Pause between an answer and the next proof, of which a list that begins earlier gains nothing.
/// kube-apiserver's cache of a type asks etcd if it is current at most once in 100 ms, and lists
/// wait for that.
/// Source: `apiserver/pkg/storage/cacher/progress/watch_progress.go` (progressRequestPeriod).
const PAUSE: Duration = Duration::from_millis(90);
/// A proof that begins this soon after an answer shows if it waits for that.
const SOON: Duration = Duration::from_millis(60);
/// Longest time between two answers that the cache gives as soon as it may. Others take long for
/// another reason.
const MAX_PERIOD: Duration = Duration::from_millis(150);
/// Time for which it is remembered that proofs wait. Then one shows it again.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The answers to the proofs of one type, by which it is known how often kube-apiserver's cache of
/// it makes progress while the type has no events.
#[derive(Debug, Default)]
pub(super) struct CacheProgress(Mutex<Answers>);

#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    last: Option<Instant>,
    /// The moment of the last answer that waited for progress.
    waited: Option<Instant>,
}

impl CacheProgress {
    /// Returns the moment before which the next proof need not begin: it would be answered no
    /// sooner, and count for fewer gets.
    pub(super) fn next_proof(&self) -> Option<Instant> {
        let answers = *self.0.lock();
        let waits = answers.waited.is_some_and(|at| at.elapsed() < REMEMBERED);
        answers.last.filter(|_| waits).map(|last| last + PAUSE)
    }

    /// Returns the moment of the last answer, for a proof that begins now.
    pub(super) fn last_answer(&self) -> Option<Instant> {
        self.0.lock().last
    }

    /// Notes the answer to a proof that began at `began`, when `before` was the last answer.
    pub(super) fn answered(&self, began: Instant, before: Option<Instant>) {
        let (mut answers, now) = (self.0.lock(), Instant::now());
        if let Some(before) = before.filter(|before| began - *before < SOON) {
            let has_waited = (PAUSE..MAX_PERIOD).contains(&(now - before));
            answers.waited = has_waited.then_some(now);
        }
        answers.last = Some(now);
    }
}
