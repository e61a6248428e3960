//! Consistent reads from memory: proves that a snapshot is no older than the request.
//!
//! Upstream is asked, once for all waiting readers, and only after they came. R is the version of
//! its answer, which etcd confirmed. The cache may answer as soon as it is known to have the state
//! at R or beyond. One of these proves it:
//!
//! 1. The cache is at R already. Nothing was written since, or the events were faster than the
//!    answer.
//! 2. An event or a bookmark of the scope's own watch brings it there. On a busy type that takes
//!    moments.
//! 3. The answer has all names and versions. If they are the cache's, the cache has the state at R:
//!    an object that changed has another version, and one that came or went is in one of the two
//!    only. Whether the events up to R were delivered does not matter.
//! 4. The same is compared for the objects that a watch selects. It proves nothing about others.
//! 5. A short watch of metadata, opened from the cache's version, brings a bookmark. All earlier
//!    events were sent before it, and are compared with those that the cache has seen.
//!
//! Nothing else that upstream offers proves it sooner. A watch sends a bookmark early only if it
//! begins with the state (`sendInitialEvents`). Such a bookmark is about that watch, not about the
//! scope's own, because upstream serves each watch from a queue of its own.
//!
//! A read that came before the scope's own list was asked for needs none of these: that list is
//! consistent itself.
//!
//! The choice follows from what the steps cost upstream ([`costs`]). 1 and 2 begin with a list that
//! selects nothing, 3 needs a list of all metadata, 4 a list of some, and 5 takes two seconds. A read
//! that costs less than the proof is left to upstream, unless many come at the same time. A watch
//! would stay there, so step 4 compares only what it selects ([`Provers::prove_selection`]).
//!
//! Whatever the step, a reader waits no longer than [`MAX_WAIT`]; where upstream's answer takes
//! longer than that, twice as long as this, and half a minute at most. While upstream refuses the
//! questions, readers do not wait at all ([`refusals`]).
//!
//! The proof does not depend on which API server answers. R of one server and a bookmark of
//! another, older one do not fit together, and the wait goes on. Versions are compared within a
//! type only.
mod catch_up;
mod comparison;
mod costs;
mod get_crowds;
mod get_proofs;
pub mod metrics;
mod outcome;
mod questions;
mod refusals;
mod route;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::{self, timeout, timeout_at};

use crate::scope::{Scope, TimelineChanged};
use crate::shared_calls::{FlightPace, Singleflight};
use crate::upstream::{Probe, UpstreamClient};
use crate::watcher::ViewFilter;
use catch_up::CatchUpWatches;
use comparison::{IN_TRANSIT, ProvenSelection};
use costs::ProofCosts;
use get_proofs::{GetProofs, GetQuestion, ProofForGets};
use outcome::{ComparedVersion, FreshnessProof, ProvenVersion};
use refusals::RefusedQuestions;
use route::{ProofRoute, RouteFacts};
use watershed_protocol::{Representation, ResourceVersion, Selection};

pub(crate) use comparison::ProvenState;
pub(crate) use get_crowds::{GetCrowds, MANY_GETS, WaitingGet};
pub(crate) use outcome::ProofError;

/// Longest wait for a proof, unless upstream's own answer would take longer. Then the read is
/// forwarded: upstream waits as long for its own cache.
/// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (blockTimeout).
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3);
/// Wait for events before upstream's objects are compared.
const EVENT_WAIT: Duration = Duration::from_millis(20);
/// Small types without events for this long are compared without that wait.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Time for which cheap reads do not wait for events that were too late for others.
const LAGS_FOR: Duration = Duration::from_secs(1);

/// One reader that wants a proof, and the answer that upstream would give it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProofDemand {
    /// The form of the answer.
    pub(crate) representation: Representation,
    /// The estimated number of its objects.
    pub(crate) objects: usize,
    /// The estimated bytes of its objects, as the scope has them.
    pub(crate) bytes: usize,
    /// Identifies reads that would share a request to upstream.
    pub(crate) identity: Option<u64>,
}

/// The objects that a watch begins with.
#[derive(Clone, Copy)]
pub(crate) struct WatchedObjects<'a> {
    pub(crate) selection: &'a Selection,
    pub(crate) filter: &'a ViewFilter,
    /// Their estimated number.
    pub(crate) count: usize,
}

/// The answer that a reader would get from upstream.
#[derive(Clone, Copy, Debug)]
struct AnswerOfUpstream {
    cost: f64,
    /// Time that it should take.
    takes: Duration,
    identity: Option<u64>,
}

/// The provers of all scopes.
pub(crate) struct Provers {
    client: UpstreamClient,
    /// By `Scope::id`.
    provers: Mutex<HashMap<u64, Arc<Prover>>>,
}

impl Provers {
    pub(crate) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            provers: Mutex::default(),
        }
    }

    /// Waits until the scope's newest snapshot is proven no older than the moment `since`, for
    /// [`MAX_WAIT`] at most, or twice as long as upstream's answer should take. Returns the minimum
    /// version of a snapshot that may answer: the scope may later be listed anew, from an older one.
    pub(crate) async fn prove(
        &self,
        scope: &Arc<Scope>,
        demand: ProofDemand,
        since: Instant,
    ) -> Result<ResourceVersion, ProofError> {
        let started = Instant::now();
        if let Some(version) = scope.listed_since(since) {
            let listed = FreshnessProof::Listed.of(version);
            return conclude(scope, started, Ok(listed));
        }
        let prover = self.of(scope);
        let answer = prover.answer_of_upstream(scope, demand);
        let longest = MAX_WAIT.max(2 * answer.takes);
        let proof = timeout(longest, prover.prove(scope, answer)).await;
        conclude(scope, started, proof.unwrap_or(Err(ProofError::Late)))
    }

    /// Returns `true` if a get of one of the scope's objects should wait for others, to share a
    /// proof with them, when `rate` of them are expected in a second.
    pub(crate) fn is_worth_for_gets(&self, scope: &Arc<Scope>, rate: f64) -> bool {
        let prover = self.of(scope);
        let proof = prover.proof_for_gets(scope);
        prover.may_ask().is_ok() && proof.is_some_and(|proof| prover.gets.is_worth(proof, rate))
    }

    /// Does the same as [`Provers::prove`] for one of many gets. They wait for each other. Those that
    /// are left when the crowd is gone cost upstream less than the proof.
    pub(crate) async fn prove_gets(
        &self,
        scope: &Arc<Scope>,
        rate: f64,
    ) -> Result<ResourceVersion, ProofError> {
        let started = Instant::now();
        let prover = self.of(scope);
        prover.may_ask()?;
        let proof = prover.proof_for_gets(scope).ok_or(ProofError::Cheap)?;
        let (asking, scope_for_proof) = (Arc::clone(&prover), Arc::clone(scope));
        let ask = move || async move { asking.prove_gets(&scope_for_proof, proof.question).await };
        let proof = prover.gets.join(proof, rate, ask).await;
        // They are given up sooner than other reads, by design.
        let proof = proof.map_err(|error| match error {
            ProofError::Late => ProofError::LateForGets,
            error => error,
        });
        conclude(scope, started, proof)
    }

    /// Compares the selected objects alone with upstream's. Returns their state; `None` if events
    /// have carried the scope beyond the version, so that its newest snapshot may answer.
    pub(crate) async fn prove_selection(
        &self,
        scope: &Arc<Scope>,
        watched: WatchedObjects<'_>,
        by: time::Instant,
    ) -> Result<(ResourceVersion, Option<ProvenState>), ProofError> {
        let started = Instant::now();
        let prover = self.of(scope);
        let proof = timeout_at(by, prover.compare_selection(scope, watched));
        let (proof, state) = match proof.await.unwrap_or(Err(ProofError::Late)) {
            Ok(ProvenSelection { proven, state }) => (Ok(proven), state),
            Err(error) => (Err(error), None),
        };
        Ok((conclude(scope, started, proof)?, state))
    }

    fn of(&self, scope: &Arc<Scope>) -> Arc<Prover> {
        let mut provers = self.provers.lock();
        if let Some(prover) = provers.get(&scope.id) {
            return Arc::clone(prover);
        }
        let prover = Arc::new(Prover::new(self.client.clone(), scope));
        // Scopes come and go by what clients ask for.
        provers.retain(|_, prover| prover.scope.strong_count() > 0);
        provers.insert(scope.id, Arc::clone(&prover));
        prover
    }
}

/// Counts a proof or its failure. Returns the version that is proven, if it still is.
fn conclude(
    scope: &Scope,
    started: Instant,
    proof: Result<ProvenVersion, ProofError>,
) -> Result<ResourceVersion, ProofError> {
    let proof = proof.and_then(|proven| still_proven(scope, proven));
    let outcome = proof
        .as_ref()
        .map_or_else(ProofError::as_str, |proven| proven.by.as_str());
    metrics::waited(&scope.key.gvr, outcome, started.elapsed());
    Ok(proof?.version)
}

/// Checks that the cache still has the history that a proof is about.
///
/// While its watch is interrupted, nobody knows whether upstream goes on from what is cached, or
/// from a backup. Only a comparison of the objects proves something then.
fn still_proven(scope: &Scope, proven: ProvenVersion) -> Result<ProvenVersion, ProofError> {
    if !scope.is_current() {
        return Err(TimelineChanged.into());
    }
    let is_compared = matches!(
        proven.by,
        FreshnessProof::Validated | FreshnessProof::Selected
    );
    if !is_compared && !scope.upstream.is_following() {
        return Err(ProofError::Interrupted);
    }
    Ok(proven)
}

/// Returns `true` if the scope's events come so often that the next one is worth waiting for.
fn is_busy(scope: &Scope) -> bool {
    scope.upstream.silence() < IN_TRANSIT
}

/// Proves that one scope is fresh.
struct Prover {
    /// The scope. A prover does not keep a closed one.
    scope: Weak<Scope>,
    client: UpstreamClient,
    probe: Probe,
    costs: ProofCosts,
    refusals: RefusedQuestions,
    versions: Arc<Singleflight<Result<ResourceVersion, ProofError>>>,
    comparisons: Arc<Singleflight<Result<ComparedVersion, ProofError>>>,
    /// Readers that wait for the next comparison, roughly.
    readers: AtomicUsize,
    /// Time that the last comparison for readers took.
    last_comparison: Mutex<Duration>,
    gets: Arc<GetProofs>,
    /// The moment at which events did not bring a version in time.
    lagged: Mutex<Option<Instant>>,
    catch_ups: Arc<CatchUpWatches>,
}

impl Prover {
    fn new(client: UpstreamClient, scope: &Arc<Scope>) -> Self {
        let probe = scope.probe(client.clone());
        Self {
            scope: Arc::downgrade(scope),
            client,
            costs: ProofCosts::default(),
            refusals: RefusedQuestions::default(),
            versions: Arc::new(Singleflight::paced(FlightPace::OF_CROWDS)),
            comparisons: Arc::new(Singleflight::paced(FlightPace::OF_CROWDS)),
            readers: AtomicUsize::new(0),
            last_comparison: Mutex::default(),
            gets: Arc::default(),
            lagged: Mutex::default(),
            catch_ups: Arc::new(CatchUpWatches::new(probe.clone())),
            probe,
        }
    }

    /// Proves that the cache is fresh enough for a read that upstream would answer like this.
    async fn prove(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
        answer: AnswerOfUpstream,
    ) -> Result<ProvenVersion, ProofError> {
        self.may_ask()?;
        let objects = scope.reader.snapshot().len();
        let facts = self.facts(scope, objects);
        let count_read = || {
            let AnswerOfUpstream { cost, identity, .. } = answer;
            self.costs.count_read(objects, cost, identity)
        };
        // A read counts once, and only where that decides: events prove others without a comparison.
        let outweighed = ProofRoute::depends_on_reads(facts).then(count_read);
        let known = match ProofRoute::choose(facts, outweighed.unwrap_or_default()) {
            ProofRoute::LeaveToUpstream => return Err(ProofError::Cheap),
            ProofRoute::Compare => None,
            ProofRoute::AskVersion => {
                let version = self.version(scope).await?;
                if let Some(proof) = self.follow(scope, version, facts.is_small).await {
                    return Ok(proof.of(version));
                }
                self.record_lag(scope);
                let (is_busy, is_small) = (is_busy(scope), facts.is_small);
                let reads_outweigh =
                    (is_busy || !is_small) && outweighed.unwrap_or_else(count_read);
                if !reads_outweigh && !is_small {
                    return Err(ProofError::Cheap);
                }
                // The events of a busy type may be late and still faster than a comparison.
                let wait = IN_TRANSIT.min(self.costs.estimate(objects).expected());
                if is_busy && reads_outweigh && scope.wait_until_version(version, wait).await {
                    return Ok(FreshnessProof::Followed.of(version));
                }
                Some(version)
            }
        };
        self.compare_or_catch_up(scope, answer, known).await
    }

    /// Waits for a moment until events have brought the cache to upstream's version. Returns the proof,
    /// or `None` if they are late.
    async fn follow(
        &self,
        scope: &Scope,
        version: ResourceVersion,
        is_small: bool,
    ) -> Option<FreshnessProof> {
        let proof = if scope.reader.version() >= version {
            FreshnessProof::Current
        } else {
            let is_expected = !is_small || scope.upstream.silence() < IDLE_AFTER;
            let is_followed = is_expected && scope.wait_until_version(version, EVENT_WAIT).await;
            is_followed.then_some(FreshnessProof::Followed)?
        };
        self.costs.set_compare_first(false);
        Some(proof)
    }

    /// Compares upstream's objects with the cache, unless events bring it to the `known` version.
    /// Waits for a catch-up watch where that proves nothing.
    async fn compare_or_catch_up(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
        answer: AnswerOfUpstream,
        known: Option<ResourceVersion>,
    ) -> Result<ProvenVersion, ProofError> {
        let is_slow = self.costs.estimate(scope.reader.snapshot().len()).is_slow();
        let compared = match known {
            _ if is_slow => Err(ProofError::Late),
            None => self.compare(scope).await,
            // Events may still be faster.
            Some(version) => tokio::select! {
                compared = self.compare(scope) => compared,
                _ = scope.wait_until_version(version, Duration::MAX) => {
                    return Ok(FreshnessProof::Followed.of(version));
                }
            },
        };
        let version = match compared {
            Ok(compared) if scope.reader.version() >= compared.version => {
                return Ok(compared.proven());
            }
            Ok(compared) => compared.version,
            // Otherwise long lists would be left to an upstream that has too much to do.
            Err(ProofError::Late) if is_slow || answer.takes > costs::CATCH_UP => match known {
                Some(version) => version,
                None => self.version(scope).await?,
            },
            Err(error) => return Err(error),
        };
        self.catch_up(scope, version).await
    }

    /// Estimates the proof that gets would share now. `None` if there is none for them.
    ///
    /// Comparisons cost too much for the gets of a large type. So a type whose events come now is
    /// asked for its version, even if they did not come in time for the last list.
    fn proof_for_gets(&self, scope: &Scope) -> Option<ProofForGets> {
        let estimate = self.costs.estimate(scope.reader.snapshot().len());
        let is_busy = !estimate.is_small() && is_busy(scope);
        let question = if !self.has_lagged() && (is_busy || estimate.asks_version_first()) {
            GetQuestion::Version
        } else if estimate.is_slow() || self.costs.is_paused() {
            return None;
        } else {
            GetQuestion::Comparison
        };
        Some(ProofForGets::new(&estimate, question))
    }

    /// Proves that the cache is fresh enough for gets. They share no question with other reads, as
    /// those wait for longer, and none that has begun. What is not proven at once is forwarded.
    async fn prove_gets(
        &self,
        scope: &Arc<Scope>,
        question: GetQuestion,
    ) -> Result<ProvenVersion, ProofError> {
        match question {
            GetQuestion::Version => {
                let version = self.ask_version(scope).await?;
                if scope.reader.version() >= version {
                    return Ok(FreshnessProof::Current.of(version));
                }
                if scope.wait_until_version(version, EVENT_WAIT).await {
                    return Ok(FreshnessProof::Followed.of(version));
                }
                self.record_lag(scope);
                Err(ProofError::Late)
            }
            GetQuestion::Comparison => {
                let asked = self.gets.progress.ask();
                let compared = self.ask_objects(scope).await?;
                asked.answered(compared.took);
                if scope.reader.version() < compared.version {
                    return Err(ProofError::Late);
                }
                Ok(compared.proven())
            }
        }
    }

    /// Estimates what upstream's answer costs, and how long it takes.
    fn answer_of_upstream(&self, scope: &Scope, demand: ProofDemand) -> AnswerOfUpstream {
        let estimate = self.costs.estimate(scope.reader.snapshot().len());
        let of_answer = estimate.of_objects(demand.objects);
        let mut cost = of_answer.answer(demand.representation, demand.bytes);
        // Upstream prints more than is held then, and that is in its metadata, too.
        if !scope.managed_fields.are_kept() {
            cost = cost.max(of_answer.comparison());
        }
        AnswerOfUpstream {
            cost,
            takes: estimate.expected_of_answer(cost),
            identity: demand.identity,
        }
    }

    /// Notes that events did not bring a version in time.
    fn record_lag(&self, scope: &Scope) {
        self.costs.set_compare_first(!is_busy(scope));
        *self.lagged.lock() = Some(Instant::now());
    }

    /// Returns what decides about the first step.
    fn facts(&self, scope: &Scope, objects: usize) -> RouteFacts {
        let estimate = self.costs.estimate(objects);
        RouteFacts {
            is_small: estimate.is_small(),
            has_lagged: self.has_lagged(),
            version: estimate.version_question(is_busy(scope)),
        }
    }

    fn has_lagged(&self) -> bool {
        let lagged = *self.lagged.lock();
        lagged.is_some_and(|lagged| lagged.elapsed() < LAGS_FOR)
    }

    /// Waits for events up to `version`, or for a catch-up watch.
    async fn catch_up(
        &self,
        scope: &Arc<Scope>,
        version: ResourceVersion,
    ) -> Result<ProvenVersion, ProofError> {
        if scope.wait_until_version(version, IN_TRANSIT).await {
            return Ok(FreshnessProof::Followed.of(version));
        }
        if !scope.upstream.is_following() {
            return Err(ProofError::Interrupted);
        }
        let Some(mut waiting) = self.catch_ups.keep_open(scope) else {
            return Err(ProofError::Late);
        };
        let mut following = scope.upstream.following();
        tokio::select! {
            biased;
            is_reached = scope.wait_until_version(version, costs::MAX_COMPARISON_WAIT) => {
                if !is_reached {
                    return Err(ProofError::Late);
                }
            }
            _ = following.wait_for(|is_followed| !is_followed) => {
                return Err(ProofError::Interrupted);
            }
            () = waiting.until_given_up() => return Err(ProofError::Late),
        }
        let is_followed = scope.reader.event_version() >= version;
        let proof = if is_followed {
            FreshnessProof::Followed
        } else {
            FreshnessProof::CaughtUp
        };
        Ok(proof.of(version))
    }
}

#[cfg(test)]
mod tests;
