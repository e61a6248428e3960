//! Tries to derive a scope's JSON again, beside the list and watch at upstream that took its place.
use std::future::pending;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::budget::MemoryBudget;
use crate::scope::cached::Scope;
use crate::scope::derived::{
    CheckedServer, DerivationFailures, DerivedEnd, DerivedFeed, FallbackReason, LONGEST_ATTEMPT,
    RejoinPoint, Rejoined, is_known_release,
};
use crate::scope::metrics;
use crate::scope::phase::ScopePhase;

/// Longest pause before it is asked again whether an attempt is due. Another scope of the type may
/// have succeeded meanwhile.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Pause between two looks whether the scope has reached what was compared.
const LOOK: Duration = Duration::from_millis(500);
/// Pause between two looks at the memory that is left for an attempt.
const MEMORY_LOOK: Duration = Duration::from_secs(1);
const BEGAN_ANEW: FallbackReason = FallbackReason::Source("it was listed or printed anew");
const SHORT_OF_MEMORY: FallbackReason = FallbackReason::Source("memory is short");

/// The next attempt to derive a scope whose derivation ended.
pub(super) struct Rederivation {
    scope: Arc<Scope>,
    failures: Arc<DerivationFailures>,
    state: RederivationState,
    /// An attempt runs that [`DerivationFailures`] know of.
    is_attempting: bool,
    /// Cancelled when the scope was listed or printed anew since the attempt began.
    outdated: CancellationToken,
}

enum RederivationState {
    /// The scope is derived, or never is.
    Idle,
    /// It is to be asked at this moment whether an attempt is due.
    Waiting {
        derived: Box<DerivedFeed>,
        until: Instant,
    },
    /// It is derived again with a list that was due anyway, and that has not arrived yet.
    Listing,
    /// A comparison of what upstream's own list and watch brought with what is derived.
    Comparing {
        comparison: Comparison,
        deadline: Instant,
    },
    /// All is the same. The scope is derived again once that is exact.
    Compared {
        derived: Box<DerivedFeed>,
        point: Box<RejoinPoint>,
        look: Instant,
        deadline: Instant,
    },
}

type Comparison = BoxFuture<'static, (Box<DerivedFeed>, Result<Box<RejoinPoint>, DerivedEnd>)>;

impl Rederivation {
    /// Prepares for a scope that has not failed.
    pub(super) fn new(scope: &Arc<Scope>, failures: &Arc<DerivationFailures>) -> Self {
        Self {
            scope: Arc::clone(scope),
            failures: Arc::clone(failures),
            state: RederivationState::Idle,
            is_attempting: false,
            outdated: CancellationToken::new(),
        }
    }

    /// Returns `true` if the type is known not to be derived for now.
    pub(super) fn is_futile(&self) -> bool {
        let key = &self.scope.key;
        self.failures
            .contains(&key.gvr, key.representation.metadata_only)
    }

    /// Tries it again later: the type failed before, in another scope.
    pub(super) fn wait(&mut self, derived: Box<DerivedFeed>) {
        self.wait_until(derived, Instant::now());
    }

    /// Records why the scope is not derived, and tries it again later.
    pub(super) fn failed(&mut self, mut derived: Box<DerivedFeed>, reason: &FallbackReason) {
        self.end_attempt();
        let key = &self.scope.key;
        let metadata_only = key.representation.metadata_only;
        let next = self.failures.add(reason, &key.gvr, metadata_only);
        derived.close();
        self.wait_until(derived, next);
    }

    /// Notes that the scope is listed anew. What was compared is not what it has.
    pub(super) fn discard_comparison(&self) {
        self.outdated.cancel();
    }

    /// Notes that upstream is of another release now, and that [`DerivationFailures`] know.
    pub(super) fn release_changed(&mut self) {
        self.outdated.cancel();
        if let RederivationState::Waiting { until, .. } = &mut self.state {
            // They tell when it may be tried.
            *until = Instant::now();
        }
    }

    /// Begins an attempt without a comparison, as the scope has to be listed anyway. `None` if it
    /// is too early, or known to end as before.
    pub(super) fn begin_with_list(&mut self) -> Option<Box<DerivedFeed>> {
        let RederivationState::Waiting { derived, .. } = &self.state else {
            return None;
        };
        if !derived.budget().is_relaxed() || self.is_futile() || self.begin_attempt().is_err() {
            return None;
        }
        match replace(&mut self.state, RederivationState::Listing) {
            RederivationState::Waiting { derived, .. } => Some(derived),
            _ => None,
        }
    }

    /// Notes that a derived list has arrived.
    pub(super) fn record_list(&mut self) {
        if matches!(self.state, RederivationState::Listing) {
            self.state = RederivationState::Idle;
            self.succeeded();
        }
    }

    /// Waits until what upstream's own list and watch brought was found to be what is derived, and
    /// then for the next look at that. Does not return from there unless `may_look`. Cancelling a
    /// call loses nothing.
    pub(super) async fn until_look(&mut self, may_look: bool) {
        loop {
            match &mut self.state {
                RederivationState::Idle | RederivationState::Listing => pending().await,
                RederivationState::Waiting { until, .. } => {
                    sleep_until(*until).await;
                    self.compare();
                }
                RederivationState::Comparing {
                    comparison,
                    deadline,
                } => {
                    let (look, deadline) = (Instant::now(), *deadline);
                    let (derived, compared) = comparison.await;
                    match compared {
                        Ok(point) => {
                            self.state = RederivationState::Compared {
                                derived,
                                point,
                                look,
                                deadline,
                            }
                        }
                        Err(end) => self.not_yet(derived, end),
                    }
                }
                RederivationState::Compared { deadline, .. } if !may_look => {
                    sleep_until(*deadline).await;
                    self.too_late();
                }
                RederivationState::Compared { look, .. } => {
                    sleep_until(*look).await;
                    return;
                }
            }
        }
    }

    /// Derives the scope again, if it was compared and that is exact now. `is_settled`: nothing
    /// else is to be learned from its own watch.
    pub(super) fn rejoin(&mut self, is_settled: bool) -> Option<(Box<DerivedFeed>, CheckedServer)> {
        let state = replace(&mut self.state, RederivationState::Idle);
        let RederivationState::Compared {
            mut derived,
            point,
            deadline,
            ..
        } = state
        else {
            self.state = state;
            return None;
        };
        let joined = if self.outdated.is_cancelled() {
            Err(BEGAN_ANEW)
        } else if is_settled {
            derived.rejoin(&self.scope, point)
        } else {
            Ok(Rejoined::NotYet(point))
        };
        let joined = match joined {
            Ok(Rejoined::NotYet(_)) if !derived.budget().is_relaxed() => Err(SHORT_OF_MEMORY),
            joined => joined,
        };
        let now = Instant::now();
        let reason = match joined {
            Ok(Rejoined::Following(server)) => {
                self.count("derived");
                self.succeeded();
                return Some((derived, *server));
            }
            Ok(Rejoined::NotYet(point)) if now < deadline => {
                self.state = RederivationState::Compared {
                    derived,
                    point,
                    look: now + LOOK,
                    deadline,
                };
                return None;
            }
            Ok(Rejoined::NotYet(_)) => late(),
            Err(reason) => reason,
        };
        self.not_yet(derived, reason.into());
        None
    }

    /// Begins a comparison, if it is time for one, and if it may succeed.
    fn compare(&mut self) {
        let state = replace(&mut self.state, RederivationState::Idle);
        let RederivationState::Waiting { derived, .. } = state else {
            self.state = state;
            return;
        };
        if !self.is_comparable() || !derived.budget().is_relaxed() {
            self.wait_until(derived, self.failures.next_look());
            return;
        }
        if let Err(next) = self.begin_attempt() {
            self.wait_until(derived, next);
            return;
        }
        tracing::info!(
            resource = %self.scope.key.gvr,
            selection = %self.scope.key.selection,
            "comparing its JSON with protobuf, to derive it again"
        );
        self.outdated = CancellationToken::new();
        let deadline = Instant::now() + LONGEST_ATTEMPT;
        let (scope, outdated) = (Arc::clone(&self.scope), self.outdated.clone());
        self.state = RederivationState::Comparing {
            comparison: attempt(derived, scope, outdated, deadline),
            deadline,
        };
    }

    /// Returns `true` if the scope has objects of a release that the tables know, at a server that
    /// streams initial events. Servers that do not are not derived from.
    fn is_comparable(&self) -> bool {
        let scope = &self.scope;
        let streams = match scope.phase() {
            ScopePhase::Ready(ready) => ready.streams_initial_events,
            _ => false,
        };
        streams
            && scope.upstream.is_following()
            && scope.is_printed_by_its_server()
            && scope.print.release().as_ref().is_some_and(is_known_release)
    }

    fn begin_attempt(&mut self) -> Result<(), Instant> {
        let key = &self.scope.key;
        self.failures
            .begin_attempt(&key.gvr, key.representation.metadata_only)?;
        self.is_attempting = true;
        Ok(())
    }

    /// Lets other scopes of the type attempt it.
    fn end_attempt(&mut self) {
        if std::mem::take(&mut self.is_attempting) {
            let key = &self.scope.key;
            self.failures
                .end_attempt(&key.gvr, key.representation.metadata_only);
        }
    }

    fn wait_until(&mut self, derived: Box<DerivedFeed>, moment: Instant) {
        let until = moment.min(Instant::now() + ASK_AGAIN);
        self.state = RederivationState::Waiting { derived, until };
    }

    /// Ends an attempt whose scope did not reach what was compared in time.
    fn too_late(&mut self) {
        match replace(&mut self.state, RederivationState::Idle) {
            RederivationState::Compared { derived, .. } => self.not_yet(derived, late().into()),
            state => self.state = state,
        }
    }

    fn succeeded(&mut self) {
        self.end_attempt();
        let key = &self.scope.key;
        self.failures
            .succeeded(&key.gvr, key.representation.metadata_only);
        tracing::info!(
            resource = %key.gvr,
            selection = %key.selection,
            "its JSON is derived from protobuf again"
        );
    }

    fn not_yet(&mut self, derived: Box<DerivedFeed>, end: DerivedEnd) {
        let reason = match end {
            DerivedEnd::FallBack(reason) => reason,
            DerivedEnd::DoesNotFit(_) => FallbackReason::Source("both do not fit into memory"),
        };
        self.count(reason.label());
        tracing::info!(
            resource = %self.scope.key.gvr,
            selection = %self.scope.key.selection,
            %reason,
            "its JSON is still listed and watched, as it cannot be derived from protobuf yet"
        );
        self.failed(derived, &reason);
    }

    fn count(&self, result: &'static str) {
        let labels = metrics::with_type(&self.scope.key.gvr, result);
        metrics::REDERIVATIONS.with(labels).increment(1);
    }
}

impl Drop for Rederivation {
    fn drop(&mut self) {
        self.end_attempt();
    }
}

/// Compares, unless that takes too long, or has lost its point before it has ended.
fn attempt(
    mut derived: Box<DerivedFeed>,
    scope: Arc<Scope>,
    outdated: CancellationToken,
    deadline: Instant,
) -> Comparison {
    let compare = async move {
        let budget = derived.budget().clone();
        let compared = tokio::select! {
            compared = timeout_at(deadline, derived.compare(&scope)) => {
                compared.unwrap_or_else(|_| Err(late().into()))
            }
            () = outdated.cancelled() => Err(BEGAN_ANEW.into()),
            () = until_short(&budget) => Err(SHORT_OF_MEMORY.into()),
        };
        (derived, compared)
    };
    compare.boxed()
}

async fn until_short(budget: &MemoryBudget) {
    while budget.is_relaxed() {
        sleep(MEMORY_LOOK).await;
    }
}

fn late() -> FallbackReason {
    FallbackReason::Unchecked("it took too long".to_owned())
}
