//! The state that a scope serves, and how current it is: whether upstream's changes arrive, and when
//! it is too old.
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::other_streams::OtherStreams;
use super::overdue::{MissingEvent, OverdueEvents};
use super::shown_phase::ShownPhase;
use super::staleness::{DueChange, StalenessChange, StalenessClock};
use super::wait::wait_until;
use crate::scope::cached::Scope;
use crate::scope::phase::ScopePhase;
use crate::store::StoreWriter;

/// A watch that ended in good order is open again after milliseconds. A scope that waits longer
/// does not follow.
const WATCH_REOPEN: Duration = Duration::from_secs(2);

/// The state that a scope's task shows to readers, and its age.
///
/// It is apart from the feed, so that time can pass while a request at upstream is under way.
pub(super) struct ServedState {
    scope: Arc<Scope>,
    pub(super) writer: StoreWriter,
    pub(super) phase: ShownPhase,
    pub(super) staleness: StalenessClock,
    pub(super) overdue: OverdueEvents,
    pub(super) others: OtherStreams,
    /// Upstream ended the watch. Unless it is open again by then, the scope does not follow.
    reopened_by: Option<Instant>,
}

/// Something that the watch does not bring, or may bring now, although nothing ended or broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryChange {
    /// Upstream has an event that its watch did not bring in time.
    EventMissing(MissingEvent),
    /// A stream brings something again, perhaps another scope's.
    OthersDeliver,
    /// The scope is too old, and upstream has events that no watch brings.
    TooOld,
}

impl ServedState {
    /// Creates the state of a scope that has nothing yet.
    pub(super) fn new(
        scope: Arc<Scope>,
        writer: StoreWriter,
        phase: ShownPhase,
        staleness: StalenessClock,
        overdue: OverdueEvents,
        others: OtherStreams,
    ) -> Self {
        Self {
            scope,
            writer,
            phase,
            staleness,
            overdue,
            others,
            reopened_by: None,
        }
    }

    /// Prepares for [`ServedState::delivery_changed`], after whatever changed the state.
    pub(super) fn begin_turn(&mut self) {
        if !self.scope.upstream.is_following() {
            // The next list or watch brings what is due. It must not be cancelled for that.
            self.overdue.forget();
        }
        if !self.awaits_other_streams() {
            self.others.forget();
        }
    }

    /// Waits until the scope's task has to act on what the watch does not bring, and lets time pass
    /// meanwhile. [`DeliveryChange::TooOld`] is not returned while a list is under way, which shows what is
    /// lacking. Cancelling a call loses nothing.
    pub(super) async fn delivery_changed(&mut self, is_listing: bool) -> DeliveryChange {
        loop {
            tokio::select! {
                missing = self.overdue.missing(), if self.scope.upstream.is_following() => {
                    return DeliveryChange::EventMissing(missing);
                }
                () = self.others.changed(), if self.may_reopen_with_others() => {
                    return DeliveryChange::OthersDeliver;
                }
                () = wait_until(self.reopened_by) => {
                    self.reopened_by = None;
                    self.mark_lost();
                    self.overdue.forget();
                }
                () = wait_until(self.staleness.due()) => {
                    let lacks_events = self.update_staleness();
                    if lacks_events && !is_listing {
                        return DeliveryChange::TooOld;
                    }
                }
            }
        }
    }

    /// Records that upstream ended the watch, or that what the next one brings has yet to be found
    /// to follow what is held.
    pub(super) fn mark_ended(&mut self) {
        let by = Instant::now() + WATCH_REOPEN;
        self.reopened_by.get_or_insert(by);
    }

    /// Records that the watch is open, or is known not to be.
    pub(super) fn end_reopening(&mut self) {
        self.reopened_by = None;
    }

    /// Returns `true` if the watch ended and is not open again.
    pub(super) fn is_reopening(&self) -> bool {
        self.reopened_by.is_some()
    }

    /// Records that changes of the source arrive again, of which none was lost.
    pub(super) fn mark_followed(&mut self) {
        self.scope.upstream.set_following(true);
        let source = self.scope.source.get();
        if source
            .as_ref()
            .is_some_and(|source| source.upstream.age().is_none())
        {
            // It was followed all the time, while its server's JSON was compared.
            self.mark_heard();
        } else {
            self.staleness.mark_reopened(Instant::now());
        }
    }

    /// Records that the source is older than allowed, which counts here as well.
    pub(super) fn mark_too_old(&mut self) {
        self.mark_lost();
        if self.staleness.exceed() {
            self.stop_serving();
        }
    }

    /// Records that upstream's changes do not arrive any more.
    pub(super) fn mark_lost(&mut self) {
        self.scope.upstream.set_following(false);
        self.staleness.mark_lost(Instant::now());
        self.publish_age();
    }

    /// Shows readers for how long the scope has not followed upstream.
    pub(super) fn publish_age(&self) {
        let (since, lacks) = (
            self.staleness.lost_since(),
            self.staleness.lacks_something(),
        );
        self.scope.upstream.set_lost(since, lacks);
    }

    /// Records that upstream has proven the state that is held. The watch may have broken since.
    pub(super) fn mark_proven(&mut self) {
        self.mark_heard();
        if !self.scope.upstream.is_following() {
            self.mark_lost();
        }
    }

    /// Records that the watch is open again.
    pub(super) fn mark_reopened(&mut self) {
        self.staleness.mark_reopened(Instant::now());
    }

    /// Records that upstream sent a list, an event or a bookmark.
    pub(super) fn mark_heard(&mut self) {
        if self.staleness.mark_heard(Instant::now()) {
            self.serve_again();
        }
    }

    /// Records that upstream has changes that the watch does not bring, although it is open.
    pub(super) fn mark_lacking(&mut self) {
        self.staleness.mark_silent(DueChange::Event, Instant::now());
        self.publish_age();
    }

    /// Records that the watch was open and did not bring what was due.
    pub(super) fn mark_silent(&mut self, due: DueChange) {
        self.others.mark_silent();
        self.staleness.mark_silent(due, Instant::now());
    }

    /// Serves the scope again, if it was too old.
    fn serve_again(&mut self) {
        self.publish_age();
        let ScopePhase::Stale(ready) = self.phase.now() else {
            return;
        };
        let key = &self.scope.key;
        tracing::info!(
            resource = %key.gvr,
            representation = %key.representation,
            "followed again; reads are answered from memory again"
        );
        self.writer.resume();
        self.phase.serve(ready);
    }

    /// Records that the scope's age has changed with time. Returns `true` if it has to be listed:
    /// what no watch brings, a list shows.
    fn update_staleness(&mut self) -> bool {
        match self.staleness.tick(Instant::now()) {
            Some(StalenessChange::Recovered) => self.serve_again(),
            Some(StalenessChange::Exceeded) => {
                if self.staleness.has_limit() {
                    self.stop_serving();
                }
                return self.staleness.lacks_events();
            }
            None => {}
        }
        false
    }

    /// Stops serving the scope, as it is too old, and ends its watches.
    fn stop_serving(&mut self) {
        let key = &self.scope.key;
        match self.phase.now() {
            ScopePhase::Ready(ready) => {
                tracing::warn!(
                    resource = %key.gvr,
                    selection = %key.selection,
                    "not followed for longer than --max-staleness; requests are forwarded until it is followed again"
                );
                // Before the watches end: their clients come back at once.
                self.phase.exceed_age(ready);
                self.writer.pause();
            }
            // Its watches may lack an event, so that they cannot go on elsewhere.
            ScopePhase::Quarantined | ScopePhase::SchemaChanged => self.writer.expire(),
            _ => {}
        }
    }

    /// Returns `true` if something is due, and the watch was not opened again for others yet.
    fn awaits_other_streams(&self) -> bool {
        self.staleness.lacks_something() && !self.others.has_reopened()
    }

    /// Returns `true` if the watch is open and may be opened again for others.
    ///
    /// A list or a watch that is under way must not be cancelled for them: of many scopes that recover one after
    /// the other, each would have it begun anew.
    fn may_reopen_with_others(&self) -> bool {
        self.scope.upstream.is_following() && self.awaits_other_streams()
    }
}
