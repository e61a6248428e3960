//! Proofs that consistent gets of one type share.
mod cache_progress;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use self::cache_progress::CacheProgress;
use super::costs::{ProofEstimate, REQUEST};
use super::outcome::{ProofError, ProvenVersion};
use crate::proof::get_crowds::MANY_GETS;
use crate::shared_calls::{Gathering, Gatherings, Hold};

/// Longest wait of a get for others to share a proof with.
const CROWD_WAIT: Duration = Duration::from_millis(25);
/// Pause in the arrival of gets after which enough of them do not wait for more.
const LULL: Duration = Duration::from_millis(2);
/// Gets that are expected in a pause at the end of which no more are: one comes with near
/// certainty.
const EXPECTED_IN_SILENCE: f64 = 6.0;
/// Number of gets that need not wait as long as they may.
const ENOUGH: f64 = 16.0;
/// Least number of gets that share a proof. One alone could as well be forwarded.
const FEWEST: f64 = 2.0;
/// Proofs that are under way at the same time. Gets that come meanwhile wait for the end of one.
const MAX_RUNNING: usize = 4;
/// Shortest and longest wait for a proof that has begun. An API server that delays it for longer than
/// its cache of an idle type needs may answer the gets themselves.
const MIN_PROOF_WAIT: Duration = Duration::from_millis(200);
const MAX_PROOF_WAIT: Duration = Duration::from_secs(3);
/// The weight of a crowd against the earlier ones: that of a large one, and that of any.
const CROWD_WEIGHT: f64 = 0.3;
const MIN_CROWD_WEIGHT: f64 = 0.1;
/// Time for which the sizes of crowds are remembered. Then they are measured again.
const CROWDS_REMEMBERED: Duration = Duration::from_secs(1);
/// Longest time for which gets share no proofs after one that was late for them.
const AFTER_LATE: Duration = Duration::from_secs(1);

/// The question that proves that gets may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GetQuestion {
    /// Upstream's version, to which events are expected to bring the cache.
    Version,
    /// All names and versions.
    Comparison,
}

/// A proof that gets share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProofForGets {
    pub(super) question: GetQuestion,
    /// The number of gets that cost upstream as much.
    cost: f64,
    /// Time that upstream needs for it.
    takes: Duration,
}

impl ProofForGets {
    /// Estimates the next proof by this question.
    pub(super) fn new(estimate: &ProofEstimate, question: GetQuestion) -> Self {
        let (cost, takes) = match question {
            GetQuestion::Version => (REQUEST, estimate.expected_of_version()),
            GetQuestion::Comparison => (estimate.comparison(), estimate.expected()),
        };
        Self {
            question,
            cost: cost / REQUEST,
            takes,
        }
    }

    /// Returns `true` if the proof costs upstream no more than these gets.
    fn is_worth_for(self, gets: usize) -> bool {
        gets as f64 >= self.least()
    }

    /// Returns the least number of gets for which the proof is made.
    fn least(self) -> f64 {
        self.cost.max(FEWEST)
    }

    /// Returns the longest time that gets wait for the proof once it has begun.
    fn patience(self) -> Duration {
        (4 * self.takes).clamp(MIN_PROOF_WAIT, MAX_PROOF_WAIT)
    }
}

/// The proofs that the gets of one type share.
#[derive(Default)]
pub(super) struct GetProofs {
    calls: Gatherings<Result<ProvenVersion, ProofError>>,
    crowds: CrowdSizes,
    pub(super) progress: CacheProgress,
    lateness: Lateness,
}

impl GetProofs {
    /// Returns `true` if a get should wait for others, when `rate` of them are expected in a
    /// second: if so many will wait that they cost upstream more than the proof.
    pub(super) fn is_worth(&self, proof: ProofForGets, rate: f64) -> bool {
        let is_full = self.calls.running() >= MAX_RUNNING;
        if self.lateness.is_pausing() || (is_full && self.lateness.is_late()) {
            return false;
        }
        let longest = CROWD_WAIT.as_secs_f64();
        let company = (rate * longest).min(self.crowds.expected());
        self.calls.is_open() || company >= proof.cost.max(MANY_GETS * longest)
    }

    /// Waits for other gets and then for the proof, which begins with a call of `ask`. Gets that are
    /// too few for it are left to upstream, and so are those that waited as long as they may.
    pub(super) async fn join<F, A>(
        self: &Arc<Self>,
        proof: ProofForGets,
        rate: f64,
        ask: F,
    ) -> Result<ProvenVersion, ProofError>
    where
        F: FnOnce() -> A + Send + 'static,
        A: Future<Output = Result<ProvenVersion, ProofError>> + Send + 'static,
    {
        // The gets that this one was to wait for may have gone on meanwhile.
        if !self.is_worth(proof, rate) {
            return Err(ProofError::Cheap);
        }
        let shared = Arc::clone(self);
        let call = move |gets| async move {
            shared.crowds.gathered(gets);
            if !proof.is_worth_for(gets) {
                return Err(ProofError::Cheap);
            }
            let began = Instant::now();
            let answer = ask().await;
            shared.lateness.ended(began, proof.patience());
            answer
        };
        let rules = self.gathering(proof, rate);
        let latest = Instant::now() + CROWD_WAIT;
        let begins = rules.hold.map_or(latest, |hold| latest.max(hold.until));
        let call = self.calls.join(rules, call);
        let Ok(result) = timeout_at(begins + proof.patience(), call).await else {
            self.lateness.given_up();
            return Err(ProofError::LateForGets);
        };
        result.unwrap_or(Err(ProofError::Failed))
    }

    /// Returns the wait for more gets, when `rate` of them are expected in a second.
    #[expect(clippy::cast_sign_loss, reason = "costs are positive")]
    fn gathering(&self, proof: ProofForGets, rate: f64) -> Gathering {
        // Clients that wait for an answer send nothing else: there may be no more of them.
        let enough = ENOUGH.max(2.0 * proof.cost).min(self.crowds.expected());
        let silence = EXPECTED_IN_SILENCE / rate.max(EXPECTED_IN_SILENCE);
        let fewest = proof.least().ceil() as usize;
        let hold = |until| Hold { until, fewest };
        Gathering {
            enough: (enough.ceil() as usize).max(fewest),
            lull: LULL,
            silence: Duration::from_secs_f64(silence).clamp(LULL, CROWD_WAIT),
            longest: CROWD_WAIT,
            hold: self.progress.next_proof().map(hold),
            most_running: MAX_RUNNING,
        }
    }
}

/// The number of gets that shared the last proofs, or would have.
///
/// The rate of gets says nothing about it where few clients come again as soon as they are
/// answered.
#[derive(Debug, Default)]
struct CrowdSizes(Mutex<Option<CrowdSize>>);

#[derive(Clone, Copy, Debug)]
struct CrowdSize {
    usual: f64,
    learned: Instant,
}

impl CrowdSizes {
    /// Returns the number of gets that are expected to share a proof at most.
    fn expected(&self) -> f64 {
        let size = *self.0.lock();
        size.filter(|size| size.learned.elapsed() < CROWDS_REMEMBERED)
            .map_or(f64::INFINITY, |size| size.usual)
    }

    /// Notes the number of gets that waited for each other. Gets that come after the rest of their
    /// crowd are few, and mean little for the next one.
    fn gathered(&self, gets: usize) {
        let (gets, before) = (gets as f64, self.expected());
        let usual = if before.is_finite() {
            let weight = CROWD_WEIGHT * (gets / before).clamp(MIN_CROWD_WEIGHT, 1.0);
            before + weight * (gets - before)
        } else {
            gets
        };
        *self.0.lock() = Some(CrowdSize {
            usual,
            learned: Instant::now(),
        });
    }
}

/// The proofs that were late for their gets, if the last one was. Upstream answers gets itself then,
/// for about the time that the proof took, and twice as long after each one that is late again.
///
/// A short stall of upstream thus costs little, and one that lasts is met by few gets.
#[derive(Debug, Default)]
struct Lateness(Mutex<Option<LateProofs>>);

#[derive(Clone, Copy, Debug)]
struct LateProofs {
    pausing_until: Instant,
    /// The stalls in a row during which proofs were late.
    stalls: u32,
    /// The end of the last late proof. `None` while none has ended.
    last_ended: Option<Instant>,
}

impl LateProofs {
    fn are_pausing(self) -> bool {
        Instant::now() < self.pausing_until
    }
}

impl Lateness {
    /// Returns `true` for a while after a late proof.
    fn is_pausing(&self) -> bool {
        let late = *self.0.lock();
        late.is_some_and(LateProofs::are_pausing)
    }

    /// Returns `true` until a proof is in time after the pause.
    fn is_late(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Notes that gets wait no longer for a proof. If its end is late, it tells how long the pause is.
    fn given_up(&self) {
        let mut late = self.0.lock();
        *late = Some(LateProofs {
            pausing_until: Instant::now() + AFTER_LATE,
            stalls: late.map_or(0, |late| late.stalls),
            last_ended: late.and_then(|late| late.last_ended),
        });
    }

    /// Notes the end of a proof that began at `began`, and for which gets waited no longer than
    /// `patience`.
    fn ended(&self, began: Instant, patience: Duration) {
        let (now, took) = (Instant::now(), began.elapsed());
        let mut late = self.0.lock();
        if took < patience {
            // Those in time that began before a late one tell nothing new.
            *late = late.filter(|late| late.are_pausing());
            return;
        }
        let (stalls, last_ended) = late.map_or((0, None), |late| (late.stalls, late.last_ended));
        // Proofs that were under way at the same time tell of the same stall.
        let is_same = last_ended.is_some_and(|ended| began < ended);
        let stalls = if is_same { stalls } else { stalls + 1 };
        let pause = took.saturating_mul(1 << (stalls - 1).min(16));
        *late = Some(LateProofs {
            pausing_until: now + pause.min(AFTER_LATE),
            stalls,
            last_ended: Some(now),
        });
    }
}

#[cfg(test)]
mod tests;
