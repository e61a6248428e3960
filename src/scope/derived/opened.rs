//! A scope in protobuf whose state is awaited.
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::failures::FallbackReason;
use super::step::ReportedState;
use crate::scope::cached::Scope;
use crate::scope::handle::ScopeHandle;
use crate::scope::phase::ScopePhase;

/// Time for which a source that upstream refused may be tried again before it is given up.
const REFUSED_WAIT: Duration = Duration::from_secs(3);

/// A source that is open, and that the caller has seen no state of.
pub(super) struct OpenedSource {
    source: ScopeHandle,
    /// The source is refused. It is given up then.
    refused_until: Option<Instant>,
}

/// The state of a source, as its reader needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Its state can be read.
    Ready,
    /// Something changed. Look again.
    Changed,
    /// The caller has to be told first.
    Worse(ReportedState),
}

impl OpenedSource {
    pub(super) fn new(source: ScopeHandle) -> Self {
        Self {
            source,
            refused_until: None,
        }
    }

    pub(super) fn source(&self) -> &Arc<Scope> {
        &self.source
    }

    pub(super) fn into_source(self) -> ScopeHandle {
        self.source
    }

    /// Waits for a change of the source if its state cannot be read, unless it is worse than the
    /// caller was told.
    ///
    /// A source that does not follow may show an old state, and its age would be lost with a list.
    pub(super) async fn readiness(
        &mut self,
        reported: ReportedState,
    ) -> Result<Readiness, FallbackReason> {
        const STOPPED: FallbackReason = FallbackReason::Source("it is not cached in protobuf");
        let source = &self.source;
        let mut phases = source.phase.clone();
        let mut following = source.upstream.following();
        let phase = phases.borrow_and_update().clone();
        let is_followed = *following.borrow_and_update();
        let now = match &phase {
            ScopePhase::Ready(_) if is_followed && source.is_current() => {
                self.refused_until = None;
                return Ok(Readiness::Ready);
            }
            ScopePhase::Stopped(reason) if !reason.may_pass() => return Err(STOPPED),
            ScopePhase::Syncing => ReportedState::Followed,
            ScopePhase::Ready(_)
            | ScopePhase::Failing
            | ScopePhase::SchemaChanged
            | ScopePhase::Stopped(_) => ReportedState::Lost,
            ScopePhase::Stale(_) => ReportedState::TooOld,
            ScopePhase::Quarantined => ReportedState::Doubted,
        };
        if now > reported {
            return Ok(Readiness::Worse(now));
        }
        let changed = async {
            tokio::select! {
                // Its sender is dropped once the source tries no longer.
                changed = phases.changed() => changed.is_ok(),
                _ = following.changed() => true,
            }
        };
        let is_open = match phase {
            ScopePhase::Stopped(_) => {
                let until = Instant::now() + REFUSED_WAIT;
                let until = *self.refused_until.get_or_insert(until);
                timeout_at(until, changed).await.unwrap_or(false)
            }
            _ => changed.await,
        };
        if is_open {
            Ok(Readiness::Changed)
        } else {
            Err(STOPPED)
        }
    }
}

/// Waits until the source cannot be read.
pub(super) async fn until_unreadable(source: &Scope) {
    let mut phases = source.phase.clone();
    // A sender lives as long as the source.
    let _ = phases
        .wait_for(|phase| !matches!(phase, ScopePhase::Ready(_)))
        .await;
}

/// Waits until the source cannot be read, or does not follow.
pub(super) async fn until_unusable(source: &Scope) {
    let mut following = source.upstream.following();
    tokio::select! {
        () = until_unreadable(source) => {}
        _ = following.wait_for(|is_followed| !is_followed) => {}
    }
}
