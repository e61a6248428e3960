//! The feed of a scope's changes: upstream's own list and watch, or the type's scope in protobuf.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cached::Scope;
use super::derived::{DerivationFailures, DerivedEnd, DerivedFeed, DerivedStep, FallbackReason};
use super::metrics;
use crate::store::SnapshotBuilder;
use crate::upstream::{Backoff, Change, Reflector, Release, ServedBy, Stopped};

/// First and longest pause until a derivation that ended for a passing reason is tried again.
const DERIVE_AGAIN: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));
/// Time after which a source that did not fit beside its derived scope is closed, if nobody else
/// reads it, and its memory has left the process.
const SOURCE_GONE: Duration = Duration::from_secs(24);

/// The changes of one scope.
pub(super) struct ScopeFeed {
    scope: Arc<Scope>,
    /// Lists and watches at upstream, unless the changes are derived.
    reflector: Reflector,
    derived: Option<Box<DerivedFeed>>,
    /// A derivation that ended for a reason that may pass, and the earliest moment of the next try.
    ended: Option<(Box<DerivedFeed>, Instant)>,
    pauses: Backoff,
    failures: Arc<DerivationFailures>,
}

/// The next thing that happens to a scope.
pub(super) enum FeedStep {
    /// A change from upstream.
    Upstream(Change<SnapshotBuilder>),
    /// A step of a scope that is derived.
    Derived(DerivedStep),
    /// The scope is derived no longer. The next step is upstream's list. Until
    /// [`ScopeFeed::forget_source`], readers see if what it holds is doubted with its source.
    FellBack,
}

impl ScopeFeed {
    pub(super) fn new(
        scope: &Arc<Scope>,
        reflector: Reflector,
        derived: Option<DerivedFeed>,
        failures: &Arc<DerivationFailures>,
    ) -> Self {
        // Before others see the scope: while it opens, its source counts for it.
        scope.derives.store(derived.is_some(), Ordering::Relaxed);
        Self {
            scope: Arc::clone(scope),
            reflector,
            derived: derived.map(Box::new),
            ended: None,
            pauses: Backoff::new(DERIVE_AGAIN.0, DERIVE_AGAIN.1),
            failures: Arc::clone(failures),
        }
    }

    /// Returns upstream's list and watch, unless the changes are derived.
    pub(super) fn reflector(&mut self) -> Option<&mut Reflector> {
        self.derived.is_none().then_some(&mut self.reflector)
    }

    /// Derives the changes again if that ended for a reason that may have passed, and upstream
    /// would be asked for a fresh list now. Returns true if it does.
    pub(super) fn derive_again(&mut self) -> bool {
        let now = Instant::now();
        let is_due = |(_, at): &mut (_, Instant)| *at <= now;
        if !self.is_listing() {
            return false;
        }
        let Some((mut derived, _)) = self.ended.take_if(is_due) else {
            return false;
        };
        let key = &self.scope.key;
        if self
            .failures
            .contains(&key.gvr, key.representation.metadata_only)
        {
            return false;
        }
        derived.begin_anew();
        self.derived = Some(derived);
        // A list that was begun is too old once it is needed.
        self.reflector.restart();
        self.scope.derives.store(true, Ordering::Relaxed);
        true
    }

    /// Returns true if the next step is a fresh list from upstream, or a failure.
    pub(super) fn is_listing(&self) -> bool {
        self.derived.is_none() && self.reflector.is_listing()
    }

    /// Returns the server of the open watch.
    pub(super) fn server(&self) -> Option<&ServedBy> {
        match &self.derived {
            Some(derived) => derived.server(),
            None => self.reflector.server(),
        }
    }

    /// Returns the number of quarantines of the source before the state was read that was shown, if
    /// the changes are derived.
    pub(super) fn source_quarantines(&self) -> Option<u64> {
        self.derived.as_ref()?.source_quarantines()
    }

    /// Returns the release whose JSON was compared, if the changes are derived.
    pub(super) fn compared_release(&self) -> Option<&Release> {
        self.derived.as_ref()?.release()
    }

    /// Forgets everything: the next change is a fresh list.
    pub(super) fn restart(&mut self) {
        match &mut self.derived {
            Some(derived) => derived.restart(),
            None => self.reflector.restart(),
        }
    }

    /// Delays the next step.
    pub(super) fn pause(&mut self, pause: Duration) {
        match &mut self.derived {
            Some(derived) => derived.pause(pause),
            None => self.reflector.pause(pause),
        }
    }

    /// Returns the next step. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self) -> Result<FeedStep, Stopped> {
        let Some(derived) = &mut self.derived else {
            return self.reflector.next().await.map(FeedStep::Upstream);
        };
        let next = derived.next().await;
        if self.scope.derived_from.load().is_none() {
            self.scope.derived_from.store(derived.source().cloned());
        }
        match next {
            Ok(step) => Ok(FeedStep::Derived(step)),
            // What is held is dropped first.
            Err(DerivedEnd::DoesNotFit(error)) if self.scope.held() > 0 => Err(error.into()),
            Err(DerivedEnd::DoesNotFit(_)) => {
                self.fall_back(&FallbackReason::Source("both do not fit into memory"));
                self.forget_source();
                self.ended = None;
                self.reflector.pause(SOURCE_GONE);
                // Nobody waits for the list as long as that.
                Ok(FeedStep::Upstream(Change::Interrupted))
            }
            Err(DerivedEnd::FallBack(reason)) => {
                self.fall_back(&reason);
                Ok(FeedStep::FellBack)
            }
        }
    }

    /// Follows the type in JSON from now on, if it was derived: upstream prints an object
    /// differently. The next step is upstream's list.
    pub(super) fn distrust(&mut self) {
        if self.derived.is_some() {
            self.fall_back(&FallbackReason::SelfCheck);
            self.forget_source();
        }
    }

    /// Lets go of the source of a derivation that ended. What is held is quarantined with it no
    /// longer.
    pub(super) fn forget_source(&self) {
        self.scope.derived_from.store(None);
    }

    fn fall_back(&mut self, reason: &FallbackReason) {
        let key = &self.scope.key;
        if reason.is_lasting() {
            tracing::warn!(
                resource = %key.gvr,
                selection = %key.selection,
                %reason,
                "its JSON is not derived from protobuf any more; it is listed and watched in JSON"
            );
        } else {
            tracing::info!(
                resource = %key.gvr,
                selection = %key.selection,
                %reason,
                "its JSON is not derived from protobuf for now; it is listed and watched in JSON"
            );
        }
        let labels = metrics::with_type(&key.gvr, reason.label());
        metrics::FALLBACKS.with(labels).increment(1);
        self.failures
            .add(reason, &key.gvr, key.representation.metadata_only);
        let ended = self.derived.take().filter(|_| !reason.is_lasting());
        self.ended = ended.map(|mut derived| {
            derived.close();
            (derived, Instant::now() + self.pauses.pause())
        });
        self.scope.derives.store(false, Ordering::Relaxed);
    }
}

impl Drop for ScopeFeed {
    /// Readers of a scope that stopped must not keep its source.
    fn drop(&mut self) {
        self.scope.derives.store(false, Ordering::Relaxed);
        self.forget_source();
    }
}
