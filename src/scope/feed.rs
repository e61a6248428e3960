//! The feed of a scope's changes: upstream's own list and watch, or the type's scope in protobuf.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cached::Scope;
use super::derived::{DerivationFailures, DerivedEnd, DerivedFeed, DerivedStep, FallbackReason};
use super::metrics;
use crate::store::SnapshotBuilder;
use crate::upstream::{Change, Reflector, Release, ServedBy, Stopped};

/// The changes of one scope.
pub(super) struct ScopeFeed {
    scope: Arc<Scope>,
    /// Lists and watches at upstream, unless the changes are derived.
    reflector: Reflector,
    derived: Option<Box<DerivedFeed>>,
    failures: Arc<DerivationFailures>,
}

/// The next thing that happens to a scope.
pub(super) enum FeedStep {
    /// A change from upstream.
    Upstream(Change<SnapshotBuilder>),
    /// A step of a scope that is derived.
    Derived(DerivedStep),
    /// The scope is derived no longer. The next step is upstream's list.
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
            failures: Arc::clone(failures),
        }
    }

    /// Returns upstream's list and watch, unless the changes are derived.
    pub(super) fn reflector(&mut self) -> Option<&mut Reflector> {
        self.derived.is_none().then_some(&mut self.reflector)
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
            Err(DerivedEnd::DoesNotFit(error)) => Err(error.into()),
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
        }
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
        if reason.is_lasting() {
            self.failures
                .add(&key.gvr, key.representation.metadata_only);
        }
        self.derived = None;
        self.scope.derives.store(false, Ordering::Relaxed);
        self.scope.derived_from.store(None);
    }
}

impl Drop for ScopeFeed {
    /// Readers of a scope that stopped must not keep its source.
    fn drop(&mut self) {
        self.scope.derives.store(false, Ordering::Relaxed);
        self.scope.derived_from.store(None);
    }
}
