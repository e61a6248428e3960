//! The feed of a scope's changes: upstream's own list and watch, or the type's scope in protobuf.
use std::sync::Arc;
use std::time::Duration;

use super::rederivation::Rederivation;
use crate::scope::cached::Scope;
use crate::scope::derived::{
    CheckedServer, DerivationFailures, DerivedEnd, DerivedFeed, DerivedStep, FallbackReason,
};
use crate::scope::metrics;
use crate::store::SnapshotBuilder;
use crate::upstream::{Change, Reflector, Release, ServedBy, Stopped};

/// Time after which a source that did not fit beside its derived scope is closed, if nobody else
/// reads it, and its memory has left the process.
const SOURCE_GONE: Duration = Duration::from_secs(24);

/// The changes of one scope.
pub(in crate::scope) struct ScopeFeed {
    scope: Arc<Scope>,
    /// Lists and watches at upstream, unless the changes are derived.
    reflector: Reflector,
    derived: Option<Box<DerivedFeed>>,
    /// The way back from a derivation that ended.
    rederivation: Rederivation,
}

/// The next thing that happens to a scope.
pub(super) enum FeedStep {
    /// A change from upstream.
    Upstream(Change<SnapshotBuilder>),
    /// A step of a scope that is derived.
    Derived(DerivedStep),
    /// The scope's own list and watch were found to be what is derived. Whether they still are is to
    /// be looked at: [`ScopeFeed::rejoin`].
    MayRejoin,
    /// The scope is derived no longer. The next step is upstream's list, unless the caller resumes
    /// [`ScopeFeed::reflector`]. Until [`ScopeFeed::forget_source`], readers see if what it holds is
    /// doubted with its source.
    FellBack {
        /// Nothing was found against what the scope holds: upstream's watch may continue it.
        is_resumable: bool,
    },
}

impl ScopeFeed {
    pub(in crate::scope) fn new(
        scope: &Arc<Scope>,
        reflector: Reflector,
        derived: Option<DerivedFeed>,
        failures: &Arc<DerivationFailures>,
    ) -> Self {
        let mut rederivation = Rederivation::new(scope, failures);
        let mut derived = derived.map(Box::new);
        if rederivation.is_futile()
            && let Some(derived) = derived.take()
        {
            rederivation.wait(derived);
        }
        // Before others see the scope: while it opens, its source counts for it.
        scope.source.set_derived(derived.is_some());
        Self {
            scope: Arc::clone(scope),
            reflector,
            derived,
            rederivation,
        }
    }

    /// Returns upstream's list and watch, unless the changes are derived.
    pub(super) fn reflector(&mut self) -> Option<&mut Reflector> {
        self.derived.is_none().then_some(&mut self.reflector)
    }

    /// Derives the changes again if upstream would be asked for a fresh list now, and the reason why
    /// that ended may have passed. Returns `true` if it does.
    pub(super) fn derive_again(&mut self) -> bool {
        if !self.is_listing() {
            return false;
        }
        let Some(mut derived) = self.rederivation.begin_with_list() else {
            return false;
        };
        derived.begin_anew();
        self.derive(derived);
        true
    }

    /// Derives the changes again from what is held on, after [`FeedStep::MayRejoin`], if that is
    /// exact now. `is_settled`: nothing else is to be learned from upstream's own watch. Returns what
    /// was learned of the source's server.
    pub(super) fn rejoin(&mut self, is_settled: bool) -> Option<CheckedServer> {
        let (derived, server) = self.rederivation.rejoin(is_settled)?;
        self.derive(derived);
        Some(server)
    }

    /// Gives up upstream's list and watch. One that was begun is too old once it is needed.
    fn derive(&mut self, derived: Box<DerivedFeed>) {
        self.derived = Some(derived);
        self.reflector.restart();
        self.scope.source.set_derived(true);
    }

    /// Notes that upstream is of another release now: it may print what could not be derived.
    pub(super) fn release_changed(&mut self) {
        self.rederivation.release_changed();
    }

    /// Returns `true` if the next step is a fresh list from upstream, or a failure.
    pub(super) fn is_listing(&self) -> bool {
        self.derived.is_none() && self.reflector.is_listing()
    }

    /// Returns `true` if upstream's last list was no older than its request.
    pub(super) fn lists_most_recent(&self) -> bool {
        self.reflector.lists_most_recent()
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
        if let Some(derived) = &mut self.derived {
            derived.restart();
        } else {
            self.reflector.restart();
            self.rederivation.discard_comparison();
        }
    }

    /// Forgets the state, as the type's schema changed. That is no failure, so nothing is delayed.
    pub(super) fn list_changed_schema(&mut self) {
        if let Some(derived) = &mut self.derived {
            derived.restart();
        } else {
            self.reflector.list_changed_schema();
            self.rederivation.discard_comparison();
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
            return self.next_of_upstream().await;
        };
        let next = derived.next().await;
        if self.scope.source.get().is_none()
            && let Some(source) = derived.source()
        {
            self.scope.source.attach(Arc::clone(source));
        }
        match next {
            Ok(step) => {
                if matches!(step, DerivedStep::Change(Change::Listed(_))) {
                    self.rederivation.record_list();
                }
                Ok(FeedStep::Derived(step))
            }
            // What is held is dropped first.
            Err(DerivedEnd::DoesNotFit(error)) if self.scope.held() > 0 => Err(error.into()),
            Err(DerivedEnd::DoesNotFit(_)) => {
                self.fall_back(&FallbackReason::Source("both do not fit into memory"));
                self.forget_source();
                self.reflector.pause(SOURCE_GONE);
                // Nobody waits for the list as long as that.
                Ok(FeedStep::Upstream(Change::Interrupted))
            }
            Err(DerivedEnd::FallBack(reason)) => {
                let is_resumable = !reason.is_lasting() && derived.is_following();
                self.fall_back(&reason);
                Ok(FeedStep::FellBack { is_resumable })
            }
        }
    }

    /// Returns the next change of upstream's own list and watch, or tells that they are what would
    /// be derived.
    async fn next_of_upstream(&mut self) -> Result<FeedStep, Stopped> {
        // A look ends a request that is under way. An open watch loses nothing by it.
        let may_look = self.reflector.is_watching();
        tokio::select! {
            change = self.reflector.next() => {
                let change = change?;
                if matches!(change, Change::Listed(_)) {
                    self.rederivation.discard_comparison();
                }
                Ok(FeedStep::Upstream(change))
            }
            () = self.rederivation.until_look(may_look) => Ok(FeedStep::MayRejoin),
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
        self.scope.source.detach();
    }

    fn fall_back(&mut self, reason: &FallbackReason) {
        let key = &self.scope.key;
        if reason.is_lasting() {
            tracing::warn!(
                resource = %key.gvr,
                selection = %key.selection,
                %reason,
                "JSON is no longer derived from protobuf; the type is listed and watched in JSON, too"
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
        if let Some(derived) = self.derived.take() {
            self.rederivation.failed(derived, reason);
        }
        self.scope.source.set_derived(false);
    }
}

impl Drop for ScopeFeed {
    /// Readers of a scope that stopped must not keep its source.
    fn drop(&mut self) {
        self.scope.source.set_derived(false);
        self.forget_source();
    }
}
