//! Tries to derive a scope's JSON again, beside the list and watch at upstream that took its place.
use std::future::pending;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::cached::Scope;
use super::derived::{
    DerivationFailures, DerivedEnd, DerivedFeed, DerivedStep, FallbackReason, LONGEST_ATTEMPT,
    RejoinPoint,
};
use super::metrics;
use super::phase::ScopePhase;

/// Longest pause before it is asked again whether an attempt is due. Another scope of the type may
/// have succeeded meanwhile.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Pause between two looks whether the scope has reached what was compared.
const LOOK: Duration = Duration::from_millis(500);

/// The next attempt to derive a scope whose derivation ended.
pub(super) struct Rederivation {
    scope: Arc<Scope>,
    failures: Arc<DerivationFailures>,
    state: RederivationState,
    /// The scope was listed or printed anew since the attempt began.
    is_outdated: bool,
}

enum RederivationState {
    /// The scope is derived, or never is.
    Idle,
    /// It is to be asked at this moment whether an attempt is due.
    Waiting {
        derived: Box<DerivedFeed>,
        until: Instant,
    },
    /// What upstream's own list and watch brought is compared with what is derived.
    Comparing {
        comparison: Comparison,
        deadline: Instant,
    },
    /// All is the same. The scope is derived again once that is exact.
    Compared {
        derived: Box<DerivedFeed>,
        point: RejoinPoint,
        look: Instant,
        deadline: Instant,
    },
}

type Comparison = BoxFuture<'static, (Box<DerivedFeed>, Result<RejoinPoint, DerivedEnd>)>;

impl Rederivation {
    /// Prepares for a scope that has not failed.
    pub(super) fn new(scope: &Arc<Scope>, failures: &Arc<DerivationFailures>) -> Self {
        Self {
            scope: Arc::clone(scope),
            failures: Arc::clone(failures),
            state: RederivationState::Idle,
            is_outdated: false,
        }
    }

    /// Returns true if the type is known not to be derived for now.
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
        let key = &self.scope.key;
        let metadata_only = key.representation.metadata_only;
        let next = self.failures.add(reason, &key.gvr, metadata_only);
        derived.close();
        self.wait_until(derived, next);
    }

    /// Notes that the scope is listed anew. What was compared is not what it has.
    pub(super) fn listed_anew(&mut self) {
        self.is_outdated = true;
    }

    /// Notes that upstream is of another release now, and that [`DerivationFailures`] know.
    pub(super) fn release_changed(&mut self) {
        self.is_outdated = true;
        if let RederivationState::Waiting { until, .. } = &mut self.state {
            // They tell when it may be tried.
            *until = Instant::now();
        }
    }

    /// Begins an attempt without a comparison, as the scope has to be listed anyway. `None` if it
    /// is too early, or known to end as before.
    pub(super) fn begin(&mut self) -> Option<Box<DerivedFeed>> {
        let RederivationState::Waiting { derived, .. } = &self.state else {
            return None;
        };
        if !derived.has_memory() || self.is_futile() || self.begin_attempt().is_err() {
            return None;
        }
        match replace(&mut self.state, RederivationState::Idle) {
            RederivationState::Waiting { derived, .. } => Some(derived),
            _ => None,
        }
    }

    /// Waits until what upstream's own list and watch brought was found to be what is derived, or
    /// for the next look at that. Cancelling a call loses nothing.
    pub(super) async fn compared(&mut self) {
        loop {
            match &mut self.state {
                RederivationState::Idle => pending().await,
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
                RederivationState::Compared { look, .. } => {
                    sleep_until(*look).await;
                    return;
                }
            }
        }
    }

    /// Derives the scope again, if it was compared and that is exact now. Nothing is awaited of its
    /// own watch if `is_settled`.
    pub(super) fn rejoin(&mut self, is_settled: bool) -> Option<(Box<DerivedFeed>, DerivedStep)> {
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
        let joined = if self.is_outdated {
            Err(FallbackReason::Source("its list in JSON began anew"))
        } else if is_settled {
            derived.rejoin(&self.scope, &point)
        } else {
            Ok(None)
        };
        let now = Instant::now();
        let reason = match joined {
            Ok(Some(step)) => {
                self.succeeded();
                return Some((derived, step));
            }
            Ok(None) if now < deadline => {
                self.state = RederivationState::Compared {
                    derived,
                    point,
                    look: now + LOOK,
                    deadline,
                };
                return None;
            }
            Ok(None) => late(),
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
        if !self.is_comparable() || !derived.has_memory() {
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
        self.is_outdated = false;
        let deadline = Instant::now() + LONGEST_ATTEMPT;
        self.state = RederivationState::Comparing {
            comparison: attempt(derived, Arc::clone(&self.scope), deadline),
            deadline,
        };
    }

    /// Returns true if the scope has objects of a known release, at a server that streams initial
    /// events. Servers that do not are not derived from.
    fn is_comparable(&self) -> bool {
        let scope = &self.scope;
        let streams = match scope.phase() {
            ScopePhase::Ready(ready) => ready.streams_initial_events,
            _ => false,
        };
        streams
            && scope.is_following()
            && scope.is_printed_by_its_server()
            && scope.printed_by.lock().is_some()
    }

    fn begin_attempt(&self) -> Result<(), Instant> {
        let key = &self.scope.key;
        self.failures
            .begin_attempt(&key.gvr, key.representation.metadata_only)
    }

    fn wait_until(&mut self, derived: Box<DerivedFeed>, moment: Instant) {
        let until = moment.min(Instant::now() + ASK_AGAIN);
        self.state = RederivationState::Waiting { derived, until };
    }

    fn succeeded(&self) {
        let key = &self.scope.key;
        self.failures
            .succeeded(&key.gvr, key.representation.metadata_only);
        self.count("derived");
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

fn attempt(mut derived: Box<DerivedFeed>, scope: Arc<Scope>, deadline: Instant) -> Comparison {
    let compare = async move {
        let compared = timeout_at(deadline, derived.compare(&scope)).await;
        let compared = compared.unwrap_or_else(|_| Err(late().into()));
        (derived, compared)
    };
    compare.boxed()
}

fn late() -> FallbackReason {
    FallbackReason::Unchecked("it took too long".to_owned())
}
