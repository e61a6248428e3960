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
/// Longest time of an answer that need not wait for the cache.
const MAX_ANSWER: Duration = Duration::from_millis(60);
/// Time for which it is remembered that proofs wait. Then one shows it again.
const WAIT_REMEMBERED: Duration = Duration::from_secs(1);
/// The same of proofs that take long for another reason.
const DELAY_REMEMBERED: Duration = Duration::from_secs(10);

/// The answers to the comparisons of one type, by which it is known how often kube-apiserver's cache
/// of it makes progress while the type has no events.
#[derive(Debug, Default)]
pub(in crate::proof) struct CacheProgress(Mutex<Answers>);

#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    last: Option<Instant>,
    delay: AnswerDelay,
}

/// The reason for which answers take long.
#[derive(Clone, Copy, Debug, Default)]
enum AnswerDelay {
    #[default]
    None,
    /// They wait for the cache's progress, as one at this moment did.
    Progress(Instant),
    /// Another one: at this moment, one took long although it began late enough.
    Other(Instant),
}

/// A comparison that waits for its answer.
pub(in crate::proof) struct AskedComparison<'a> {
    progress: &'a CacheProgress,
    began: Instant,
    /// The moment of the last answer before.
    after: Option<Instant>,
}

impl CacheProgress {
    /// Returns the moment before which the next proof need not begin: it would be answered no
    /// sooner, and count for fewer gets.
    pub(super) fn next_proof(&self) -> Option<Instant> {
        let Answers { last, delay } = *self.0.lock();
        match delay {
            AnswerDelay::Progress(at) if at.elapsed() < WAIT_REMEMBERED => Some(last? + PAUSE),
            _ => None,
        }
    }

    /// Notes that upstream is asked now.
    pub(in crate::proof) fn ask(&self) -> AskedComparison<'_> {
        AskedComparison {
            progress: self,
            began: Instant::now(),
            after: self.0.lock().last,
        }
    }
}

impl AskedComparison<'_> {
    /// Notes upstream's answer, which took so long.
    pub(in crate::proof) fn answered(self, took: Duration) {
        let Self {
            progress,
            began,
            after,
        } = self;
        let (mut answers, now) = (progress.0.lock(), began + took);
        // Otherwise another comparison was answered meanwhile, for which the cache has asked etcd.
        if let Some(after) = after.filter(|_| answers.last == after) {
            let rest = began.saturating_duration_since(after);
            answers.delay = answers.delay.learn(rest, took, now);
        }
        answers.last = answers.last.max(Some(now));
    }
}

impl AnswerDelay {
    /// Returns what is known after a comparison that began so long after the last answer, took so
    /// long, and ended `now`.
    fn learn(self, rest: Duration, took: Duration, now: Instant) -> Self {
        match self {
            Self::Other(at) if now.saturating_duration_since(at) < DELAY_REMEMBERED => self,
            _ if rest >= PAUSE && took > MAX_ANSWER => Self::Other(now),
            _ if rest >= SOON => self,
            _ if (PAUSE..MAX_PERIOD).contains(&(rest + took)) => Self::Progress(now),
            _ => Self::None,
        }
    }
}
